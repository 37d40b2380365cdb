"""Threads in a memory store, and a way to their workflows that only notes what is sent."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

from typing_extensions import override

from perdure.batch import AppendMessage, CommitStep, Operation, SetStatus, SyncBatch
from perdure.contract import ThreadStart
from perdure.errors import Unreachable
from perdure.inputs import AnyInput
from perdure.messages import Message, Status, TextPart, ToolCallPart
from perdure.ports import Store
from perdure.records import StepOutcome, ThreadRecord
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls

Sent = tuple[str, str, AnyInput]
"""A thread, the name of a signal, and its content."""


class FakeCalls(ThreadCalls):
    """Notes signals. A thread in `asleep` has no running workflow; what is away fails `away` times.

    `before` is called before each signal is taken or refused.
    """

    def __init__(self, *asleep: str) -> None:
        super().__init__(cast(Any, None), "none", timedelta())
        self.asleep = set(asleep)
        self.sent: list[Sent] = []
        self.woken: list[str] = []
        self.away = 0
        self.before: Callable[[str, str], Awaitable[None]] | None = None

    @override
    async def signal(self, thread_id: str, signal: str, content: object) -> None:
        await self._reach(thread_id, signal)
        if thread_id in self.asleep:
            raise NoRunningWorkflow(f"no workflow runs for {thread_id}")
        self.sent.append((thread_id, signal, cast(AnyInput, content)))

    @override
    async def signal_with_start(
        self, thread_id: str, signal: str, content: object, start: ThreadStart | None = None
    ) -> None:
        await self._reach(thread_id, signal)
        if thread_id in self.asleep:
            self.woken.append(thread_id)
        self.sent.append((thread_id, signal, cast(AnyInput, content)))

    async def _reach(self, thread_id: str, signal: str) -> None:
        if self.before is not None:
            await self.before(thread_id, signal)
        if self.away > 0:
            self.away -= 1
            raise Unreachable("Temporal is away.")


async def begin_turn(store: Store, thread_id: str, *calls: ToolCallPart) -> None:
    """Somebody speaks and a turn opens; with calls its step is committed, and they are open."""
    thread = await store.get_thread(thread_id)
    turn = thread.turn + 1
    question = Message(id=f"{thread_id}-u{turn}", thread_id=thread_id, role="user", parts=(TextPart(text="hi"),))
    answer = Message(
        id=f"{thread_id}-a{turn}", thread_id=thread_id, role="assistant", turn=turn, status=Status(state="running")
    )
    opening = (AppendMessage(message=question), AppendMessage(message=answer))
    await _sync(store, thread, 1, *opening)
    if calls:
        await store.begin_step(thread_id, turn, 0, 1)
        await store.finish_step(thread_id, turn, 0, 1, calls, StepOutcome(finish="tool_calls"), [])
        await _sync(store, thread, 2, CommitStep(message_id=answer.id, start=0, turn=turn, step=0))


async def end_turn(store: Store, thread_id: str) -> None:
    """The turn that is open settles without having said anything."""
    thread = await store.get_thread(thread_id)
    await _sync(store, thread, 1, SetStatus(message_id=f"{thread_id}-a{thread.turn}", status=Status()))


async def _sync(store: Store, thread: ThreadRecord, ahead: int, *operations: Operation) -> None:
    number = thread.version + ahead
    batch = SyncBatch(thread_id=thread.thread_id, number=number, sync_id=f"s{number}", operations=operations)
    await store.append_messages(batch)
