"""The conversation: messages of a tree, and the parts they are made of.

A message points to its parent; the conversation is the path from a thread's head to the root. A user or event
message is complete when it is stored. An assistant message is the life of one turn: it is `running` while steps add
parts, `requires_action` while nothing but people can bring it on, and settles once. Parts are only ever appended; but
a late result takes the place of the one that was made up for it, and an import that of a whole message's content.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from perdure.approval import ApprovalRequest, Decision
from perdure.codec import Text, Wire

Role = Literal["user", "assistant", "event"]
Outcome = Literal["ok", "error", "denied", "interrupted", "cancelled", "expired"]
StatusState = Literal["running", "requires_action", "complete", "incomplete"]
IncompleteReason = Literal["cancelled", "error", "length", "content_filter", "limit", "steered", "other"]
StatusReason = Literal[IncompleteReason, "unknown", "interrupt"]
"""`unknown` is said of complete messages and `interrupt` of ones that require action, where they came from outside."""


ModelName = Annotated[Text, Field(min_length=1, max_length=200)]
"""A model as people name it: `openai:gpt-5`."""


class ProviderData(Wire):
    """What a provider wants back with a part: its name, its id for the part, and details that are opaque to us."""

    name: str | None = None
    id: str | None = None
    details: dict[str, Any] | None = None


class PartBase(Wire):
    """`step` is the model call of the turn that the part belongs to, from 0; user and event parts have 0."""

    step: int = 0


class TextPart(PartBase):
    """Words. A text above the inline limit is kept in a blob and `text` is empty until the store resolves it."""

    kind: Literal["text"] = "text"
    text: Text = ""
    blob: str | None = None
    provider: ProviderData | None = None


class ReasoningPart(PartBase):
    """What the model thought. Sent back byte for byte or not at all, so the signature stays with its text."""

    kind: Literal["reasoning"] = "reasoning"
    text: Text = ""
    signature: Text | None = None
    provider: ProviderData | None = None


class FilePart(PartBase):
    """An image or another file; the bytes are in a blob."""

    kind: Literal["file"] = "file"
    media_type: str
    blob: str
    size_bytes: int = 0
    name: str | None = None
    provider: ProviderData | None = None


class ToolCallPart(PartBase):
    """A call as the model wrote it; `arguments` is the exact JSON text. With `error` set it must not be executed.

    With `approval` it runs only once somebody has approved it; `decision` is what became of that question. `interrupt`
    is what an agent elsewhere stopped at, of a call that was imported: its result answers that.
    """

    kind: Literal["tool_call"] = "tool_call"
    call_id: str
    tool: Text
    arguments: Text = "{}"
    error: Text | None = None
    provider: ProviderData | None = None
    approval: ApprovalRequest | None = None
    decision: Decision | None = None
    interrupt: dict[str, Any] | None = None

    @property
    def refusal(self) -> "ToolResultPart | None":
        """The answer to a call that must not be executed."""
        if self.error is None:
            return None
        return ToolResultPart(call_id=self.call_id, outcome="error", content=self.error, step=self.step)


class FileRef(Wire):
    """An image or another file that came with a result, or with words; the bytes are in a blob."""

    media_type: str
    blob: str
    size_bytes: int = 0
    name: Text | None = None


class ToolResultPart(PartBase):
    """The one answer to a call. `content` is what the model reads, clipped when `blob` holds the whole of it.

    `files` follow it, for models that take them. `display` is for people alone: the segments that the tool offered
    (RAP, basic/tool-result) as JSON text. `artifact` and `model_content` are JSON values that came with an import: what
    another client keeps beside the result. They are handed on to the next one, and nothing here reads them.
    """

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    outcome: Outcome = "ok"
    content: Text = ""
    size_bytes: int = 0
    blob: str | None = None
    files: tuple[FileRef, ...] = ()
    display: Text | None = None
    artifact: Any = None
    model_content: Any = None


class EventPart(PartBase):
    """An event, a report or a message, shown to the model as a call to `receive_event__injected` and its result.

    The call that it goes back to is named here, since that may be behind a summary: its id, tool and arguments.
    """

    kind: Literal["event"] = "event"
    event_id: str
    origin_call_id: str
    content: Text = ""
    blob: str | None = None
    origin_tool: Text | None = None
    origin_arguments: Text | None = None


class ContextPart(PartBase):
    """What a context provider told the model in this turn, kept since the agent's history provider says so.

    It stands in the turn's own message, before what the model answered, and is shown to the model before the words that
    the turn answers. It is never the user's input. `source` is the provider's name.
    """

    kind: Literal["context"] = "context"
    source: Text
    text: Text = ""
    role: Literal["user", "assistant"] = "user"


Part = Annotated[
    TextPart | ReasoningPart | FilePart | ToolCallPart | ToolResultPart | EventPart | ContextPart,
    Field(discriminator="kind"),
]


class Status(Wire):
    """Where a message stands. `detail` is a sentence for people: what happened and what to do."""

    state: StatusState = "complete"
    reason: StatusReason | None = None
    detail: Text | None = None


class Usage(Wire):
    """Tokens and money of one or several model calls, as the provider counts them.

    `cached_tokens` are among the input's. `nano_usd` is the price in billionths of a US dollar, whole numbers so that
    sums are exact; `unpriced` counts the calls whose price is not known, which are not in it, or not exactly: those
    that were given up count with what is known of them, and with an estimate of the rest.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    nano_usd: int = 0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            nano_usd=self.nano_usd + other.nano_usd,
            unpriced=self.unpriced + other.unpriced,
        )


class TurnOptions(Wire):
    """How one message is to be answered, where that differs from its thread and agent.

    `model` is a name as an agent's; `settings` are merged over the agent's (`{"thinking": "high"}`).
    """

    model: ModelName | None = None
    settings: dict[str, Any] | None = None


class Message(Wire):
    """A node of the tree. `parent_parts` cuts an inherited parent: only its first so many parts are on the path.

    `turn` is the turn that an assistant's message is; of words and events the one that answers them, 0 if none does.
    `source_id` is the message that this one was edited from: it says so, and changes nothing in the tree. `metadata`
    is for the people around the conversation and never shown to a model. `options` are those of the words that a turn
    answers; `usage` is what a turn has cost so far.
    """

    id: str
    thread_id: str
    role: Role
    parent_id: str | None = None
    parent_parts: int | None = None
    turn: int = 0
    status: Status = Status()
    parts: tuple[Part, ...] = ()
    input_id: str | None = None
    metadata: dict[str, Any] | None = None
    source_id: str | None = None
    options: TurnOptions | None = None
    usage: Usage | None = None
    seq: int = 0
