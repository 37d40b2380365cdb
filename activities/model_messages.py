"""Between our view and pydantic-ai's messages: requests go out, a response comes back as parts.

Nothing is decided here that could differ between two requests of a thread: no clock, no random id, tools in the order
of their declaration. So what a provider caches of one request serves the next.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from activities.images import IMAGE_BYTES, MANY_IMAGES, TOO_LARGE, image_type, is_too_large
from perdure import ids
from perdure.messages import Outcome, Part, ProviderData, ReasoningPart, TextPart, ToolCallPart
from perdure.tools import Tool
from perdure.view_calls import short_id
from perdure.view_files import file_note
from perdure.view_items import (
    Call,
    ModelText,
    Reasoning,
    Request,
    RequestItem,
    ResponseItem,
    Result,
    UserFile,
    UserText,
    Viewed,
)

CALL_ID = "call_id"
"""Where a provider's own id of a call is kept, among the details that are extra data to us."""

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


def accepted_files(view: Iterable[Viewed], model: Model[Any]) -> list[UserFile]:
    """The files that the model can read, those in results included, in order."""
    files: list[UserFile] = []
    for message in view:
        for item in message.items if isinstance(message, Request) else ():
            if isinstance(item, UserFile) and _accepts(model, item.media_type):
                files.append(item)
            elif isinstance(item, Result):
                files.extend(file for file in item.files if _accepts_from_tool(model, file))
    return files


def has_many_images(files: Iterable[UserFile]) -> bool:
    """Whether these are so many images that providers take only smaller ones."""
    return sum(_is_image(file) for file in files) > MANY_IMAGES


def to_messages(
    view: Iterable[Viewed], model: Model[Any], blobs: Mapping[str, bytes], *, many_images: bool = False
) -> list[wire.ModelMessage]:
    """The view as pydantic-ai messages, one for each, whatever stands before and after it.

    Args:
        view: what the model is to read.
        model: whoever it is.
        blobs: contents of `accepted_files`. A file without one becomes a note, as one does that the model cannot read.
        many_images: whether the request has so many that providers take only smaller ones.
    """
    target = _Target(model, model.profile.get("tool_call_id_length"), blobs, many_images)
    return [_message(message, target) for message in view]


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


@dataclass(frozen=True)
class _Target:
    """Whom a message is for, and what is known of its files."""

    model: Model[Any]
    id_length: int | None
    blobs: Mapping[str, bytes]
    many_images: bool


def _message(message: Viewed, target: _Target) -> wire.ModelMessage:
    if isinstance(message, Request):
        return wire.ModelRequest(parts=[_request_part(item, target) for item in message.items])
    parts = (_response_part(item, target) for item in message.items)
    return wire.ModelResponse(parts=[part for part in parts if part], provider_name=target.model.system)


def _request_part(item: RequestItem, target: _Target) -> wire.ModelRequestPart:
    match item:
        case UserText():
            return wire.UserPromptPart(content=item.text)
        case UserFile():
            shown = _content(item, target) if _accepts(target.model, item.media_type) else CANNOT_READ
            if isinstance(shown, str):
                return wire.UserPromptPart(content=file_note(item.media_type, item.size_bytes, shown, item.name))
            return wire.UserPromptPart(content=[shown])
        case Result():
            return wire.ToolReturnPart(
                tool_name=item.tool,
                content=_result_content(item, target),
                tool_call_id=_call_id(item.call_id, target.id_length),
                outcome=_outcomes[item.outcome],
            )


def _content(file: UserFile, target: _Target) -> wire.BinaryContent | str:
    """What is sent of a file, or why it is not."""
    data = target.blobs.get(file.blob)
    if data is None:
        return MISSING
    if _is_image(file) and is_too_large(data, one_of_many=target.many_images):
        return TOO_LARGE
    return wire.BinaryContent(data, media_type=file.media_type)


def _result_content(item: Result, target: _Target) -> str | list[Any]:
    """The text, with notes on the files that are not shown, and then the images; only the text if there are none."""
    text = item.text
    images: list[wire.BinaryContent] = []
    for file in item.files:
        shown = _content(file, target) if _accepts_from_tool(target.model, file) else CANNOT_READ
        # Not as the tool's server declares it: providers compare the two and refuse the request if they differ.
        media_type = None if isinstance(shown, str) else image_type(shown.data)
        if isinstance(shown, str) or media_type is None:
            why = shown if isinstance(shown, str) else CANNOT_READ
            text += f"\n\n{file_note(file.media_type, file.size_bytes, why)}"
        else:
            images.append(wire.BinaryContent(shown.data, media_type=media_type))
    return [text, *images] if images else text


def _response_part(item: ResponseItem, target: _Target) -> wire.ModelResponsePart | None:
    provider = item.provider or ProviderData()
    match item:
        case ModelText():
            return wire.TextPart(
                content=item.text, id=provider.id, provider_name=provider.name, provider_details=provider.details
            )
        case Reasoning() if _returns(item, target.model):
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
                tool_call_id=_call_id(item.call_id, target.id_length),
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
    return call_id if length is None else short_id(call_id, length)


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


def _is_image(file: UserFile) -> bool:
    # Tools may leave the type out, and then nothing but an image is sent.
    return file.media_type.startswith("image/") or not file.media_type


def _accepts_from_tool(model: Model[Any], file: UserFile) -> bool:
    """Whether a file in a result may be sent. Images alone: nobody has chosen the others for this model.

    A provider refuses a request for one file that it does not take, and with it every later request of the thread.
    """
    return _is_image(file) and file.size_bytes <= IMAGE_BYTES and model.profile.get("supports_image_input", True)
