"""Threads as people steer them: turns are stopped, questions answered, subscriptions ended, threads closed.

What a thread has to know of that reaches one that is asleep too: it wakes for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import NoneType
from typing import Any, Literal, TypeVar, overload

from pydantic import ValidationError

from perdure.approval import ApprovalRequest, Decision, decision_of
from perdure.codec import Text, Wire, clip, dumps, is_json
from perdure.contract import PREVIEW_CHARS, Approved, Compacting, CompactResult, Stopped, ThreadStart
from perdure.errors import ThreadClosed, UsageError
from perdure.inputs import INLINE_BYTES, Approval, Control, Interrupt
from perdure.messages import Message
from perdure.ports import Store
from perdure.reader import ThreadReader
from perdure.records import Subscription
from perdure.stored_status import open_turn
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls
from perdure.waiting import no_question, question_over
from perdure.watch import call_of, is_settled

Made = TypeVar("Made", bound=Wire)


class ThreadControl(ThreadReader):
    """Steers threads.

    Args:
        store: where the conversations are.
        calls: the way to the threads' workflows.
        patience: how long a call waits for a thread before it raises `Unreachable`.
    """

    def __init__(self, store: Store, calls: ThreadCalls, patience: timedelta) -> None:
        super().__init__(store)
        self._calls = calls
        self._patience = patience

    async def interrupt(self, thread_id: str, reason: str | None = None) -> None:
        """Stop what the thread is doing, without waiting for it. Safe to repeat: an idle thread stays idle."""
        try:
            await self._calls.signal(thread_id, "interrupt", Interrupt(reason=reason))
        except NoRunningWorkflow:
            await self._interrupt_asleep(thread_id, reason)

    async def stop(self, thread_id: str) -> Stopped:
        """Stop what the thread is doing and wait until the turn is settled. Safe to repeat.

        Returns:
            The turn that was stopped, 0 if none was under way.

        Raises:
            Unreachable: if Temporal or the workers did not answer in time. Then it may be stopped later or not.
        """
        try:
            return await self._calls.update(thread_id, "stop", Stopped)
        except NoRunningWorkflow:
            turn = await self._interrupt_asleep(thread_id)
        if turn is None:
            return Stopped()

        async def is_stopped() -> bool:
            # By the store's word and not by what is shown: the turn may be on another branch.
            now = open_turn(await self.store.load_tail(thread_id, processed=0))
            return now is None or now.id != turn.id

        await self._until_done(thread_id, is_stopped)
        return Stopped(turn=turn.turn)

    async def decide(
        self,
        thread_id: str,
        call_id: str,
        approved: bool | None = None,
        *,
        option_id: str | None = None,
        text: Text | None = None,
        answers: dict[str, Any] | None = None,
        reason: Text | None = None,
        by: Text | None = None,
    ) -> Approved:
        """Answer the question whether a call may run (`approvals` has those that wait). Safe to repeat.

        The first answer stays. The turn goes on when nothing else is lacking; of the others that it asks, each is
        decided by itself.

        Args:
            thread_id: the thread, which is woken if need be.
            call_id: the call.
            approved: yes or no; left out if what else is said tells.
            option_id: the option that was chosen; one that ends in `_always` is remembered for calls to come.
            text: words of one's own, where they are asked for.
            answers: to the request's questions by their ids: `{"option_ids": [...], "text": "..."}`.
            reason: why; the model is told why a call was denied.
            by: who decided, for the record.

        Raises:
            ThreadNotFound, ThreadClosed: there is no such thread, or it takes nothing more.
            UsageError: if the call does not wait for a decision on the shown branch, others were faster and said
                something else, or this is no answer to what is asked.
            Unreachable: if Temporal or the workers did not answer in time. Then it may be decided or not.
        """
        check_object("answers", answers or {})
        said = {"approved": approved, "option_id": option_id, "text": text, "answers": answers, "reason": reason}
        approval = made(Approval, call_id=call_id, by=by, **said)
        start = await self._open(thread_id)
        try:
            decided = await self._calls.update_with_start(thread_id, "decide", approval, Approved, start)
        except UsageError as refused:
            if (reason := await self._refusal(thread_id, approval, str(refused))) is None:
                return Approved(call_id=call_id, disposition="duplicate")
            raise UsageError(reason) from refused
        if decided.disposition not in ("settled", "duplicate"):
            raise UsageError(f"Nobody waits for a decision about {clip(call_id, PREVIEW_CHARS)!r} any more.")
        return decided

    async def approve(
        self, thread_id: str, call_id: str, *, reason: Text | None = None, by: Text | None = None
    ) -> Approved:
        """Let a call run. As `decide`, which also chooses options and answers questions."""
        return await self.decide(thread_id, call_id, True, reason=reason, by=by)

    async def deny(
        self, thread_id: str, call_id: str, reason: Text | None = None, *, by: Text | None = None
    ) -> Approved:
        """Keep a call from running; the model reads the reason. As `decide`."""
        return await self.decide(thread_id, call_id, False, reason=reason, by=by)

    async def forget_decision(self, thread_id: str, tool: Text, arguments: str | None = None) -> None:
        """Withdraw what was decided for calls to come (`lasting_decisions`), and wait until people are asked again.

        Args:
            thread_id: the thread.
            tool: the tool that it is for.
            arguments: the digest of the arguments, as it is listed, if it is for calls with these alone.

        Raises:
            ThreadNotFound, ThreadClosed: there is no such thread, or it takes nothing more.
            UsageError: if no such decision holds.
            Unreachable: if Temporal or the workers did not answer in time. Then it may be withdrawn later.
        """
        await self._open(thread_id)

        async def is_forgotten() -> bool:
            known = await self.lasting_decisions(thread_id)
            return all((one.tool, one.arguments) != (tool, arguments) for one in known)

        if await is_forgotten():
            raise UsageError(f"Nothing was decided for calls of {clip(tool, PREVIEW_CHARS)!r} to come.")
        control = Control(action="forget_decision", tool=tool, arguments=arguments)
        await self._control(thread_id, control, is_forgotten)

    async def choose(self, thread_id: str, choice_id: str, selected: int | None = None) -> None:
        """Answer a question of a tool (`status` has those that wait), and wait until the tool's server has it.

        Args:
            thread_id: the thread, which is woken if need be.
            choice_id: the question.
            selected: the choice, counted from 0; None dismisses the question, which means its default.

        Raises:
            UsageError: if that question does not wait, it has no such choice, or there is no server any more to tell.
            PerdureError: if the server did not take it; the question stays.
            Unreachable: if Temporal or the workers did not answer in time. Then it may be answered or not.
        """
        start = await self._open(thread_id)
        choice = next((one for one in await self.store.get_choices(thread_id) if one.id == choice_id), None)
        if choice is None:
            raise UsageError(f"No question {clip(choice_id, PREVIEW_CHARS)!r} waits in the thread {thread_id!r}.")
        if selected is not None and not 0 <= selected < len(choice.choices):
            raise UsageError(f"There is no choice {selected}: the question has {len(choice.choices)}, counted from 0.")
        answer = {"choice_id": choice_id, "selected": selected}
        await self._calls.update_with_start(thread_id, "choose", answer, NoneType, start)

    async def close_thread(self, thread_id: str) -> None:
        """Close a thread for good and wait until it is: its turn is stopped, its subscriptions end. Safe to repeat.

        Raises ThreadNotFound, and Unreachable if no worker did it in time. Then it may be closed later.
        """

        async def is_closed() -> bool:
            return (await self.store.get_thread(thread_id)).closed_at is not None

        await self._control(thread_id, Control(action="close"), is_closed)

    @overload
    async def compact(self, thread_id: str, *, wait: Literal[False] = False) -> None: ...

    @overload
    async def compact(self, thread_id: str, *, wait: Literal[True]) -> CompactResult: ...

    async def compact(self, thread_id: str, *, wait: bool = False) -> CompactResult | None:
        """Have the conversation made shorter for the model, however short it is.

        It happens beside the conversation, as the agent's `Compaction` says; one at a time, so one that is under way is
        the one that is asked for. What was said stays as it is, for everybody but the model.

        Args:
            thread_id: the thread, which is woken if need be.
            wait: wait until it is over, however long that takes; `asyncio.timeout` bounds the wait. Without it, where
                it does not work time and again, the `problems` of the thread's status say so.

        Returns:
            How it went, if it is waited for. A compaction that fails is an outcome and no error: nothing has changed.

        Raises:
            ThreadNotFound, ThreadClosed: there is no such thread, or it takes nothing more.
            Unreachable: if Temporal or the workers did not take it in time. Then it may begin later.
        """
        start = await self._open(thread_id)
        if not wait:
            await self._calls.signal_with_start(thread_id, "control", Control(action="compact"), start)
            return None
        begun = await self._calls.update_with_start(thread_id, "compact", None, Compacting, start)
        return begun.result or await self._calls.compacted(thread_id, begun.run_id)

    async def cancel_subscription(self, thread_id: str, call_id: str) -> None:
        """End a subscription and wait until it is; what else it sends is dropped, and its tool's server is told.

        Raises UsageError if the call has no active subscription, and as `close_thread` does.
        """
        await self._subscription(thread_id, call_id)

        async def is_cancelled() -> bool:
            return all(one.call_id != call_id for one in await self.store.get_active_subscriptions(thread_id))

        await self._control(thread_id, Control(action="cancel_subscription", call_id=call_id), is_cancelled)

    async def resume_subscription(self, thread_id: str, call_id: str) -> None:
        """Let a paused subscription send events again; its counts begin anew. Safe to repeat.

        Raises UsageError if the call has no active subscription, and as `close_thread` does.
        """

        async def is_resumed() -> bool:
            return (await self._subscription(thread_id, call_id)).paused is None

        await self._control(thread_id, Control(action="resume_subscription", call_id=call_id), is_resumed)

    async def _refusal(self, thread_id: str, approval: Approval, said: str) -> str | None:
        """Why a decision is refused; None if it is the one that was made.

        The answer to an earlier try may be lost, and the turn may have gone on with what was decided. And the thread
        knows the calls of its open turn alone: what became of the others that are shown is in the store.
        """
        path = await self.store.load_history_with_ancestors(thread_id, whole=True)
        found = ((message, call) for message in path.messages if (call := call_of(message, approval.call_id)))
        message, call = next(found, (None, None))
        if message is None or call is None or call.approval is None:
            return no_question(approval.call_id)
        if _is_decided(call.approval, call.decision, approval):
            return None
        return question_over(message, call) if is_settled(message) and said == no_question(call.call_id) else said

    async def _open(self, thread_id: str) -> ThreadStart:
        """How a run of a stored thread begins that this call wakes. Raises ThreadNotFound, ThreadClosed."""
        thread = await self.store.get_thread(thread_id)
        if thread.closed_at is not None:
            raise ThreadClosed.of(thread_id)
        return ThreadStart(title=thread.title)

    async def _subscription(self, thread_id: str, call_id: str) -> Subscription:
        active = await self.store.get_active_subscriptions(thread_id)
        found = next((one for one in active if one.call_id == call_id), None)
        if found is None:
            raise UsageError(f"{clip(call_id, PREVIEW_CHARS)!r} is no active subscription of the thread {thread_id!r}.")
        return found

    async def _control(self, thread_id: str, control: Control, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Tell a thread what a person decided, and wait until that is stored; one that is asleep wakes for it."""
        thread = await self.store.get_thread(thread_id)
        if await is_done():
            return
        await self._calls.signal_with_start(thread_id, "control", control, ThreadStart(title=thread.title))
        await self._until_done(thread_id, is_done)

    async def _until_done(self, thread_id: str, is_done: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                await self._until(thread_id, is_done)
        except TimeoutError as error:
            raise self._calls.no_worker() from error

    async def _interrupt_asleep(self, thread_id: str, reason: str | None = None) -> Message | None:
        """Wake a thread that sleeps with its turn open, or has child threads, to stop them; returns what was open."""
        tail = await self.store.load_tail(thread_id, processed=0)
        turn = open_turn(tail)
        if turn or tail.children:
            start = ThreadStart(title=tail.thread.title)
            await self._calls.signal_with_start(thread_id, "interrupt", Interrupt(reason=reason), start)
        return turn


def _is_decided(asked: ApprovalRequest, decision: Decision | None, approval: Approval) -> bool:
    """Whether a decision is just the one that an answer would be."""
    try:
        return decision is not None and decision_of(asked, approval, 0.0).digest == decision.digest
    except UsageError:
        return False


def made(kind: type[Made], **fields: Any) -> Made:
    """What is sent to a thread. Raises UsageError with a sentence if a field cannot be what was given."""
    try:
        return kind(**fields)
    except ValidationError as error:
        wrong = error.errors()[0]
        given, field = clip(str(wrong["input"]), PREVIEW_CHARS), ".".join(map(str, wrong["loc"]))
        raise UsageError(f"{given!r} cannot be the {field}: {wrong['msg']}.") from error


def check_object(name: str, values: dict[str, Any]) -> None:
    """Raises UsageError if an object that is sent to a thread is not JSON, or too large for that."""
    if not is_json(values):
        raise UsageError(f"The {name} must be a JSON object.")
    if len(dumps(values)) > INLINE_BYTES:
        raise UsageError(f"The {name} must be at most {INLINE_BYTES:,} bytes of JSON; put the rest into words.")
