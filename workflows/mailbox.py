"""What reaches a thread: signals and updates go into the inbox, and their senders are told what became of them."""

from collections.abc import Callable
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.errors import UsageError
    from perdure.history_state import Phase
    from perdure.inbox import Inbox, InputKind, read_input
    from perdure.inputs import AnyInput, Disposition, Event, UserMessage
    from workflows.answers import Answer, Answers
    from workflows.board import Board
    from workflows.run_length import SIGNAL, TASK, RunLength


class Mailbox:
    """The inbox with who waits for an answer. Handlers put, one loop takes."""

    def __init__(self, board: Board, length: RunLength) -> None:
        self.inbox = Inbox()
        self._board = board
        self._length = length
        self._answers = Answers()

    def put_first(self, waiting: tuple[AnyInput, ...]) -> None:
        """Inputs that are older than all that came in here."""
        self.inbox = Inbox((*waiting, *self.inbox.waiting))

    def put_carried(self, waiting: tuple[AnyInput, ...]) -> None:
        """What the run before has handed on: what came in here already is newer, and is judged once more after it.

        An inbox that did not know yet what was carried has held it to no bound. It is not for what goes back after a
        refused batch: what came meanwhile has been taken, and is not to be lost for that.
        """
        newer, self.inbox = self.inbox.waiting, Inbox(waiting)
        for content in newer:
            try:
                known = self.inbox.put(content)
            except UsageError as error:
                self._turn_away(content, error)
            else:
                self.tell(content, Answer(known) if known else None)

    def put(self, kind: InputKind, values: tuple[Any, ...]) -> None:
        """Take a signal. It has no one to answer to, so what is wrong with it is shown in the status and the UI."""
        self._length.add(SIGNAL + TASK)
        try:
            if len(values) > 1:
                raise UsageError(f"The {kind} was refused: it takes one input, and {len(values)} came.")
            content = read_input(kind, values[0] if values else None, str(workflow.uuid4()))
            if isinstance(content, Event):
                content = content.with_(at=workflow.now().timestamp())
        except UsageError as error:
            self._board.problem(str(error), about=f"{kind} refused")
            return
        try:
            disposition = self.inbox.put(content)
        except UsageError as error:
            self._turn_away(content, error)
            return
        if disposition == "conflict":
            self.tell(content, Answer(disposition))

    async def send(self, content: AnyInput, phase: Callable[[], Phase]) -> Answer:
        """Put an input and wait until it is decided what becomes of it.

        Raises UsageError if it is refused, or too many wait.
        """
        self._answers.expect(content)
        try:
            known = self.inbox.put(content)
            if known is not None:
                return Answer(known)
            await workflow.wait_condition(lambda: self._answer(content, phase()) is not None)
            answer = self._answer(content, phase())
            self._answers.take(content)
        finally:
            self._answers.forget(content)
        assert answer is not None
        if answer.disposition == "refused":
            raise UsageError(answer.detail or "The request was refused.")
        return answer

    def tell(self, content: AnyInput, answer: Answer | None) -> None:
        """Say what became of an input: to its sender, or, since a signal has none, where people look."""
        if answer is None:
            return
        if self._answers.is_expected(content):
            self._answers.give(content, answer)
        elif answer.detail is not None:
            self._board.problem(answer.detail, about=f"{content.kind} refused")
        if isinstance(content, UserMessage | Event):
            self._tell(content, answer.disposition)

    def _turn_away(self, content: AnyInput, error: UsageError) -> None:
        if self._answers.is_expected(content):
            self._answers.give(content, Answer("refused", str(error)))
        else:
            # These come in streams.
            self._board.problem(str(error), about=f"{content.kind} lost")

    def _tell(self, content: UserMessage | Event, disposition: Disposition) -> None:
        if disposition in ("started", "interrupted", "steered"):
            words = content.text if isinstance(content, UserMessage) else content.content
            self._board.line("User" if isinstance(content, UserMessage) else "Event", words)
        if not self._answers.is_expected(content) and disposition in ("conflict", "rejected", "dropped"):
            self._board.problem(_refused(content, disposition), about=f"{content.kind} {disposition}")

    def _answer(self, content: AnyInput, phase: Phase) -> Answer | None:
        """What became of an input, None while that is not decided."""
        known = self._answers.get(content)
        if known or self.inbox.has_ready(phase) or not isinstance(content, UserMessage):
            return known
        waits = self.inbox.disposition(content.id)
        return Answer(waits) if waits else None


def _refused(content: UserMessage | Event, disposition: Disposition) -> str:
    name = f"The event {content.id} of {content.call_id}" if isinstance(content, Event) else f"The message {content.id}"
    if disposition == "conflict":
        return f"{name} came again with other content; the first content stays."
    return f"{name} was {disposition}."
