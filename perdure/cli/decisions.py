"""Calls that somebody has to approve, as they meet the person at the terminal: asked one by one, answered by a line."""

from typing import Any

from perdure.approval import ApprovalQuestion
from perdure.cli.approval_words import (
    Said,
    call_line,
    option_typed,
    question_lines,
    read_answer,
    read_question,
    request_lines,
    ways,
)
from perdure.cli.conversation import Conversation, Output
from perdure.cli.printable import one_line
from perdure.waiting import PendingApproval


class Decisions:
    """The approvals of a conversation, the oldest first. What others decide is told by the conversation itself."""

    def __init__(self, conversation: Conversation, output: Output) -> None:
        self._conversation = conversation
        self._output = output
        self._asked: set[str] = set()
        self._answers: dict[str, Any] = {}
        self._to_confirm: str | None = None

    @property
    def current(self) -> PendingApproval | None:
        """The call that the next answer belongs to."""
        return next(iter(self._conversation.view.approvals), None)

    def show(self) -> None:
        """Ask what was not asked yet. A question that comes back, since its branch does, is asked again."""
        self._asked &= {approval.call_id for approval in self._conversation.view.approvals}
        current = self.current
        if current is None or current.call_id in self._asked:
            return
        self._asked.add(current.call_id)
        self._answers, self._to_confirm = {}, None
        lines = [f"? {call_line(current)}", *self._lines(current)]
        self._output.line("\n".join([*lines, "  /say TEXT says something to the thread instead."]), "yellow")

    def read(self, typed: str) -> Said | None:
        """What was typed at the current call; None if that asks more questions, or wants it confirmed.

        Raises:
            UsageError: how to answer, if it is no answer.
        """
        current = self.current
        assert current is not None, "bug: an answer without a question"
        question = self._question(current)
        if question is None:
            return self._confirmed(typed, current, read_answer(typed, current.request))
        if not typed.strip() and current.request.dismissible:
            return Said(approved=False)
        self._answers[question.id] = read_question(typed, question)
        if (following := self._question(current)) is None:
            return Said(answers=self._answers)
        self._output.line("\n".join(question_lines(following)), "yellow")
        return None

    def _question(self, current: PendingApproval) -> ApprovalQuestion | None:
        """The first question without an answer."""
        return next((one for one in current.request.questions if one.id not in self._answers), None)

    def _lines(self, current: PendingApproval) -> list[str]:
        question = self._question(current)
        if question:
            return question_lines(question)
        return [*request_lines(current.request), f"  {ways(current.request)}"]

    def _confirmed(self, typed: str, current: PendingApproval, said: Said) -> Said | None:
        """An option that wants to be confirmed is chosen by typing it twice."""
        option = option_typed(said.option_id or "", current.request.options)
        if option is None or not option.confirm or self._to_confirm == option.id:
            return said
        self._to_confirm = option.id
        self._output.line(f"  {one_line(typed.strip())} once more confirms it.", "yellow")
        return None
