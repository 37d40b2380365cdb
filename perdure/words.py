"""What people say to threads: a thread begins, words are sent, edited, posted, with files and how to answer them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perdure import ids
from perdure.attachments import File, put_files, read_files
from perdure.codec import Text, clip
from perdure.contract import PREVIEW_CHARS, ThreadStart
from perdure.control import ThreadControl, check_object, made
from perdure.errors import ThreadClosed, ThreadNotFound, UsageError
from perdure.inputs import Accepted, InputId, Mode, UserMessage
from perdure.large_text import is_large
from perdure.messages import TurnOptions
from perdure.thread_calls import NoRunningWorkflow, new_id


class ThreadWords(ThreadControl):
    """Begins threads and says something to them."""

    async def start(
        self,
        thread_id: str | None = None,
        *,
        agent: str | None = None,
        tenant: str = "default",
        title: str | None = None,
        user_id: str | None = None,
        model: str | None = None,
    ) -> str:
        """Start a thread and wait until it is stored; returns its id, a new one if none is given.

        Safe to repeat: a thread that exists stays as it is, also one that is closed.

        Args:
            thread_id: the thread.
            agent: the agent's name; without one the first that the worker serves.
            tenant: whose thread it is.
            title: for people.
            user_id: the end user, as tool servers are told.
            model: what answers in this thread, instead of the agent's; `set_model` changes it.

        Raises:
            UsageError: if no worker knows the agent, one of these is above 200 characters, or the thread has others.
            Unreachable: if Temporal or the workers did not answer in time.
        """
        thread_id = _checked(thread_id or new_id())
        start = ThreadStart.read({"agent": agent, "tenant": tenant, "title": title, "user_id": user_id, "model": model})
        try:
            thread = await self.store.get_thread(thread_id)
        except ThreadNotFound:
            await self._begin(thread_id, start)
            return thread_id
        if (agent or thread.agent, tenant) != (thread.agent, thread.tenant):
            raise UsageError(
                f"The thread {thread_id!r} belongs to the agent {thread.agent!r} and the tenant {thread.tenant!r}; "
                "start another one."
            )
        if model not in (None, thread.model):
            has = f"is answered by {thread.model!r}" if thread.model else "has no model of its own"
            raise UsageError(f"The thread {thread_id!r} is there already and {has}; `set_model` changes that.")
        return thread_id

    async def set_model(self, thread_id: str, model: str | None) -> None:
        """Have another model answer in this thread, from the next model call on; None: its agent's again.

        Safe to repeat. No worker need be up, so whether the agent may use that model is told by the turn that tries.

        Raises:
            ThreadNotFound, ThreadClosed: there is no such thread, or it takes nothing more.
            UsageError: if this cannot be a model's name.
        """
        ThreadStart.read({"model": model})
        await self._open(thread_id)
        await self.store.set_model(thread_id, model)

    async def send(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        metadata: dict[str, Any] | None = None,
        parent_id: str | None = None,
        run: bool = True,
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Accepted:
        """Send words to a thread, which is started or woken if need be, and wait until it has taken them.

        Safe to repeat with the same `id`: the thread answers once.

        Args:
            thread_id: the thread.
            text: the words; with files there need be none.
            id: by which a repetition is known.
            mode: what they do to a turn that is under way.
            metadata: kept with the message, and never shown to a model.
            parent_id: the message that they follow, instead of the last one that is shown; they are shown from then
                on. `perdure.inputs.ROOT`: they begin a conversation of their own.
            run: whether they are answered.
            files: paths, `perdure.attachments.Attachment` for bytes, or references to what the thread holds: at most
                20, of at most 20 MiB each.
            model: what answers them, instead of the thread's or the agent's model.
            settings: how, over the agent's settings: `{"thinking": "high"}`.

        Returns:
            The id of the message and what became of it; `duplicate` and `conflict` changed nothing. `duplicate` says
            that the thread has these words, once: from a call before, or from a first try of this very call whose
            reply was lost with its worker or its run.

        Raises:
            ThreadClosed: if the thread is closed.
            UsageError: if there is nothing in it, or the text is above 10 MB, a file cannot be read or is too large, or
                the thread refuses it: there is no such parent.
            BlobNotFound: if a reference is to what the thread does not hold.
            Unreachable: if Temporal or the workers did not answer in time. Then it may have arrived or not.
        """
        fields = {"mode": mode, "metadata": metadata, "parent_id": parent_id, "run": run}
        options = _options(model, settings)
        return await self._send(thread_id, await self._user_message(thread_id, text, id, files, options, **fields))

    async def edit(
        self,
        thread_id: str,
        message_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        metadata: dict[str, Any] | None = None,
        run: bool = True,
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Accepted:
        """Say something else in place of a message: it stands beside that, which stays with all that followed it.

        As `send` otherwise; files of the old message are not taken over. Raises ThreadNotFound too, and UsageError if
        there is no such message.
        """
        await self._open(thread_id)
        fields = {"mode": mode, "metadata": metadata, "source_id": message_id, "run": run}
        options = _options(model, settings)
        return await self._send(thread_id, await self._user_message(thread_id, text, id, files, options, **fields))

    async def post(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        metadata: dict[str, Any] | None = None,
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """Send words without waiting for the thread. Safe to repeat with the same `id`.

        No worker need be up, unless the thread is new and the text is large or has files: these then need a place
        first. That the thread does not take them, because it is closed or because of their mode, nobody is told.

        Returns:
            The id that the message will have.
        """
        options = _options(model, settings)
        message = await self._user_message(thread_id, text, id, files, options, mode=mode, metadata=metadata)
        await self._calls.signal_with_start(thread_id, "user_message", message, _named_after(message.text))
        return ids.input_message_id(thread_id, message.id)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _send(self, thread_id: str, message: UserMessage) -> Accepted:
        accepted = await self._calls.update_with_start(thread_id, "send", message, Accepted, _named_after(message.text))
        if accepted.disposition == "refused":
            raise UsageError(accepted.detail or "The thread refused the message.")
        if accepted.disposition == "rejected":
            await self._open(thread_id)
            if message.mode != "reject":
                # It is about to be: the call that closes it waits for the others of its step.
                raise ThreadClosed.of(thread_id)
        return accepted

    async def _user_message(
        self,
        thread_id: str,
        text: str,
        id: str | None,
        files: Sequence[File],
        options: TurnOptions | None,
        **fields: Any,
    ) -> UserMessage:
        _checked(thread_id)
        if not text.strip() and not files:
            raise UsageError("The message is empty; write something.")
        check_object("metadata", fields.get("metadata") or {})
        message = made(UserMessage, id=_checked(id or new_id()), options=options, **fields)
        read = await read_files(files)
        if is_large(text) or read:
            await self._ensure_stored(thread_id, text)
        stored = await put_files(self.store, thread_id, read)
        inline, blob, sha256 = await self._texts.put(thread_id, text)
        return message.with_(text=inline, blob=blob, sha256=sha256, files=stored)

    async def _ensure_stored(self, thread_id: str, words: Text) -> None:
        """Begin a new thread before its first words: their blobs need a thread to belong to."""
        try:
            await self.store.get_thread(thread_id)
        except ThreadNotFound:
            await self._begin(thread_id, _named_after(words))

    async def _begin(self, thread_id: str, start: ThreadStart) -> None:
        await self._calls.start(thread_id, start)
        await self._until_stored(thread_id)

    async def _until_stored(self, thread_id: str) -> None:
        try:
            await self._calls.until_loaded(thread_id)
        except NoRunningWorkflow:
            await self.store.get_thread(thread_id)  # raises, unless the thread sleeps again already


def _options(model: str | None, settings: Mapping[str, Any] | None) -> TurnOptions | None:
    if model is None and settings is None:
        return None
    values = None if settings is None else dict(settings)
    check_object("settings", values or {})
    return made(TurnOptions, model=model, settings=values)


def _named_after(words: Text) -> ThreadStart:
    """How a thread begins with its first words: they are its title. Names of files are none: these would stay."""
    # A thread that exists keeps its title; words that wake it name the new run until the workflow knows better. To look
    # the title up here would take the database, and words may be sent while that is away.
    return ThreadStart(title=clip(words, PREVIEW_CHARS) or None)


_id = TypeAdapter[str](InputId)


def _checked(id: str) -> str:
    try:
        return _id.validate_python(id)
    except ValidationError as error:
        shown = clip(id, PREVIEW_CHARS)
        raise UsageError(
            f"{shown!r} cannot be an id: it has 1 to 200 characters, and no control characters."
        ) from error
