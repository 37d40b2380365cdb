"""One run of a Python tool. Whatever it does, it ends in a text for the model."""

import asyncio
import inspect
from typing import Any

from activities.tool_output import ToolOutput, error_output, tool_output
from activities.tool_thread import in_thread
from perdure.errors import ToolError
from perdure.tools import Tool


async def run_tool(tool: Tool, arguments: str) -> ToolOutput:
    """Check the arguments, run the function within its time, and encode what it returned.

    Only a cancellation from outside leaves here as an exception, and what ends the whole process (KeyboardInterrupt).
    All else is the model's to know: an error without a text, a CancelledError that the tool raised itself, SystemExit
    of a library that takes itself for a program.
    """
    try:
        checked = tool.validate(arguments)
    except Exception as error:  # validators of parameter types are code of the tool's author
        return error_output(str(error) if isinstance(error, ValueError) else described(error))
    deadline = asyncio.timeout(tool.timeout.total_seconds())
    try:
        async with deadline:
            return await _call(tool, checked)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # see the docstring
        if _is_cancelled():
            # Also if the tool has turned the cancellation into another error: it did not end by itself.
            raise asyncio.CancelledError from error
        if deadline.expired():
            return error_output(_late(tool))
        if isinstance(error, ToolError) and str(error).strip():
            return error_output(str(error))
        return error_output(described(error))


async def _call(tool: Tool, arguments: dict[str, Any]) -> ToolOutput:
    assert tool.function is not None
    if inspect.iscoroutinefunction(tool.function):
        returned = await tool.function(**arguments)
    else:
        returned = await in_thread(tool.function, **arguments)
        if inspect.isawaitable(returned):
            returned = await returned
    # Encoding something huge takes seconds, and the heart has to beat meanwhile.
    return tool_output(returned) if isinstance(returned, str) else await in_thread(tool_output, returned)


def _late(tool: Tool) -> str:
    sentence = f"{tool.name} did not return within {tool.timeout.total_seconds():g} s."
    return sentence if inspect.iscoroutinefunction(tool.function) else f"{sentence} It may still be running."


def described(error: BaseException) -> str:
    """What an error says, whatever it is: code of others raises it."""
    try:
        text = str(error)
    except Exception:  # an exception that cannot say what it is still has a type
        text = ""
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
