"""A thread whose turn waits for the results of calls, as the workflow would have stored it."""

from perdure import ids
from perdure.batch import (
    AppendMessage,
    CloseThread,
    CommitResults,
    CommitStep,
    Operation,
    RemoveSubscription,
    SyncBatch,
    TrackSubscription,
)
from perdure.messages import Message, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import StepOutcome, ThreadRecord


class WaitingThread:
    """A thread with `calls` open calls, whose ids are in `calls`; `store` is where it is."""

    def __init__(self, store: Store, thread_id: str, calls: int) -> None:
        self.thread_id = thread_id
        self.calls = tuple(ids.call_id(thread_id, 1, 0, index) for index in range(calls))
        self.store = store
        self._message_id = ids.turn_message_id(thread_id, 1)
        self._version = 0

    @classmethod
    async def stored(cls, store: Store, thread_id: str, calls: int = 1) -> "WaitingThread":
        """Store it."""
        thread = cls(store, thread_id, calls)
        await store.create_thread(ThreadRecord(thread_id=thread_id, agent="a", title="The title"))
        user = Message(id=f"{thread_id}-u", thread_id=thread_id, role="user", parts=(TextPart(text="go"),))
        answer = Message(
            id=thread._message_id, thread_id=thread_id, role="assistant", turn=1, status=Status(state="running")
        )
        await thread._sync(AppendMessage(message=user), AppendMessage(message=answer))
        parts = tuple(ToolCallPart(call_id=call_id, tool="ask") for call_id in thread.calls)
        await store.finish_step(thread_id, 1, 0, 1, parts, StepOutcome(finish="tool_calls"), [])
        await thread._sync(CommitStep(message_id=thread._message_id, start=0, turn=1, step=0))
        return thread

    async def settle(self, *, subscribed: bool = False) -> None:
        """All calls get their result; with `subscribed` the first one goes on sending events."""
        results = tuple(ToolResultPart(call_id=call_id, content="done") for call_id in self.calls)
        operations: list[Operation] = [
            CommitResults(message_id=self._message_id, start=len(self.calls), call_ids=self.calls, results=results)
        ]
        if subscribed:
            operations.append(TrackSubscription(call_id=self.calls[0], tool="ask"))
        await self._sync(*operations)

    async def unsubscribe(self) -> None:
        """The subscription of the first call ends."""
        await self._sync(RemoveSubscription(call_id=self.calls[0]))

    async def pause(self, reason: str | None, *, call: int = 0) -> None:
        """The subscription of a call takes no more events; without a reason it does again."""
        await self._sync(TrackSubscription(call_id=self.calls[call], tool="ask", paused=reason))

    async def close(self) -> None:
        """Close the thread."""
        await self._sync(CloseThread())

    async def _sync(self, *operations: Operation) -> None:
        self._version += 1
        batch = SyncBatch(
            thread_id=self.thread_id, number=self._version, sync_id=f"s{self._version}", operations=operations
        )
        assert not (await self.store.append_messages(batch)).refused
