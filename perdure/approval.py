"""Approvals: what a person is asked before a call runs, and what was decided.

A question belongs to one call, whose id is its own: tool and arguments are those of the stored call and cannot change
after it was asked. Shapes follow the sheet of assistant-ui's local runtime (3.1): a request with options or questions,
and a decision that says yes, says no, or ends the question without anybody having answered.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from perdure.codec import Text, Wire

Grant = Literal["arguments", "tool"]
"""What a remembered decision is for: calls of the same tool with the same arguments, or all calls of the tool."""

OptionKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]

APPROVES: Final[Mapping[str, bool]] = {
    "allow_once": True,
    "allow_always": True,
    "reject_once": False,
    "reject_always": False,
}
"""What choosing an option of a known kind says; another kind says nothing, and the decision must."""

REASON_CHARS: Final = 2_000
"""How much of a reason, a text or an answer is kept: decisions travel through Temporal."""

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
    """One of several questions that are asked together."""

    id: str
    prompt: Text = ""
    header: Text | None = None
    options: tuple[ApprovalOption, ...] = ()
    multiple: bool = False
    allow_freeform: bool = False


class ApprovalRequest(Wire):
    """What is asked before a call runs. `expires_s`: nobody is waited for longer than that."""

    prompt: Text = ""
    display: Literal["decision", "select", "text", "questions"] = "decision"
    options: tuple[ApprovalOption, ...] = ()
    questions: tuple[ApprovalQuestion, ...] = ()
    allow_freeform: bool = False
    dismissible: bool = False
    expires_s: float | None = Field(default=None, allow_inf_nan=False)

    def without_words(self) -> "ApprovalRequest":
        """What deciding needs of it; the words are in the store and not for Temporal."""
        questions = tuple(
            one.with_(prompt="", header=None, options=tuple(map(_without_words, one.options))) for one in self.questions
        )
        return self.with_(prompt="", options=tuple(map(_without_words, self.options)), questions=questions)

    def option(self, option_id: str) -> ApprovalOption | None:
        """The option of this id."""
        return next((option for option in self.options if option.id == option_id), None)


class Decision(Wire):
    """What became of a question: `approved`, or a `resolution` if nobody decided. Either way it is final.

    `by` is who decided, as the caller names them; `remembered` that an earlier decision for all such calls was used;
    `at` is when, in seconds since 1970.
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

    def same_as(self, other: "Decision") -> bool:
        """Whether both say the same; when and by whom is not part of that."""
        return self.with_(at=0.0, by=None) == other.with_(at=0.0, by=None)


class RememberedDecision(Wire):
    """A decision for calls to come: of this tool, and with arguments of this digest unless that is None."""

    tool: Text
    arguments: str | None = None
    approved: bool = True
    by: Text | None = None


def _without_words(option: ApprovalOption) -> ApprovalOption:
    return option.with_(label="", description=None)
