"""What an MCP tool returned, as text and files for the model."""

import base64
import binascii
from dataclasses import replace
from typing import cast

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from activities.tool_output import RESULT_CHARS, ToolFile, ToolOutput, error_output, tool_output
from perdure.codec import loads


def result_output(result: CallToolResult) -> ToolOutput:
    """Encode a result: its items in order, one below the other, a file as a line that says what follows as a file.

    The structured content follows as JSON unless the text says the same; integers keep all their digits in both.
    """
    files: list[ToolFile] = []
    texts = [_text(item, files) for item in result.content]
    if result.structured_content is not None and not _is_said(result.structured_content, texts):
        structured = tool_output(result.structured_content)
        if structured.outcome == "error":
            return structured
        texts.append(structured.content)
    output = tool_output("\n".join(texts))
    if sum(len(file.data) for file in files) > RESULT_CHARS:
        return error_output(f"The tool ran, but the files of its result have more than {RESULT_CHARS:,} bytes.")
    if output.outcome == "error" or not result.is_error:
        return replace(output, files=tuple(files))
    said = output.content if output.content.strip() else "The tool failed and did not say why."
    return ToolOutput(said, "error", tuple(files))


def _text(item: ContentBlock, files: list[ToolFile]) -> str:
    match item:
        case TextContent():
            return item.text
        case ImageContent():
            return _file("image", item.mime_type, item.data, files)
        case AudioContent():
            return _file("audio", item.mime_type, item.data, files)
        case ResourceLink():
            return f"[link to {item.uri}: {item.title or item.name}]"
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return f"[{resource.uri}]\n{resource.text}"
            return _file(resource.uri, resource.mime_type or "application/octet-stream", resource.blob, files)


def _file(what: str, media_type: str, encoded: str, files: list[ToolFile]) -> str:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}, {media_type}: left out, since the server did not encode it as base64]"
    files.append(ToolFile(media_type, data))
    return f"[{what}, {media_type}, {len(data):,} bytes: file {len(files)} of this result]"


def _is_said(structured: object, texts: list[str]) -> bool:
    """Whether the text says what the structured content does, as servers are asked to have it.

    Servers that may only send objects wrap other values as `{"result": value}`, and write a list's items one by one.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(cast("dict[str, object]", structured)["result"])
    whole = "\n".join(texts)
    said: list[object] = [whole, texts, _parsed(whole), [_parsed(text) for text in texts]]
    return bool(texts) and any(value in said for value in values)


def _parsed(text: str) -> object:
    try:
        return loads(text)
    except ValueError:
        return text
