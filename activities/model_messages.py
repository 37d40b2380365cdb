"""Between our view and pydantic-ai's messages: requests go out, a response comes back as parts.

Nothing is decided here that could differ between two requests of a thread: no clock, no random id, tools in the order
of their declaration. So what a provider caches of one request serves the next.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure import ids
from perdure.agent import Agent
from perdure.messages import Outcome, Part, ProviderData, ReasoningPart, TextPart, ToolCallPart
from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserFile, UserText

CALL_ID = "call_id"
"""Where a provider's own id of a call is kept, among the details that are extra data to us."""

_outcomes: dict[Outcome, Any] = {
    "ok": "success",
    "error": "failed",
    "denied": "denied",
    "interrupted": "interrupted",
    "cancelled": "interrupted",
    "expired": "interrupted",
}


def request_parameters(agent: Agent) -> ModelRequestParameters:
    """Instructions and tools of a request."""
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters))
        for tool in agent.tools.values()
    ]
    text = agent.instructions.strip()
    return ModelRequestParameters(
        function_tools=tools, instruction_parts=[wire.InstructionPart(content=text)] if text else None
    )


def accepted_files(view: tuple[Request | Response, ...], model: Model[Any]) -> tuple[str, ...]:
    """Blobs of the files that the model can read."""
    return tuple(
        item.blob
        for message in view
        if isinstance(message, Request)
        for item in message.items
        if isinstance(item, UserFile) and _accepts(model, item.media_type)
    )


def to_messages(
    view: tuple[Request | Response, ...], model: Model[Any], blobs: Mapping[str, bytes]
) -> list[wire.ModelMessage]:
    """The view as pydantic-ai messages. A file without bytes in `blobs` becomes a note."""
    id_length = model.profile.get("tool_call_id_length")
    return [
        wire.ModelRequest(parts=[_request_part(item, id_length, blobs) for item in message.items])
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
    item: Result | UserText | UserFile, id_length: int | None, blobs: Mapping[str, bytes]
) -> wire.ModelRequestPart:
    match item:
        case UserText():
            return wire.UserPromptPart(content=item.text)
        case UserFile() if item.blob in blobs:
            return wire.UserPromptPart(content=[wire.BinaryContent(blobs[item.blob], media_type=item.media_type)])
        case UserFile():
            name = f"{item.name}, " if item.name else ""
            note = f"[file: {name}{item.media_type}, {item.size_bytes} bytes; this model cannot read it]"
            return wire.UserPromptPart(content=note)
        case Result():
            return wire.ToolReturnPart(
                tool_name=item.tool,
                content=item.text,
                tool_call_id=_call_id(item.call_id, id_length),
                outcome=_outcomes[item.outcome],
            )


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
