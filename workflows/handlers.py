"""Signals, updates and queries of a thread: what people and other threads can do to it from outside.

Handlers only put things into the mailbox and look at the state. What follows is for the loop (`workflows.thread`).
"""

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.contract import (
        CHOOSE,
        Approved,
        CallStatus,
        ChooseRequest,
        CompactResult,
        Stopped,
        ThreadStatus,
        TreeChanged,
    )
    from perdure.errors import ThreadClosed, UsageError
    from perdure.history import HistoryManager
    from perdure.history_state import HistoryState
    from perdure.inbox import InputKind, read_input
    from perdure.inputs import Accepted, TreeChange, UserMessage
    from perdure.policy import CHOOSE as CHOOSE_POLICY
    from perdure.policy import ErrorType
    from workflows.answers import Answer
    from workflows.background import Background
    from workflows.board import Board
    from workflows.calls import Calls
    from workflows.children import Children
    from workflows.compactions import Compactions
    from workflows.hooks import Hooks
    from workflows.mailbox import Mailbox
    from workflows.run_length import TASK, UPDATE, RunLength
    from workflows.status import thread_status


def refusal(error: UsageError) -> ApplicationError:
    """The failure that tells a caller what was wrong."""
    kind = ErrorType.CLOSED if isinstance(error, ThreadClosed) else ErrorType.USAGE
    return ApplicationError(str(error), type=kind, non_retryable=True)


class ThreadHandlers:
    """The state that a thread's handlers and its loop share, and the handlers."""

    def __init__(self) -> None:
        self._thread_id = ids.thread_id(workflow.info().workflow_id)
        self._agent = ""
        self._length = RunLength()
        self._board = Board()
        self._mailbox = Mailbox(self._board, self._length)
        self._history = HistoryManager(HistoryState(thread_id=self._thread_id))
        self._calls = Calls()
        self._background = Background(self._board)
        self._children = Children(self._thread_id, self._background, self._length)
        self._compactions = Compactions(self._thread_id, self._background, self._board, self._length)
        self._hooks = Hooks(self._thread_id, self._board, self._length)
        self._is_loaded = False
        self._is_leaving = False

    # Handlers take any number of inputs: one that is called with a wrong number fails its task, again and again.

    @workflow.signal
    def user_message(self, *message: Any) -> None:
        """Words of the user: `{"id": "m1", "text": "hi"}`, optionally with `"mode"`; or just the text."""
        self._mailbox.put("user_message", message)

    @workflow.signal
    def interrupt(self, *request: Any) -> None:
        """Stop what the thread and its child threads are doing; optionally `{"reason": "..."}`."""
        self._mailbox.put("interrupt", request)

    @workflow.signal
    def tool_result(self, *result: Any) -> None:
        """The result of an open call: `{"call_id": "call_...", "content": "..."}`, optionally with `"outcome"`."""
        self._mailbox.put("tool_result", result)

    @workflow.signal
    def event(self, *event: Any) -> None:
        """An event of a subscription: `{"id": "e1", "call_id": "call_...", "content": "..."}`."""
        self._mailbox.put("event", event)

    @workflow.signal
    def control(self, *control: Any) -> None:
        """`{"action": "close"}` or `"compact"`; `"cancel_subscription"`, `"resume_subscription"` with a `"call_id"`."""
        self._mailbox.put("control", control)

    @workflow.signal
    def compacted(self, *result: Any) -> None:
        """A compaction of this thread's conversation is over; its own workflow says so."""
        try:
            self._compactions.take(CompactResult.model_validate(result[0] if result else None))
        except ValidationError:
            self._board.problem("A signal `compacted` was refused: it is not for people to send.")

    @workflow.update
    async def send(self, message: Any) -> Accepted:
        """Like the signal `user_message`, answered with the message's id and what becomes of it."""
        content = read_input("user_message", message, str(workflow.uuid4()))
        assert isinstance(content, UserMessage)
        self._length.add(UPDATE + TASK)
        try:
            answer = await self._mailbox.send(content, lambda: self._history.phase)
        except UsageError as error:
            raise refusal(error) from error
        return Accepted(message_id=ids.input_message_id(self._thread_id, content.id), disposition=answer.disposition)

    @send.validator
    def _validate_send(self, message: Any) -> None:
        self._validate("user_message", message)

    @workflow.update
    async def regenerate(self, request: Any) -> TreeChanged:
        """Answer once more, beside the answer or below the words that are named: `{"message_id": "..."}`."""
        answer = await self._ask("regenerate", request)
        return TreeChanged(
            disposition=answer.disposition,
            head_id=answer.head_id,
            message_id=answer.head_id if answer.disposition in ("started", "interrupted") else None,
        )

    @regenerate.validator
    def _validate_regenerate(self, request: Any) -> None:
        self._validate("regenerate", request)

    @workflow.update
    async def change_tree(self, change: Any) -> TreeChanged:
        """Change the branches: `{"action": "switch", "message_id": "..."}`; or delete, reset, import, annotate."""
        answer = await self._ask("tree_change", change)
        return TreeChanged(disposition=answer.disposition, head_id=answer.head_id)

    @change_tree.validator
    def _validate_change_tree(self, change: Any) -> None:
        self._validate("tree_change", change)

    @workflow.update
    async def decide(self, approval: Any) -> Approved:
        """Decide whether a call may run: `{"call_id": "call_...", "approved": true}`, with `"reason"` if you like."""
        call_id = str(approval["call_id"])
        answer = await self._ask("approval", {**approval, "at": workflow.now().timestamp()})
        calls = self._history.open_turn.calls if self._history.open_turn else ()
        pending = tuple(call.call_id for call in calls if call.awaits_approval)
        return Approved(call_id=call_id, disposition=answer.disposition, pending=pending)

    @decide.validator
    def _validate_decide(self, approval: Any) -> None:
        self._validate("approval", approval)

    @workflow.update
    async def add_result(self, result: Any) -> TreeChanged:
        """Like the signal `tool_result`, answered; with `"message_id"` also for a call that nobody waits for."""
        answer = await self._ask("tool_result", result)
        return TreeChanged(disposition=answer.disposition, head_id=answer.head_id)

    @add_result.validator
    def _validate_add_result(self, result: Any) -> None:
        self._validate("tool_result", result)

    async def _ask(self, kind: InputKind, value: Any) -> Answer:
        self._length.add(UPDATE + TASK)
        try:
            content = read_input(kind, value, str(workflow.uuid4()))
            return await self._mailbox.send(content, lambda: self._history.phase)
        except UsageError as error:
            raise refusal(error) from error

    def _validate(self, kind: InputKind, value: Any) -> None:
        if self._is_leaving:
            raise ApplicationError("The thread is moving to a new run; send it again.", type=ErrorType.BUSY)
        try:
            content = read_input(kind, value, "unnamed")
        except UsageError as error:
            raise refusal(error) from error
        if self._history.state.closed and not (isinstance(content, TreeChange) and content.takes_away):
            raise refusal(ThreadClosed.of(self._thread_id))

    @workflow.update
    async def stop(self, *_: Any) -> Stopped:
        """Stop the turn that is under way, and all child threads; answered when the turn is settled and durable."""
        await workflow.wait_condition(lambda: self._is_loaded and not self._history.rests)
        turn = self._history.open_turn
        self._mailbox.put("interrupt", ())
        if turn is None:
            return Stopped()
        await workflow.wait_condition(lambda: self._is_settled(turn.turn))
        return Stopped(turn=turn.turn)

    @workflow.update
    async def choose(self, choice: Any) -> None:
        """Answer a question of a tool: `{"choice_id": "...", "selected": 0}`; without `selected` it is dismissed."""
        request = self._read_choice(choice)
        self._length.add(UPDATE + TASK)
        # Until then no new run begins. One that tried would wait for this handler, and the whole thread with it.
        with self._background.handling():
            await workflow.execute_activity(
                CHOOSE,
                request,
                start_to_close_timeout=CHOOSE_POLICY.start_to_close,
                retry_policy=CHOOSE_POLICY.retry,
                summary="hand over a choice",
            )

    @choose.validator
    def _validate_choose(self, choice: Any) -> None:
        self._read_choice(choice)

    def _read_choice(self, choice: Any) -> ChooseRequest:
        try:
            return ChooseRequest.model_validate({**choice, "thread_id": self._thread_id})
        except (TypeError, ValueError) as error:
            sentence = 'The choice was refused: give {"choice_id": "...", "selected": 0}, `selected` counted from 0.'
            raise refusal(UsageError(sentence)) from error

    @workflow.query
    def status(self) -> ThreadStatus:
        """Where the thread stands."""
        return thread_status(
            self._agent,
            self._history.state,
            self._mailbox.inbox,
            self._calls,
            self._board.problems,
            children=self._children.any,
        )

    @workflow.query
    def transcript(self) -> str:
        """The last messages, clipped; the whole conversation is in the store (`perdure history`)."""
        return self._board.transcript()

    @workflow.query
    def open_calls(self) -> list[CallStatus]:
        """Tool calls that wait for a result."""
        return list(self.status().open_calls)

    def _is_settled(self, turn: int) -> bool:
        state = self._history.state
        return (state.open is None or state.open.turn != turn) and not state.pending
