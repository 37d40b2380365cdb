"""Conversations that the model's own server keeps: a request goes on from its last answer and brings what is new.

The id of each answer is kept with its parts, so every branch goes on from its own. It counts only while nothing before
it has changed: after a deletion, a late result or a compaction the server remembers what is not so any more, and the
whole conversation is sent once again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.settings import ModelSettings

from activities.model_choice import Chosen
from activities.model_messages import CALL_ID
from perdure import messages as ours
from perdure.messages import Part, ProviderData
from perdure.records import Path

RESPONSE_ID: Final = "service_response_id"
SERVICE_CALL_ID: Final = "service_call_id"
SHAPE: Final = "service_shape"


def remembered(parts: tuple[Part, ...], response: ModelResponse, chosen: Chosen, path: Path) -> tuple[Part, ...]:
    """The parts of an answer, with what a later request needs to go on from it.

    If a call of it was left out, nobody may: the server would wait for its result.
    """
    if not chosen.continues or response.provider_response_id is None:
        return parts
    kept = sum(isinstance(part, ours.ToolCallPart) for part in parts)
    if kept < sum(isinstance(part, ToolCallPart) for part in response.parts):
        return parts
    known = {RESPONSE_ID: response.provider_response_id, SHAPE: _shape(path)}
    return tuple(_with_details(part, known) for part in parts)


def continued(chosen: Chosen, messages: list[ModelMessage], path: Path) -> tuple[Chosen, list[ModelMessage]]:
    """What is new since the last answer that the server knows, and the settings that name it; all if it knows none."""
    if not chosen.continues or chosen.anew:
        return chosen, messages
    for place in range(len(messages) - 2, -1, -1):
        last = messages[place]
        if isinstance(last, ModelResponse) and (known := _known(last, path)) is not None:
            settings = cast("ModelSettings", {**chosen.settings, "openai_previous_response_id": known})
            return replace(chosen, settings=settings), _new(last, messages[place + 1 :])
    return chosen, messages


def _known(response: ModelResponse, path: Path) -> str | None:
    shape = _shape(path)
    found = [details[RESPONSE_ID] for details in map(_details, response.parts) if details.get(SHAPE) == shape]
    return found[0] if found else None


def _new(last: ModelResponse, messages: list[ModelMessage]) -> list[ModelMessage]:
    """The messages after an answer, its calls named as the server knows them.

    A call in it that the server does not know was put there by us, to show an event, and goes along.
    """
    calls = [part for part in last.parts if isinstance(part, ToolCallPart)]
    names = {part.tool_call_id: _details(part).get(SERVICE_CALL_ID) for part in calls}
    shown = [part for part in calls if names[part.tool_call_id] is None]
    new = [_renamed(message, names) for message in messages]
    return [replace(last, parts=shown), *new] if shown else new


def _renamed(message: ModelMessage, names: Mapping[str, str | None]) -> ModelMessage:
    if isinstance(message, ModelResponse):
        # As one of nobody: the client goes on from no older answer than the last that is the provider's own.
        return replace(message, provider_name=None)
    parts = [
        replace(part, tool_call_id=names.get(part.tool_call_id) or part.tool_call_id)
        if isinstance(part, ToolReturnPart)
        else part
        for part in message.parts
    ]
    return ModelRequest(parts=parts, instructions=message.instructions)


def _details(part: Any) -> Mapping[str, Any]:
    return getattr(part, "provider_details", None) or {}


def _with_details(part: Part, known: Mapping[str, str]) -> Part:
    if not isinstance(part, ours.TextPart | ours.ReasoningPart | ours.ToolCallPart):
        return part
    provider = part.provider or ProviderData()
    details = {**(provider.details or {}), **known}
    if (own := details.get(CALL_ID)) is not None:
        details[SERVICE_CALL_ID] = own
    return part.with_(provider=provider.with_(details=details))


def _shape(path: Path) -> str:
    """What the server's memory of a conversation depends on; a child thread begins one of its own."""
    thread = path.messages[-1].thread_id if path.messages else ""
    return f"{path.shape} {thread}"
