"""The messages that a RAP server posts to a callback URL.

RAP, basic/tool-result and server/{subscription-events,oauth,user-choice,view-updates}.

They are read leniently where real servers differ: optional fields may be absent or null, unknown fields are ignored,
and so are kinds of content and display that are not known yet. What is needed to act must be there, of the right type.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from perdure.codec import Text, clip, dumps, is_json, loads
from perdure.errors import UsageError
from perdure.messages import Outcome
from perdure.rap.display import display_json

ERROR_PREFIXES: Final = ("Error:", "MCP tool error:")
"""The protocol has no type for errors: a failure is a result whose text begins like this."""

VIEW_CHARS: Final = 200

_unprintable = re.compile(r"[\s\x00-\x20\x7f-\x9f]")


@dataclass(frozen=True)
class Image:
    """An image of a result."""

    media_type: str
    data: bytes = field(repr=False)


def _content(value: object) -> tuple[str | Image, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("must be a list")
    items = (_item(item) for item in cast("list[object]", value))
    return tuple(item for item in items if item is not None)


def _item(item: object) -> str | Image | None:
    """One item; None for a kind that is not known."""
    match item:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image", "data": str(data), "mediaType": str(media_type)}:
            return Image(media_type, _decoded(data))
        case {"type": "text"}:
            raise ValueError("an item of type `text` needs `text`")
        case {"type": "image"}:
            raise ValueError("an item of type `image` needs `data` and `mediaType`, both texts")
        case {"type": str()}:
            return None
        case _:
            raise ValueError("each item must be an object with a `type`")


def _decoded(data: str) -> bytes:
    """Base64 of either alphabet, in lines or not, padded or not: encoders differ, and nothing else can be meant."""
    packed = "".join(data.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("the `data` of an image must be base64") from error


def _address(*schemes: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            place = urlsplit(value)
            is_address = place.scheme in schemes and bool(place.hostname) and place.port != 0
        except ValueError:
            is_address = False
        # What is unprintable would make another address of it where people see it.
        if not is_address or _unprintable.search(value):
            raise ValueError(f"must be an absolute {' or '.join(schemes)} address")
        return value

    return AfterValidator(check)


def _instead_of_null(default: object) -> BeforeValidator:
    return BeforeValidator(lambda value: default if value is None else value)


_Id = Annotated[str, Field(min_length=1, max_length=1_000)]
_Flag = Annotated[StrictBool, _instead_of_null(False)]


class _Message(BaseModel):
    """Base of all callbacks. `call_id`, the provider's second id, is not read: ours are unique without it."""

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)

    group_id: _Id

    def is_about(self, thread_id: str, call_id: str) -> bool:
        """Whether it speaks of this call, which the URL that it came to was made for."""
        raise NotImplementedError


class _OfCall(_Message):
    id: _Id

    def is_about(self, thread_id: str, call_id: str) -> bool:
        return (self.group_id, self.id) == (thread_id, call_id)


class ResultCallback(_OfCall):
    """G: settles a call."""

    type: Literal["tool_result"] = "tool_result"
    text: Text | None = None
    content: Annotated[tuple[str | Image, ...], PlainValidator(_content)] = ()
    display_as: Any = None
    subscription: _Flag = False

    @property
    def words(self) -> str:
        """What the model reads: the texts of the content if there is any, else the text."""
        if not self.content:
            return self.text or ""
        return "\n".join(item for item in self.content if isinstance(item, str))

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of the content, in order."""
        return tuple(item for item in self.content if isinstance(item, Image))

    @property
    def outcome(self) -> Outcome:
        """`error` for a text that begins like one. Such a result opens no subscription, whatever it says."""
        return "error" if self.words.startswith(ERROR_PREFIXES) else "ok"

    @property
    def opens_subscription(self) -> bool:
        """Whether events will follow."""
        return self.subscription and self.outcome == "ok"

    @property
    def display(self) -> str | None:
        """For `ToolResult.display`: what people are shown, as JSON text; None if the words are all there is."""
        return display_json(self.display_as, self.words)


class EventCallback(_Message):
    """H: something happened that a call has subscribed to. It has no identity: equal ones may both be real."""

    type: Literal["subscription_event"] = "subscription_event"
    tool_call_id: _Id
    text: Text
    associative: _Flag = False
    final: _Flag = False

    def is_about(self, thread_id: str, call_id: str) -> bool:
        """See the base class."""
        return (self.group_id, self.tool_call_id) == (thread_id, call_id)


class OAuthCallback(_OfCall):
    """I: somebody has to open a link before the call can go on."""

    type: Literal["oauth"] = "oauth"
    auth_url: Annotated[str, _address("https")]


class ChoiceCallback(_OfCall):
    """J: somebody has to choose. The zero-based choice, or `default` if they will not, goes to `response_url`."""

    type: Literal["user_choice"] = "user_choice"
    prompt: Text
    choices: Annotated[tuple[Text, ...], Field(min_length=1)]
    default: Annotated[StrictInt, _instead_of_null(0)] = 0
    response_url: Annotated[str, _address("http", "https")]

    @model_validator(mode="after")
    def _default_is_a_choice(self) -> Self:
        # Another one in its place might consent to what nobody has agreed to.
        if not 0 <= self.default < len(self.choices):
            raise ValueError(f"`default` must be one of the choices, 0 to {len(self.choices) - 1}")
        return self


class ViewCallback(_Message):
    """K: the newest state of something that people are shown beside the conversation, by any call of the thread.

    `content` is passed on as it came.
    """

    type: Literal["view_update"] = "view_update"
    view_type: Annotated[str, Field(min_length=1, max_length=VIEW_CHARS, pattern=r"^[^\x00-\x1f\x7f]+$")]
    content: Any

    def is_about(self, thread_id: str, call_id: str) -> bool:
        """See the base class."""
        return self.group_id == thread_id

    @property
    def json_text(self) -> str:
        """The content as JSON text, for `put_view`."""
        return dumps(self.content)


Callback = ResultCallback | EventCallback | OAuthCallback | ChoiceCallback | ViewCallback

_types: Final[dict[str, type[Callback]]] = {
    "tool_result": ResultCallback,
    "subscription_event": EventCallback,
    "oauth": OAuthCallback,
    "user_choice": ChoiceCallback,
    "view_update": ViewCallback,
}


def read_callback(body: bytes) -> Callback:
    """The message of a request's body.

    Raises:
        UsageError: with one sentence for whoever wrote the server: no JSON, an unknown type, a field that is wrong.
    """
    value = _object(body)
    kind = value.get("type")
    message = _types.get(kind) if isinstance(kind, str) else None
    if message is None:
        said = "none" if kind is None else clip(str(kind), 80)
        raise UsageError(f"The callback's `type` must be one of {', '.join(_types)}; it is {said}.")
    try:
        return message.model_validate(value)
    except ValidationError as error:
        raise UsageError(f"This is no valid {kind}: {_reason(error)}.") from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        value: object = loads(body.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise UsageError(f"The callback is not JSON in UTF-8 ({clip(str(error), 200)}).") from error
    if not isinstance(value, dict):
        raise UsageError("The callback must be a JSON object.")
    if not is_json(cast("object", value)):
        raise UsageError("The callback is nested too deeply.")
    return cast("dict[str, Any]", value)


def _reason(error: ValidationError) -> str:
    item = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        return f"`{place}` is missing"
    return clip(f"`{place}`: {message}" if place else message, 300)
