"""What people see of a thread in Temporal: its last lines, its problems, its state."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import Text, clip
    from perdure.contract import CompleteResult, ThreadStatus
    from perdure.details import Line, details, remember, transcript
    from workflows.attributes import Attributes, State

PROBLEMS = 10
PROBLEM_CHARS = 500


class Board:
    """Bounded: the oldest line and the oldest problem go."""

    def __init__(self) -> None:
        self.lines: tuple[Line, ...] = ()
        self.problems: tuple[Text, ...] = ()

    def restore(self, lines: tuple[Line, ...], problems: tuple[Text, ...]) -> None:
        """Go on from the board of the run before; what this run has put up already is newer."""
        self.lines = (*lines, *self.lines)
        self.problems = (*problems, *self.problems)[-PROBLEMS:]

    def line(self, who: str, text: str) -> None:
        """Somebody said something."""
        self.lines = remember(self.lines, who, text)

    def step(self, outline: CompleteResult) -> None:
        """The model answered."""
        if outline.preview:
            self.line("Assistant", outline.preview)
        if outline.detail and outline.finish not in ("stop", "tool_calls"):
            self.line("Assistant", f"({outline.finish}: {outline.detail})")

    def problem(self, sentence: str) -> None:
        """Something went wrong that nobody could be told in person."""
        workflow.logger.warning("thread problem", extra={"problem": sentence})
        self.problems = (*self.problems, clip(sentence, PROBLEM_CHARS))[-PROBLEMS:]

    def problems_of(self, outline: CompleteResult) -> None:
        """What is wrong with the tools that the model was offered; told once, and not with every step."""
        for problem in outline.problems:
            if clip(problem, PROBLEM_CHARS) not in self.problems:
                self.problem(problem)

    def transcript(self) -> str:
        """The last lines, as they were said."""
        return transcript(self.lines)

    def show(self, status: ThreadStatus, attributes: Attributes, state: State | None) -> None:
        """Bring the UI up to date; the state attribute only if one is given, since a change costs an event."""
        if state is not None:
            attributes.show(state)
        workflow.set_current_details(details(status, self.lines, attributes.title))
