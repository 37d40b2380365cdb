"""Between our view and pydantic-ai's messages: requests go out, a response comes back as parts.

Nothing is decided here that could differ between two requests of a thread: no clock, no random id, tools in the order
of their declaration. So what a provider caches of one request serves the next.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure import ids
from perdure.messages import Outcome, Part, ProviderData, ReasoningPart, TextPart, ToolCallPart
from perdure.tools import Tool
from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserFile, UserText
from perdure.view_files import file_note

CALL_ID = "call_id"
"""Where a provider's own id of a call is kept, among the details that are extra data to us."""

IMAGE_BYTES = 3_900_000
"""A larger image in a result is not sent: the tightest limit of a provider is 5 MB for one image in base64."""

CANNOT_READ = "this model cannot read it"
MISSING = "its content is missing"

_outcomes: dict[Outcome, Any] = {
    "ok": "success",
    "error": "failed",
    "denied": "denied",
    "interrupted": "interrupted",
    "cancelled": "interrupted",
    "expired": "interrupted",
}


def request_parameters(instructions: str, tools: Iterable[Tool]) -> ModelRequestParameters:
    """Instructions and tools of a request."""
    definitions = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters))
        for tool in tools
    ]
    return ModelRequestParameters(
        function_tools=definitions,
        instruction_parts=[wire.InstructionPart(content=instructions)] if instructions else None,
    )


def accepted_files(view: tuple[Request | Response, ...], model: Model[Any]) -> tuple[str, ...]:
    """Blobs of the files that the model can read, those in results included."""
    blobs: list[str] = []
    for message in view:
        for item in message.items if isinstance(message, Request) else ():
            if isinstance(item, UserFile) and _accepts(model, item.media_type):
                blobs.append(item.blob)
            elif isinstance(item, Result):
                blobs.extend(file.blob for file in item.files if _accepts_from_tool(model, file))
    return tuple(blobs)


def to_messages(
    view: tuple[Request | Response, ...], model: Model[Any], blobs: Mapping[str, bytes]
) -> list[wire.ModelMessage]:
    """The view as pydantic-ai messages.

    Args:
        view: what the model is to read.
        model: whoever it is.
        blobs: contents of `accepted_files`. A file without one becomes a note, as one does that the model cannot read.
    """
    id_length = model.profile.get("tool_call_id_length")
    return [
        wire.ModelRequest(parts=[_request_part(item, id_length, blobs, model) for item in message.items])
        if isinstance(message, Request)
        else wire.ModelResponse(
            parts=[part for item in message.items if (part := _response_part(item, id_length, model)) is not None],
            provider_name=model.system,
        )
        for message in view
    ]


def to_parts(response: wire.ModelResponse, thread_id: str, turn: int, step: int) -> tuple[Part, ...]:
    """The response as parts, exact: argument text, thoughts and signatures as they came, call ids of our own.

    Kinds of parts that only come when asked for (native tools, files, speech) are never asked for and left out.
    """
    parts: list[Part] = []
    calls = 0
    for part in response.parts:
        match part:
            case wire.ToolCallPart():
                parts.append(call_part(part, ids.call_id(thread_id, turn, step, calls), step))
                calls += 1
            case wire.TextPart() if part.content.strip():
                parts.append(TextPart(text=part.content, step=step, provider=provider_data(part)))
            case wire.ThinkingPart() if part.content or part.signature:
                parts.append(reasoning_part(part, step))
            case _:
                pass
    return tuple(parts)


def call_part(part: wire.ToolCallPart, call_id: str, step: int) -> ToolCallPart:
    """A call. Empty arguments are what some models write for a tool without parameters: an empty object."""
    arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {}, separators=(",", ":"))
    return ToolCallPart(
        call_id=call_id,
        tool=part.tool_name,
        arguments=arguments if arguments.strip() else "{}",
        step=step,
        provider=provider_data(part, own_id=part.tool_call_id),
    )


def reasoning_part(part: wire.ThinkingPart, step: int) -> ReasoningPart:
    """A thought with its signature."""
    return ReasoningPart(text=part.content, signature=part.signature, step=step, provider=provider_data(part))


def provider_data(
    part: wire.TextPart | wire.ThinkingPart | wire.ToolCallPart, own_id: str | None = None
) -> ProviderData | None:
    """What the provider wants back with the part, None if that is nothing.

    A provider's id of a call is kept here only: it may be blank, and it may come again in every reply.
    """
    details = dict(part.provider_details or {})
    if own_id and not own_id.startswith("pyd_ai_"):
        details[CALL_ID] = own_id
    if part.provider_name is None and part.id is None and not details:
        return None
    return ProviderData(name=part.provider_name, id=part.id, details=details or None)


def _request_part(
    item: Result | UserText | UserFile, id_length: int | None, blobs: Mapping[str, bytes], model: Model[Any]
) -> wire.ModelRequestPart:
    match item:
        case UserText():
            return wire.UserPromptPart(content=item.text)
        case UserFile() if item.blob in blobs and _accepts(model, item.media_type):
            return wire.UserPromptPart(content=[wire.BinaryContent(blobs[item.blob], media_type=item.media_type)])
        case UserFile():
            why = MISSING if _accepts(model, item.media_type) else CANNOT_READ
            return wire.UserPromptPart(content=file_note(item.media_type, item.size_bytes, why, item.name))
        case Result():
            return wire.ToolReturnPart(
                tool_name=item.tool,
                content=_result_content(item, blobs, model),
                tool_call_id=_call_id(item.call_id, id_length),
                outcome=_outcomes[item.outcome],
            )


def _result_content(item: Result, blobs: Mapping[str, bytes], model: Model[Any]) -> str | list[Any]:
    """The text, with notes on the files that are not shown, and then the images; only the text if there are none."""
    text = item.text
    images: list[wire.BinaryContent] = []
    for file in item.files:
        wanted = _accepts_from_tool(model, file)
        data = blobs.get(file.blob) if wanted else None
        media_type = None if data is None else _image_type(data)
        if data is not None and media_type is not None:
            images.append(wire.BinaryContent(data, media_type=media_type))
        else:
            why = MISSING if wanted and data is None else CANNOT_READ
            text += f"\n\n{file_note(file.media_type, file.size_bytes, why)}"
    return [text, *images] if images else text


def _response_part(
    item: ModelText | Reasoning | Call, id_length: int | None, model: Model[Any]
) -> wire.ModelResponsePart | None:
    provider = item.provider or ProviderData()
    match item:
        case ModelText():
            return wire.TextPart(
                content=item.text, id=provider.id, provider_name=provider.name, provider_details=provider.details
            )
        case Reasoning() if _returns(item, model):
            return wire.ThinkingPart(
                content=item.text,
                signature=item.signature,
                id=provider.id,
                provider_name=provider.name,
                provider_details=provider.details,
            )
        case Reasoning():
            return None
        case Call():
            details = {name: value for name, value in (provider.details or {}).items() if name != CALL_ID}
            return wire.ToolCallPart(
                tool_name=item.tool,
                args=item.arguments,
                tool_call_id=_call_id(item.call_id, id_length),
                id=provider.id,
                provider_name=provider.name,
                provider_details=details or None,
            )


def _returns(item: Reasoning, model: Model[Any]) -> bool:
    """Whether the thought goes back: only to the provider it came from, and only in the form it came in.

    An unsigned thought from the text itself (id `content`), or of another provider, would become visible text, and
    the model would learn to write such text (case B20).
    """
    provider = item.provider
    if provider is None or provider.name != model.system:
        return False
    return bool(item.signature) or provider.id not in (None, "content")


def _call_id(call_id: str, length: int | None) -> str:
    """Our id, or a hash of it for providers that take only so many characters."""
    return call_id if length is None else hashlib.sha256(call_id.encode()).hexdigest()[:length]


def _accepts(model: Model[Any], media_type: str) -> bool:
    profile = model.profile
    match media_type.partition("/")[0]:
        case "image":
            return profile.get("supports_image_input", True)
        case "audio":
            return profile.get("supports_audio_file_input", True)
        case "video":
            return profile.get("supports_video_input", True)
        case _:
            return profile.get("supports_document_input", True)


def _accepts_from_tool(model: Model[Any], file: UserFile) -> bool:
    """Whether a file in a result may be sent. Images alone: nobody has chosen the others for this model.

    A provider refuses a request for one file that it does not take, and with it every later request of the thread.
    """
    is_image = file.media_type.startswith("image/") or not file.media_type
    return is_image and file.size_bytes <= IMAGE_BYTES and model.profile.get("supports_image_input", True)


def _image_type(data: bytes) -> str | None:
    """The media type by the first bytes, None for what is none of the kinds that every provider takes.

    Not as the tool's server declares it: providers compare the two and refuse the request if they differ.
    """
    if len(data) > IMAGE_BYTES:
        return None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
