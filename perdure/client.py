"""The Python client: what people and programs do with threads.

Inputs go to the thread's workflow through Temporal, what steers it included (`perdure.control`); everything that is
read comes from the store (`perdure.reader`), except for what the workflow alone knows: what it does right now.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError
from temporalio.client import Client
from temporalio.runtime import Runtime

from perdure import ids
from perdure.branches import ThreadBranches
from perdure.bundle import put_runtime_on_path
from perdure.codec import clip
from perdure.connection import connect_temporal
from perdure.contract import DEFAULT_TASK_QUEUE, PREVIEW_CHARS, CallStatus, ThreadStart, ThreadStatus
from perdure.control import check_object, made
from perdure.errors import NotTaken, ThreadClosed, ThreadNotFound, TurnFailed, UsageError
from perdure.inputs import Accepted, InputId, Mode, UserMessage
from perdure.large_text import is_large
from perdure.messages import Message
from perdure.ports import Store
from perdure.reader import asked
from perdure.results import ThreadResults
from perdure.settings import load_settings, load_temporal_config
from perdure.stored_status import stored_status
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls, new_id
from perdure.waiting import pending_approvals
from perdure.watch import View, answer_text, is_settled

PATIENCE: Final = timedelta(seconds=60)
"""How long a call goes on trying while Temporal or the workers are away, unless a client is made with another."""


class PerdureClient(ThreadBranches, ThreadResults):
    """Threads: start them, talk to them, read and watch them.

    Example:
        >>> async with await PerdureClient.connect() as client:
        ...     print(await client.ask("t1", "What is the weather in Paris?"))

    Args:
        temporal: a client made by `perdure.connection.connect_temporal`.
        store: where the conversations are. Only one that `connect` opened is closed with the client.
        task_queue: where the workers poll.
        patience: how long a call goes on trying before it raises `Unreachable`.
    """

    def __init__(
        self, temporal: Client, store: Store, *, task_queue: str = DEFAULT_TASK_QUEUE, patience: timedelta = PATIENCE
    ) -> None:
        super().__init__(store, ThreadCalls(temporal, task_queue, patience), patience)
        self.temporal = temporal
        self._close: Callable[[], Awaitable[None]] | None = None

    @classmethod
    async def connect(
        cls,
        *,
        temporal: str | None = None,
        database_url: str | None = None,
        task_queue: str | None = None,
        patience: timedelta = PATIENCE,
        runtime: Runtime | None = None,
    ) -> Self:
        """Connect to the Temporal address and the database that are given, or else to those of this process's settings.

        `runtime` is the Temporal SDK's, for processes that take its logs in.

        Raises:
            ConfigurationError: if a setting is missing, or one of the two cannot be reached.
        """
        put_runtime_on_path()
        from stores.postgres import PostgresStore  # not at the top: whoever brings a store needs no database driver

        settings = load_settings()
        config = load_temporal_config()
        if temporal is not None:
            config["target_host"] = temporal
        store = await PostgresStore.connect(database_url or settings.required_database_url())
        try:
            client = cls(
                await connect_temporal(config, runtime=runtime),
                store,
                task_queue=task_queue or settings.task_queue,
                patience=patience,
            )
        except BaseException:  # cancelled: whoever gave up must not leave the pool open
            await store.close()
            raise
        client._close = store.close
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what `connect` opened. Safe to repeat."""
        close, self._close = self._close, None
        if close:
            await close()

    # -- writing -----------------------------------------------------------------------------------------------

    async def start(
        self,
        thread_id: str | None = None,
        *,
        agent: str | None = None,
        tenant: str = "default",
        title: str | None = None,
        user_id: str | None = None,
    ) -> str:
        """Start a thread and wait until it is stored; returns its id, a new one if none is given.

        Safe to repeat: a thread that exists stays as it is. `user_id` is the end user, as tool servers are told.

        Raises:
            UsageError: if no worker knows the agent, one of these is above 200 characters, or the thread has others.
            Unreachable: if Temporal or the workers did not answer in time.
        """
        thread_id = _checked(thread_id or new_id())
        start = ThreadStart.read({"agent": agent, "tenant": tenant, "title": title, "user_id": user_id})
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
        return thread_id

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
    ) -> Accepted:
        """Send words to a thread, which is started or woken if need be, and wait until it has taken them.

        Safe to repeat with the same `id`: the thread answers once.

        Args:
            thread_id: the thread.
            text: the words.
            id: by which a repetition is known.
            mode: what they do to a turn that is under way.
            metadata: kept with the message, and never shown to a model.
            parent_id: the message that they follow, instead of the last one that is shown; they are shown from then
                on. `perdure.inputs.ROOT`: they begin a conversation of their own.
            run: whether they are answered.

        Returns:
            The id of the message and what became of it; `duplicate` and `conflict` changed nothing.

        Raises:
            ThreadClosed: if the thread is closed.
            UsageError: if the text is empty or above 10 MB, or the thread refuses it: there is no such parent.
            Unreachable: if Temporal or the workers did not answer in time. Then it may have arrived or not.
        """
        fields = {"mode": mode, "metadata": metadata, "parent_id": parent_id, "run": run}
        message = await self._user_message(thread_id, text, id, **fields)
        return await self._send(thread_id, message)

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
    ) -> Accepted:
        """Say something else in place of a message: it stands beside that, which stays with all that followed it.

        As `send` otherwise. Raises ThreadNotFound too, and UsageError if there is no such message.
        """
        await self._open(thread_id)
        fields = {"mode": mode, "metadata": metadata, "source_id": message_id, "run": run}
        message = await self._user_message(thread_id, text, id, **fields)
        return await self._send(thread_id, message)

    async def post(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Send words without waiting for the thread. Safe to repeat with the same `id`.

        No worker need be up, unless the thread is new and the text is large: its words then need a place first. That
        the thread does not take them, because it is closed or because of their mode, nobody is told.

        Returns:
            The id that the message will have.
        """
        message = await self._user_message(thread_id, text, id, mode=mode, metadata=metadata)
        await self._calls.signal_with_start(thread_id, "user_message", message, _named_after(message))
        return ids.input_message_id(thread_id, message.id)

    # -- reading -----------------------------------------------------------------------------------------------

    async def status(self, thread_id: str) -> ThreadStatus:
        """What the thread is doing. One that hibernates is not woken for the answer.

        Raises:
            ThreadNotFound: if there is no such thread.
            Unreachable: if its workflow runs and no worker answers for it.
        """
        try:
            status = await self._calls.query(thread_id, "status", ThreadStatus)
        except NoRunningWorkflow:
            status = stored_status(await self.store.load_tail(thread_id, processed=0))
        if all(call.kind not in ("rap", None) for call in status.open_calls):
            return status
        return status.with_(choices=tuple(map(asked, await self.store.get_choices(thread_id))))

    async def open_calls(self, thread_id: str) -> tuple[CallStatus, ...]:
        """The tool calls that wait for a result. Raises as `status` does."""
        return (await self.status(thread_id)).open_calls

    async def wait_settled(self, thread_id: str, message_id: str | None = None) -> Message:
        """Wait until a turn has ended; returns its assistant message, complete or not.

        A turn that waits for people (`requires_action`) has not ended: somebody may still decide, or bring a result,
        so it is waited for however long that takes. So are words that nobody answers: somebody may `regenerate`.
        `asyncio.timeout` bounds the wait.

        Args:
            thread_id: the thread.
            message_id: the user message that the turn answers, or the turn's own, on whatever branch; without it, the
                last turn that is shown.

        Raises:
            ThreadNotFound: if there is no such thread. One whose first words were just posted is waited for.
            UsageError: if the message, or the turn, is deleted meanwhile.
            Unreachable: if no worker has begun such a thread in time.
        """

        def find(view: View) -> Message | None:
            return view.turn(message_id) if message_id else view.last_turn

        try:
            return await self._turn(thread_id, message_id, find, is_settled)
        except ThreadNotFound:
            if message_id is None:
                raise
            # The words were posted to a new thread, which its workflow has yet to store.
            await self._until_stored(thread_id)
        return await self._turn(thread_id, message_id, find, is_settled)

    async def ask(self, thread_id: str, text: str, *, id: str | None = None, mode: Mode = "interrupt") -> str:
        """Send words and wait for the answer; returns its text after the last tool result.

        A turn that makes room for an event or for other words goes on in the next one, which is waited for; so are
        results from the user's side. Approvals are not: whoever asks has to decide, or to have somebody decide.

        Raises:
            TurnFailed: if the turn ended incomplete; or it waits for approvals, which its `status` tells:
                `requires_action`. Then it is still open: decide (`approvals`, `decide`) and `wait_settled`.
            NotTaken: if the words were not taken.
        """
        accepted = await self.send(thread_id, text, id=id, mode=mode)
        if refused := NotTaken.of(accepted.disposition, accepted.detail):
            raise refused
        answer = await self._turn(
            thread_id, accepted.message_id, lambda view: _final(view, accepted.message_id), _has_come_to_rest
        )
        if answer.status.state == "requires_action":
            calls = ", ".join(f"{call.tool} ({call.call_id})" for call in pending_approvals([answer]))
            raise TurnFailed(f"The turn waits for somebody to approve calls: {calls}.", answer.status)
        if answer.status.state == "incomplete":
            raise TurnFailed(answer.status.detail or f"The turn ended early: {answer.status.reason}.", answer.status)
        return answer_text(answer)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _send(self, thread_id: str, message: UserMessage) -> Accepted:
        accepted = await self._calls.update_with_start(thread_id, "send", message, Accepted, _named_after(message))
        if accepted.disposition == "refused":
            raise UsageError(accepted.detail or "The thread refused the message.")
        if accepted.disposition == "rejected":
            await self._open(thread_id)
            if message.mode != "reject":
                # It is about to be: the call that closes it waits for the others of its step.
                raise ThreadClosed.of(thread_id)
        return accepted

    async def _user_message(self, thread_id: str, text: str, id: str | None, **fields: Any) -> UserMessage:
        _checked(thread_id)
        if not text.strip():
            raise UsageError("The message is empty; write something.")
        check_object("metadata", fields.get("metadata") or {})
        message = made(UserMessage, id=_checked(id or new_id()), **fields)
        if is_large(text):
            await self._ensure_stored(thread_id, clip(text, PREVIEW_CHARS))
        inline, blob, sha256 = await self._texts.put(thread_id, text)
        return message.with_(text=inline, blob=blob, sha256=sha256)

    async def _ensure_stored(self, thread_id: str, title: str) -> None:
        """Begin a new thread before its first words: their blob needs a thread to belong to."""
        try:
            await self.store.get_thread(thread_id)
        except ThreadNotFound:
            await self._begin(thread_id, ThreadStart(title=title))

    async def _begin(self, thread_id: str, start: ThreadStart) -> None:
        await self._calls.start(thread_id, start)
        await self._until_stored(thread_id)

    async def _until_stored(self, thread_id: str) -> None:
        try:
            await self._calls.until_loaded(thread_id)
        except NoRunningWorkflow:
            await self.store.get_thread(thread_id)  # raises, unless the thread sleeps again already


def _named_after(message: UserMessage) -> ThreadStart:
    """How a thread begins with its first words: they are its title."""
    # A thread that exists keeps its title; words that wake it name the new run until the workflow knows better. To look
    # the title up here would take the database, and words may be sent while that is away.
    return ThreadStart(title=clip(message.text, PREVIEW_CHARS))


def _final(view: View, message_id: str) -> Message | None:
    """The turn that answers a message; of those that made room for others, the last one."""
    turn = view.answer(message_id)
    while turn and turn.status.reason == "steered" and (following := view.answer(turn.id)):
        turn = following
    return turn


def _has_come_to_rest(turn: Message) -> bool:
    if turn.status.state == "requires_action":
        return bool(pending_approvals([turn]))
    return is_settled(turn) and turn.status.reason != "steered"


_id = TypeAdapter[str](InputId)


def _checked(id: str) -> str:
    try:
        return _id.validate_python(id)
    except ValidationError as error:
        shown = clip(id, PREVIEW_CHARS)
        raise UsageError(
            f"{shown!r} cannot be an id: it has 1 to 200 characters, and no control characters."
        ) from error
