"""What the view is made of: requests and responses, and the items in them."""

from dataclasses import dataclass

from perdure.messages import Outcome, ProviderData


@dataclass(frozen=True, slots=True)
class UserText:
    """Words of the user's side."""

    text: str


@dataclass(frozen=True, slots=True)
class UserFile:
    """A file of the user's side, alone or in a result; its bytes are in the blob."""

    blob: str
    media_type: str
    size_bytes: int = 0
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a call of the response before it; files follow the text."""

    call_id: str
    tool: str
    text: str
    outcome: Outcome = "ok"
    files: tuple[UserFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelText:
    """Words of the model."""

    text: str
    provider: ProviderData | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A thought, byte for byte."""

    text: str
    signature: str | None = None
    provider: ProviderData | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is the JSON text of an object."""

    call_id: str
    tool: str
    arguments: str
    provider: ProviderData | None = None


RequestItem = Result | UserText | UserFile
ResponseItem = ModelText | Reasoning | Call


@dataclass(frozen=True, slots=True)
class Request:
    """What the model is told at once: results first, then the rest."""

    items: tuple[RequestItem, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """What the model answered in one step."""

    items: tuple[ResponseItem, ...]


Viewed = Request | Response
