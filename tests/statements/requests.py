"""Requests and conversations as lines that a test can compare."""

from collections.abc import Iterable

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from perdure import messages as ours
from perdure.agent import Agent
from perdure.messages import Message
from perdure.records import LoggedMessage
from perdure.testing import Asked, Script, ScriptedModel
from tests.eventually import eventually
from tests.stack import Stack


def lines(asked: Asked) -> list[str]:
    """What the model reads, one line for each item."""
    return [line for message in asked.messages for line in _lines(message)]


def instructions(asked: Asked) -> str:
    """What it is told first."""
    return "\n\n".join(part.content for part in asked.parameters.instruction_parts or ())


def stored(path: Iterable[Message]) -> list[str]:
    """What a conversation holds, one line for each part."""
    return [line for message in path for part in message.parts for line in _stored(message, part)]


async def log_of(stack: Stack, thread: str, name: str, count: int) -> tuple[LoggedMessage, ...]:
    """The log of a history provider, once it has so many messages."""

    async def found() -> tuple[LoggedMessage, ...] | None:
        log = await stack.store.read_log(thread, name)
        return log if len(log) >= count else None

    return await eventually(found) or ()


def agent_of(script: Script, **options: object) -> tuple[Agent, ScriptedModel]:
    """An agent with one plain tool, and its model."""
    model = ScriptedModel(script)
    agent = Agent("a", model=model, **options)  # type: ignore[arg-type]  # the tests' options are right

    @agent.tool
    async def look(what: str = "") -> str:
        """Look."""
        return f"saw {what}"

    return agent, model


def _lines(message: ModelRequest | ModelResponse) -> list[str]:
    found: list[str] = []
    for part in message.parts:
        match part:
            case UserPromptPart():
                found += [f"user: {one}" for one in ([part.content] if isinstance(part.content, str) else part.content)]
            case TextPart():
                found.append(f"model: {part.content}")
            case ToolCallPart():
                found.append(f"call: {part.tool_name}")
            case ToolReturnPart():
                found.append(f"result: {part.content}")
            case _:
                found.append(f"{part.part_kind}: ")
    return found


def _stored(message: Message, part: ours.Part) -> list[str]:
    match part:
        case ours.TextPart():
            return [f"{'model' if message.role == 'assistant' else message.role}: {part.text}"]
        case ours.ToolCallPart():
            return [f"call: {part.tool}"]
        case ours.ToolResultPart():
            return [f"result: {part.content}"]
        case ours.ContextPart():
            return [f"context of {part.source}: {part.text}"]
        case _:
            return [part.kind]
