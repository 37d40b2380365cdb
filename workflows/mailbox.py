"""What reaches a thread: signals and updates go into the inbox, and their senders are told what became of them."""

from collections.abc import Callable
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.errors import UsageError
    from perdure.history_state import Phase
    from perdure.inbox import Inbox, InputKind, read_input
    from perdure.inputs import AnyInput, Disposition, Event, UserMessage
    from workflows.answers import Answers
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
            self._board.problem(str(error))
            return
        try:
            disposition = self.inbox.put(content)
        except UsageError as error:
            # These come in streams.
            self._board.problem(str(error), about=f"{kind} lost")
            return
        if disposition == "conflict":
            self.tell(content, disposition)

    async def send(self, message: UserMessage, phase: Callable[[], Phase]) -> Disposition:
        """Put a message and wait until it is decided what becomes of it. Raises UsageError if too many wait."""
        self._answers.expect(message)
        try:
            known = self.inbox.put(message)
            if known is None:
                await workflow.wait_condition(lambda: self._disposition(message, phase()) is not None)
                known = self._disposition(message, phase())
        finally:
            self._answers.forget(message)
        assert known is not None
        return known

    def tell(self, content: AnyInput, disposition: Disposition | None) -> None:
        """Say what became of an input: to its sender, or, since a signal has none, where people look."""
        if disposition is None or not isinstance(content, UserMessage | Event):
            return
        if disposition in ("started", "interrupted", "steered"):
            words = content.text if isinstance(content, UserMessage) else content.content
            self._board.line("User" if isinstance(content, UserMessage) else "Event", words)
        if self._answers.is_expected(content):
            self._answers.give(content, disposition)
        elif disposition in ("conflict", "rejected", "dropped"):
            self._board.problem(_refused(content, disposition), about=f"{content.kind} {disposition}")

    def _disposition(self, message: UserMessage, phase: Phase) -> Disposition | None:
        """What became of a message, None while that is not decided."""
        known = self._answers.get(message)
        return known or (None if self.inbox.has_ready(phase) else self.inbox.disposition(message.id))


def _refused(content: UserMessage | Event, disposition: Disposition) -> str:
    name = f"The event {content.id} of {content.call_id}" if isinstance(content, Event) else f"The message {content.id}"
    if disposition == "conflict":
        return f"{name} came again with other content; the first content stays."
    return f"{name} was {disposition}."
