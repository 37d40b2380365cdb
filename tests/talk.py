"""A conversation without a worker: what workers write to a store, one small action after the other."""

from perdure.approval import Decision
from perdure.batch import (
    AppendMessage,
    CommitResults,
    CommitStep,
    Decide,
    DeleteMessage,
    Operation,
    SetStatus,
    ShowInterim,
    StoreLateResult,
    SwitchBranch,
    SyncBatch,
)
from perdure.messages import Message, Part, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import StepOutcome, ThreadRecord
from perdure.turn_buffer import Chunk

THREAD = "t1"


class Talk:
    """Drives one thread of a store through turns, as a worker would, one small action after the other."""

    @classmethod
    async def begin(cls, store: Store) -> "Talk":
        """A thread in which nothing was said."""
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        return cls(store)

    def __init__(self, store: Store) -> None:
        self.store = store
        self.version = 0
        self.turn = 0
        self.step = 0
        self.attempt = 0
        self.parts = 0
        self.running = False
        self.calls: list[str] = []

    async def sync(self, *operations: Operation) -> None:
        """Apply operations in one batch."""
        self.version += 1
        batch = SyncBatch(thread_id=THREAD, number=self.version, sync_id=f"s{self.version}", operations=operations)
        await self.store.append_messages(batch)

    @property
    def message_id(self) -> str:
        """The assistant message of the turn."""
        return f"a{self.turn}"

    async def say(self, text: str, beside: str | None = None) -> None:
        """The user speaks and a turn opens; in place of another message, if one is named."""
        self.turn += 1
        self.step = self.attempt = self.parts = 0
        self.running = True
        question = Message(
            id=f"u{self.turn}", thread_id=THREAD, role="user", turn=self.turn, parts=(TextPart(text=text),)
        )
        answer = Message(
            id=self.message_id, thread_id=THREAD, role="assistant", turn=self.turn, status=Status(state="running")
        )
        await self.sync(AppendMessage(message=question, beside=beside), AppendMessage(message=answer))

    async def note(self, text: str) -> None:
        """The user says something that nobody answers."""
        question = Message(id=f"n{self.version}", thread_id=THREAD, role="user", parts=(TextPart(text=text),))
        await self.sync(AppendMessage(message=question))

    async def is_shown(self) -> bool:
        """Whether the turn goes on, on the branch that is shown. Words that come there settle it first."""
        shown = {message.id for message in (await self.store.load_history_with_ancestors(THREAD)).messages}
        return self.running and self.message_id in shown

    async def switch(self, message_id: str) -> None:
        """The branch of a message is shown."""
        await self.sync(SwitchBranch(message_id=message_id, input_id=f"i{self.version}", digest=""))

    async def delete(self, message_id: str) -> None:
        """A message goes; the turn, if it is its message, is over."""
        await self.sync(DeleteMessage(message_id=message_id, input_id=f"i{self.version}", digest=""))
        if message_id == self.message_id:
            self.running, self.calls, self.attempt = False, [], 0

    async def pause(self, paused: bool = True) -> None:
        """The turn waits for people, or no longer."""
        status = Status(state="requires_action" if paused else "running")
        await self.sync(SetStatus(message_id=self.message_id, status=status))

    async def decide(self, call_id: str, decision: Decision) -> None:
        """Somebody decides about a call."""
        await self.sync(Decide(call_id=call_id, decision=decision))

    async def show_interim(self, call_id: str, content: str) -> None:
        """A call has something to show and goes on."""
        await self.sync(ShowInterim(result=ToolResultPart(call_id=call_id, content=content)))

    async def bring_late(self, message_id: str, call_id: str, content: str) -> None:
        """A result comes for a call that nobody waits for any more."""
        result = ToolResultPart(call_id=call_id, content=content)
        await self.sync(StoreLateResult(message_id=message_id, result=result))

    async def stream(self, chunks: list[Chunk]) -> None:
        """The model says something more."""
        self.attempt = self.attempt or 1
        await self.store.append_chunks(THREAD, self.turn, self.step, self.attempt, chunks)

    async def retry(self) -> None:
        """The model call is tried again."""
        self.attempt += 1
        await self.store.begin_step(THREAD, self.turn, self.step, self.attempt)

    async def commit(self, parts: tuple[Part, ...]) -> None:
        """The model call ends with exactly these parts, and is committed; without calls the turn is complete."""
        at = (THREAD, self.turn, self.step, self.attempt or 1)
        parts = tuple(part.with_(step=self.step) for part in parts)
        await self.store.finish_step(*at, parts, StepOutcome(), [])
        self.calls = [part.call_id for part in parts if isinstance(part, ToolCallPart)]
        operations: list[Operation] = [
            CommitStep(message_id=self.message_id, start=self.parts, turn=self.turn, step=self.step)
        ]
        self.parts += len(parts)
        if not self.calls:
            operations.append(SetStatus(message_id=self.message_id, status=Status()))
            self.running = False
        await self.sync(*operations)
        self.step += 1
        self.attempt = 0

    async def settle_calls(self) -> None:
        """All calls run and return; the last one is interrupted."""
        for call_id in self.calls[:-1]:
            await self.store.start_call(THREAD, call_id)
            await self.store.stage_result(THREAD, ToolResultPart(call_id=call_id, content=f"result of {call_id}"))
        await self._commit_results()

    async def stop(self) -> None:
        """The user stops the turn, wherever it is."""
        if self.calls:
            await self._commit_results()
        operations: list[Operation] = []
        if self.attempt:
            operations.append(
                CommitStep(message_id=self.message_id, start=self.parts, turn=self.turn, step=self.step, sealed=True)
            )
        status = Status(state="incomplete", reason="cancelled")
        await self.sync(*operations, SetStatus(message_id=self.message_id, status=status))
        self.running, self.attempt = False, 0

    async def _commit_results(self) -> None:
        last = ToolResultPart(call_id=self.calls[-1], outcome="interrupted", content="stopped")
        made = tuple(last.with_(call_id=call_id) for call_id in self.calls)
        call_ids = tuple(self.calls)
        await self.sync(CommitResults(message_id=self.message_id, start=self.parts, call_ids=call_ids, results=made))
        self.parts += len(self.calls)
        self.calls = []
