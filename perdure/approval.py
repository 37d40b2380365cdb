"""Approvals: what a person is asked before a call runs, and what was decided.

A question belongs to one call, whose id is its own: tool and arguments are those of the stored call and cannot change
after it was asked. Shapes follow assistant-ui's local runtime, so that exports can hold them: a request with options or
questions, and a decision that says yes, says no, or ends the question without an answer.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Protocol, cast

from pydantic import Field

from perdure.codec import Text, Wire, clip, digest, dumps
from perdure.errors import UsageError
from perdure.timer import MAX_SECONDS

Grant = Literal["arguments", "tool"]
"""What a remembered decision is for: calls of the same tool with the same arguments, or all calls of the tool."""

APPROVES: Final[Mapping[str, bool]] = {
    "allow_once": True,
    "allow_always": True,
    "reject_once": False,
    "reject_always": False,
}
"""What choosing an option of a known kind says; another kind says nothing, and the decision must."""

REMEMBERED_KINDS: Final = frozenset({"allow_always", "reject_always"})

REASON_CHARS: Final = 2_000
"""How much of a reason, a text or an answer is kept: decisions travel through Temporal."""

NAME_CHARS: Final = 200
"""How much of a name is remembered: a thread is loaded with all that it remembers."""

SHAPE_CHARS: Final = 8_000
"""How long a request may be without its words: so much of it travels with its call, and a step has many calls."""

Short = Annotated[Text, Field(max_length=REASON_CHARS)]


class ApprovalOption(Wire):
    """One of the answers that are offered. A kind that ends in `_always` is remembered, for what `grants` says."""

    id: str
    kind: Text = "allow_once"
    label: Text = ""
    description: Text | None = None
    grants: Grant = "tool"
    confirm: bool = False


class ApprovalQuestion(Wire):
    """One of several questions that are asked together. Without options it takes a text."""

    id: str
    prompt: Text = ""
    header: Text | None = None
    options: tuple[ApprovalOption, ...] = ()
    multiple: bool = False
    allow_freeform: bool = False

    @property
    def accepts_text(self) -> bool:
        """Whether it may be answered in words of one's own."""
        return self.allow_freeform or not self.options


class ApprovalRequest(Wire):
    """What is asked before a call runs. `expires_s`: nobody is waited for longer than that.

    A plain decision can always be refused; anything else without an answer only if it is `dismissible`.
    """

    prompt: Text = ""
    display: Literal["decision", "select", "text", "questions"] = "decision"
    options: tuple[ApprovalOption, ...] = ()
    questions: tuple[ApprovalQuestion, ...] = ()
    allow_freeform: bool = False
    dismissible: bool = False
    expires_s: float | None = Field(default=None, gt=0, le=MAX_SECONDS, allow_inf_nan=False)

    def without_words(self) -> "ApprovalRequest":
        """What deciding needs of it; the words are in the store and not for Temporal."""
        questions = tuple(
            one.with_(prompt="", header=None, options=tuple(map(_without_words, one.options))) for one in self.questions
        )
        return self.with_(prompt="", options=tuple(map(_without_words, self.options)), questions=questions)

    def option(self, option_id: str) -> ApprovalOption | None:
        """The option of this id."""
        return next((option for option in self.options if option.id == option_id), None)

    @property
    def accepts_text(self) -> bool:
        """Whether words of one's own may go with the decision, or be it."""
        return self.display == "text" or (self.display != "questions" and self.allow_freeform)


class Decision(Wire):
    """What became of a question: `approved`, or a `resolution` if nobody decided. Either way it is final.

    `answers` are those to the questions, by their ids: objects of `option_ids` and `text`. `by` is who decided, as the
    caller names them; `remembered` that an earlier decision for all such calls was used; `at` is when, in seconds
    since 1970.
    """

    approved: bool | None = None
    resolution: Literal["cancelled", "expired"] | None = None
    option_id: str | None = None
    text: Short | None = None
    answers: dict[str, Any] | None = None
    reason: Short | None = None
    by: Short | None = None
    remembered: bool = False
    at: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def digest(self) -> str:
        """What tells it from another one that says something else; when and by whom is not part of that."""
        return digest(dumps(self.with_(at=0.0, by=None)))

    def without_words(self) -> "Decision":
        """What became of it, without what was said; the words are in the store and not for Temporal."""
        return self.with_(text=None, answers=None, reason=None)


class RememberedDecision(Wire):
    """A decision for calls to come: of this tool, and with arguments of this digest unless that is None."""

    tool: Text
    arguments: str | None = None
    approved: bool = True
    by: Text | None = None


class Answer(Protocol):
    """What a person says to a question: the fields of `perdure.inputs.Approval`."""

    @property
    def approved(self) -> bool | None:
        """Yes or no, if it is said outright."""
        ...

    @property
    def option_id(self) -> str | None:
        """The option that was chosen."""
        ...

    @property
    def text(self) -> str | None:
        """Words of one's own."""
        ...

    @property
    def answers(self) -> dict[str, Any] | None:
        """Answers to the request's questions, by their ids."""
        ...

    @property
    def reason(self) -> str | None:
        """Why; the model is told why a call was denied."""
        ...

    @property
    def by(self) -> str | None:
        """Who decided."""
        ...


def check_request(request: ApprovalRequest) -> None:
    """Whether somebody can answer it, and it is not too large to travel.

    Raises:
        UsageError: with one sentence that says what is wrong with it.
    """
    if request.display == "questions" and not request.questions:
        raise UsageError("A request of display `questions` needs questions.")
    if request.questions and request.display != "questions":
        raise UsageError("Only a request of display `questions` can have questions.")
    if request.display == "select" and not request.options:
        raise UsageError("A request of display `select` needs options.")
    _check_ids("options", (option.id for option in request.options))
    _check_ids("questions", (question.id for question in request.questions))
    for question in request.questions:
        _check_ids(f"options of question {question.id!r}", (option.id for option in question.options))
    if len(dumps(request.without_words())) > SHAPE_CHARS:
        raise UsageError(f"A request may have at most {SHAPE_CHARS:,} characters besides its words; offer less.")


def _check_ids(what: str, ids: Iterable[str]) -> None:
    seen = set[str]()
    for name in ids:
        if not name.strip() or name in seen:
            raise UsageError(f"The {what} of a request need ids, each its own; {name!r} is none.")
        seen.add(name)


def decision_of(request: ApprovalRequest, answer: Answer, at: float) -> Decision:
    """What an answer decides, at a time in seconds since 1970.

    An option of a known kind decides by itself, one of another kind together with `approved`. A text without either
    decides only where a text or a choice was asked for: a note beside a plain decision must not authorise the call.

    Raises:
        UsageError: with one sentence, if the answer does not fit what was asked.
    """
    text = answer.text if answer.text is not None and answer.text.strip() else None
    if request.display == "questions":
        approved, answers = _answered(request, answer, text)
    else:
        approved, answers = _decided(request, answer, text), None
    return Decision(
        approved=approved,
        option_id=answer.option_id,
        text=text,
        answers=answers,
        reason=answer.reason,
        by=answer.by,
        at=at,
    )


def _decided(request: ApprovalRequest, answer: Answer, text: str | None) -> bool:
    if answer.answers is not None:
        raise UsageError("This approval asks no questions, so there is nothing that `answers` could answer.")
    if text is not None and not request.accepts_text:
        raise UsageError("This approval takes no text; say why with `reason`.")
    if answer.option_id is not None:
        return _chosen(request, answer.option_id, answer.approved)
    if answer.approved is not None:
        _check_dismissal(request, answer.approved, text)
        return answer.approved
    if text is None:
        raise UsageError(f"Nothing was decided: {_ways(request)}.")
    if request.display == "decision":
        raise UsageError("A text alone does not decide about this call; say `approved`, true or false, with it.")
    return True


def _chosen(request: ApprovalRequest, option_id: str, approved: bool | None) -> bool:
    option = request.option(option_id)
    if option is None:
        raise UsageError(f"There is no option {option_id!r}; {_ways(request)}.")
    means = APPROVES.get(option.kind)
    if means is None and approved is None:
        raise UsageError(f"The option {option_id!r} does not say yes or no by itself; say `approved` with it.")
    if means is not None and approved is not None and means != approved:
        said = "approves" if means else "denies"
        raise UsageError(f"The option {option_id!r} {said} the call, and `approved` says the opposite; leave one out.")
    return bool(approved if means is None else means)


def _answered(request: ApprovalRequest, answer: Answer, text: str | None) -> tuple[bool, dict[str, Any] | None]:
    if answer.answers is None:
        if answer.approved is False and answer.option_id is None and text is None:
            _check_dismissal(request, False, None)
            return False, None
        raise UsageError(f"This approval asks questions; {_ways(request)}.")
    if answer.approved is not None or answer.option_id is not None or text is not None:
        raise UsageError("The answers to questions stand alone, without `approved`, an option or a text.")
    known = {question.id: question for question in request.questions}
    if unknown := next((name for name in answer.answers if name not in known), None):
        raise UsageError(f"There is no question {unknown!r}; {_ways(request)}.")
    return True, {name: _answer_to(question, answer.answers.get(name)) for name, question in known.items()}


def _answer_to(question: ApprovalQuestion, given: object) -> dict[str, Any]:
    """An answer as it is kept. A text or a list alone is taken for what it must be: the words, or the options."""
    chosen, text = _parts_of(question, given)
    if not chosen and text is None:
        raise UsageError(f"The question {question.id!r} is not answered.")
    if len(chosen) > 1 and not question.multiple:
        raise UsageError(f"The question {question.id!r} takes one option, not {len(chosen)}.")
    if unknown := next((name for name in chosen if name not in {option.id for option in question.options}), None):
        raise UsageError(f"The question {question.id!r} has no option {unknown!r}.")
    if text is not None and not question.accepts_text:
        raise UsageError(f"The question {question.id!r} takes one of its options, and no text.")
    return ({"option_ids": chosen} if chosen else {}) | ({"text": text} if text is not None else {})


def _parts_of(question: ApprovalQuestion, given: object) -> tuple[list[str], str | None]:
    fields: dict[object, object]
    match given:
        case dict():
            fields = cast("dict[object, object]", given)
        case str() if any(option.id == given for option in question.options):
            fields = {"option_ids": [given]}
        case str():
            fields = {"text": given}
        case _:
            fields = {"option_ids": given}
    none: list[object] = []
    options, text = fields.get("option_ids") or none, fields.get("text")
    if not isinstance(options, list) or not isinstance(text, str | None) or fields.keys() - {"option_ids", "text"}:
        raise UsageError(f"Answer the question {question.id!r} with `option_ids`, a list of texts, or with a `text`.")
    listed = cast("list[object]", options)
    chosen = [name for name in listed if isinstance(name, str)]
    if len(set(chosen)) != len(listed):
        raise UsageError(f"The options chosen for the question {question.id!r} must be different texts.")
    if text is not None and len(text) > REASON_CHARS:
        raise UsageError(f"The answer to the question {question.id!r} is longer than {REASON_CHARS:,} characters.")
    return chosen, text if text is not None and text.strip() else None


def _check_dismissal(request: ApprovalRequest, approved: bool, text: str | None) -> None:
    """A question is not a gate: no is no answer to it, and yes even less."""
    if request.display == "decision" or text is not None:
        return
    if approved:
        raise UsageError(f"This approval asks for more than yes: {_ways(request)}.")
    if not request.dismissible:
        raise UsageError(f"This approval cannot be dismissed: {_ways(request)}.")


def _ways(request: ApprovalRequest) -> str:
    """How the request can be decided, for whoever did it in another way."""
    if request.display == "questions":
        names = ", ".join(repr(question.id) for question in request.questions)
        return f"answer all of these: {names}" + (", or say `approved: false`" if request.dismissible else "")
    ways = ["say `approved`, true or false"] if request.display == "decision" else []
    if request.options:
        ways.append("choose one of the options " + ", ".join(repr(option.id) for option in request.options))
    if request.accepts_text and request.display != "decision":
        ways.append("answer with a `text`")
    if request.dismissible and request.display != "decision":
        ways.append("say `approved: false`")
    return ", or ".join(ways) or "nothing can answer it"


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """What tells the arguments of one call from those of another, in whatever order they were written."""
    return digest(dumps(_ordered(arguments)))


def _ordered(value: object) -> object:
    match value:
        case Mapping():
            fields = cast("Mapping[str, object]", value)
            return {name: _ordered(fields[name]) for name in sorted(fields)}
        case list():
            return [_ordered(item) for item in cast("list[object]", value)]
        case _:
            return value


def remembered_of(
    decision: Decision, request: ApprovalRequest, tool: str, arguments: str | None
) -> RememberedDecision | None:
    """What a decision says for calls to come, None if it is for this call alone. `arguments` is their digest.

    What is granted for the arguments is remembered for nothing else, and not at all where they are not known.
    """
    option = None if decision.option_id is None else request.option(decision.option_id)
    if option is None or option.kind not in REMEMBERED_KINDS or decision.approved is None:
        return None
    if option.grants == "arguments" and arguments is None:
        return None
    return RememberedDecision(
        tool=tool,
        arguments=arguments if option.grants == "arguments" else None,
        approved=decision.approved,
        by=None if decision.by is None else clip(decision.by, NAME_CHARS),
    )


def matches(remembered: RememberedDecision, tool: str, arguments: str | None) -> bool:
    """Whether a remembered decision is for a call of this tool with arguments of this digest."""
    return remembered.tool == tool and remembered.arguments in (None, arguments)


def _without_words(option: ApprovalOption) -> ApprovalOption:
    return option.with_(label="", description=None)
