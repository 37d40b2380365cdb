"""The rules V1 to V8 over a request as it went to a model, independent of the code that builds it."""

from collections.abc import Iterator, Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from perdure.codec import dumps, loads_object


def wire_violations(messages: Sequence[ModelMessage]) -> list[str]:
    """What is wrong with a request, each beginning with the rule's name."""
    return [*_pairing(messages), *_contents(messages)]


def _pairing(messages: Sequence[ModelMessage]) -> Iterator[str]:
    seen: set[str] = set()
    for before, message in zip((None, *messages), (*messages, None), strict=True):
        asked = [part.tool_call_id for part in before.parts if isinstance(part, ToolCallPart)] if before else []
        parts = message.parts if isinstance(message, ModelRequest) else ()
        answered = [part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)]
        if asked != [name for name in answered if name in asked]:
            yield f"V1: calls {asked} are answered by {answered}"
        if set(answered) - set(asked):
            yield f"V2: results {answered} belong to calls {asked}"
        if len(set(asked)) < len(asked) or seen & set(asked) or "" in asked:
            yield f"V3: ids {asked}"
        seen.update(asked)
        if any(isinstance(part, UserPromptPart) for part in parts[: len(answered)]):
            yield "V6: words before results"


def _contents(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ModelResponse) and (not message.parts or isinstance(message.parts[-1], ThinkingPart)):
            yield "V7: a response ends on a thought, or says nothing"
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                try:
                    loads_object(part.args if isinstance(part.args, str) else dumps(part.args))
                except ValueError:
                    yield f"V5: arguments {part.args}"
            content = part.content if isinstance(part, TextPart | UserPromptPart | ToolReturnPart) else "-"
            if isinstance(content, str) and not content.strip():
                yield "V4: blank text"
            try:
                str(content).encode("utf-8")
            except UnicodeEncodeError:
                yield "V8: cannot be encoded"
