"""The Python client: what people and programs do with threads.

Inputs go to the thread's workflow through Temporal, what steers it included (`perdure.control`); everything that is
read comes from the store (`perdure.reader`), except for what the workflow alone knows: what it does right now.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from temporalio.client import Client
from temporalio.runtime import Runtime

from perdure.attachments import File
from perdure.branches import ThreadBranches
from perdure.bundle import put_runtime_on_path
from perdure.codec import clip
from perdure.connection import connect_temporal
from perdure.contract import DEFAULT_TASK_QUEUE, PREVIEW_CHARS, CallStatus, ThreadStatus
from perdure.errors import NotTaken, OutputMissing, ThreadNotFound, TurnFailed
from perdure.inputs import Mode
from perdure.messages import Message
from perdure.ports import Store
from perdure.reader import asked
from perdure.results import ThreadResults
from perdure.settings import load_settings, load_temporal_config
from perdure.stored_status import stored_status
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls
from perdure.waiting import pending_approvals
from perdure.watch import View, answer_text, is_settled
from perdure.words import ThreadWords

Output = TypeVar("Output")

PATIENCE: Final = timedelta(seconds=60)
"""How long a call goes on trying while Temporal or the workers are away, unless a client is made with another."""


class PerdureClient(ThreadWords, ThreadBranches, ThreadResults):
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

    # -- reading -----------------------------------------------------------------------------------------------

    async def status(self, thread_id: str) -> ThreadStatus:
        """What the thread is doing, and what of that is tried again (`retrying`), with the reason.

        One that hibernates is not woken for the answer.

        Raises:
            ThreadNotFound: if there is no such thread.
            Unreachable: if its workflow runs and no worker answers for it.
        """
        try:
            status = await self._calls.query(thread_id, "status", ThreadStatus)
            # Not only while a turn runs: loading, hooks after a turn and compactions may stand still too.
            status = status.with_(retrying=await self._calls.retrying(thread_id))
            if status.agent:
                # Calls that were stopped or failed are counted beside the workflow, so only the store knows all. Of a
                # thread that is new it knows nothing until that has been loaded.
                status = status.with_(usage=(await self.store.get_thread(thread_id)).usage)
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

    @overload
    async def ask(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        output: None = None,
    ) -> str: ...

    @overload
    async def ask(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        output: type[Output],
    ) -> Output: ...

    async def ask(
        self,
        thread_id: str,
        text: str,
        *,
        id: str | None = None,
        mode: Mode = "interrupt",
        files: Sequence[File] = (),
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        output: type[Output] | None = None,
    ) -> Output | str:
        """Send words and wait for the answer; returns its text after the last tool result, or what that holds.

        A turn that makes room for an event or for other words goes on in the next one, which is waited for; so are
        results from the user's side. Approvals are not: whoever asks has to decide, or to have somebody decide.
        `files`, `model`, `settings` and `parent_id` are those of `send`.

        Args:
            thread_id: the thread.
            text: the words.
            id: by which a repetition is known.
            mode: what they do to a turn that is under way.
            files: what goes along.
            model: what answers.
            settings: how.
            parent_id: what the words follow.
            output: what the answer is read as, of an agent that ends its turns with that (`Agent(output=...)`).

        Raises:
            TurnFailed: if the turn ended incomplete; or it waits for approvals, which its `status` tells:
                `requires_action`. Then it is still open: decide (`approvals`, `decide`) and `wait_settled`.
            OutputMissing: if the turn is complete, and its answer is not what `output` says.
            NotTaken: if the words were not taken.
        """
        accepted = await self.send(
            thread_id, text, id=id, mode=mode, files=files, model=model, settings=settings, parent_id=parent_id
        )
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
        return answer_text(answer) if output is None else _read_output(answer, output)


def _read_output(answer: Message, output: type[Output]) -> Output:
    """What the answer says, as the object that it is the JSON of."""
    text = answer_text(answer)
    try:
        return TypeAdapter(output).validate_json(text)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        why = f"{place}: {wrong['msg']}" if place else wrong["msg"]
        raise OutputMissing(
            f"The turn did not end with {output.__name__} ({why}); it ended with: "
            f"{clip(text, PREVIEW_CHARS) or 'nothing'}. Does the agent have that output?",
            answer.status,
        ) from error


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
