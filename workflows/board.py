"""What people see of a thread in Temporal: its last lines, its problems, its state."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import Text
    from perdure.contract import CompleteResult, ThreadStatus
    from perdure.details import Line, details, remember, transcript
    from workflows.attributes import Attributes, State
    from workflows.problems import Problem, Problems


class Board:
    """Bounded: the oldest line and the oldest problem go.

    Attributes:
        lines: the last ones.
        noted: the problems, to carry over continue-as-new.
    """

    def __init__(self) -> None:
        self.lines: tuple[Line, ...] = ()
        self.noted = Problems()

    @property
    def problems(self) -> tuple[Text, ...]:
        """The problems in sentences."""
        return self.noted.told

    def restore(self, lines: tuple[Line, ...], problems: tuple[Text, ...] = (), noted: Problems | None = None) -> None:
        """Go on from the board of the run before; what this run has put up already is newer.

        Runs that do not know `noted` yet carry `problems`.
        """
        self.lines = (*lines, *self.lines)
        older = Problems(happened=tuple(Problem(sentence=problem) for problem in problems))
        self.noted = older.before(noted or Problems()).before(self.noted)

    def line(self, who: str, text: str) -> None:
        """Somebody said something."""
        self.lines = remember(self.lines, who, text)

    def forget(self) -> None:
        """Words were deleted. Which lines were theirs nobody knows, so none stays: the store has what is left."""
        self.lines = ()

    def step(self, outline: CompleteResult) -> None:
        """The model answered."""
        if outline.preview:
            self.line("Assistant", outline.preview)
        if outline.detail and outline.finish not in ("stop", "tool_calls"):
            self.line("Assistant", f"({outline.finish}: {outline.detail})")

    def problem(self, sentence: str, about: str = "") -> None:
        """Something went wrong that nobody could be told in person. Of all that are `about` the same, one is shown."""
        workflow.logger.warning("thread problem", extra={"problem": sentence})
        self.noted = self.noted.adding(Problem(sentence=sentence, about=about))

    def works(self, about: str) -> None:
        """What problems were `about` works again, so they are over."""
        self.noted = self.noted.without(about)

    def problems_of(self, outline: CompleteResult) -> None:
        """What is wrong with the tools that the model was offered now. It is logged once, and not with every step."""
        before = self.noted.tools
        self.noted = self.noted.offering(outline.problems)
        for problem in self.noted.tools:
            if problem not in before:
                workflow.logger.warning("thread problem", extra={"problem": problem})

    def transcript(self) -> str:
        """The last lines, as they were said."""
        return transcript(self.lines)

    def show(self, status: ThreadStatus, attributes: Attributes, state: State | None) -> None:
        """Bring the UI up to date; the state attribute only if one is given, since a change costs an event."""
        if state is not None:
            attributes.show(state)
        workflow.set_current_details(details(status, self.lines, attributes.title))
