"""Structured output on its way: the tool that the model answers with, and what becomes of its calls.

A call that fits is replaced by its JSON text, and the turn is complete. One that does not, or that came beside calls
of tools, keeps its place with an error, so that the model gets another round within the turn's limit of steps: what it
said beside other calls it said without their results, which are carried out first. After a few in a row that do not fit
the turn ends.
"""

from dataclasses import replace
from itertools import groupby, takewhile
from typing import Final

from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure import ids
from perdure.codec import clip
from perdure.messages import Part, ReasoningPart, TextPart, ToolCallPart
from perdure.output import FINAL_RESULT, Output
from perdure.records import Path

OTHERS_FIRST: Final = "The other calls were carried out first. Give the final answer when you have seen their results."
ANSWERS: Final = 3
"""How many answers in a row may not fit. A model that has read twice what is wrong will hardly find it later, and each
time costs a whole request; the first correction is often one of form alone, so that two would be too few."""

_ADVICE: Final = "Ask again, or let another model answer."
_DETAIL_CHARS: Final = 500
WORDS: Final = f"Words alone are no answer here: call {FINAL_RESULT} with the final answer."


def with_output(parameters: ModelRequestParameters, output: Output | None) -> ModelRequestParameters:
    """The request with the tool that the model has to answer with, after all others."""
    if output is None:
        return parameters
    final = ToolDefinition(
        name=FINAL_RESULT,
        description=output.description,
        parameters_json_schema=dict(output.schema),
        kind="output",
    )
    # A server's tool of the same name, which nobody could refuse when the agent was declared, is not offered.
    others = [tool for tool in parameters.function_tools if tool.name != FINAL_RESULT]
    return replace(parameters, function_tools=others, output_tools=[final], output_mode="tool", allow_text_output=False)


def answered(parts: tuple[Part, ...], output: Output) -> tuple[Part, ...] | None:
    """The parts with the answer in the place of its call; None if they hold none.

    A provider that cannot make a model call a tool may bring the answer as words. Of several calls with an answer the
    first counts, and words beside it go: the answer is the object alone. Thoughts stay to be read, without what they
    would go back with: a provider refuses a thought whose call is not there any more (case B47).
    """
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    if not calls:
        words = [part for part in parts if isinstance(part, TextPart)]
        fits = output.objection("".join(part.text for part in words)) is None
        return parts if words and fits else None
    if any(call.tool != FINAL_RESULT for call in calls):
        return None
    final = next((call for call in calls if output.objection(call.arguments) is None), None)
    if final is None:
        return None
    thoughts = (part.with_(signature=None, provider=None) for part in parts if isinstance(part, ReasoningPart))
    return (*thoughts, TextPart(text=final.arguments, step=final.step))


def asked_again(parts: tuple[Part, ...], path: Path) -> tuple[Part, ...]:
    """Words where an answer was wanted, and a call that no model made, which says so: the model gets another round.

    The step has no call, so this is its first; it is the one after the last that the turn's message holds.
    """
    turn = path.messages[-1]
    step = max((part.step for part in turn.parts), default=-1) + 1
    call_id = ids.call_id(turn.thread_id, turn.turn, step, 0)
    return (*parts, ToolCallPart(call_id=call_id, tool=FINAL_RESULT, error=WORDS, step=step))


def given_up(parts: tuple[Part, ...], path: Path, output: Output) -> str | None:
    """Why the turn ends with these parts, which hold no answer, in a sentence for people; None to ask once more.

    What is counted are the steps before this one in the turn's own message. These are committed before the step is
    begun, so every attempt of it, on whatever worker, counts the same.
    """
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    if any(call.tool != FINAL_RESULT for call in calls) or _refused_in_a_row(path) + 1 < ANSWERS:
        return None
    misfits = output.misfits(calls[-1].arguments) if calls else ["it came as words alone"]
    why = clip("; ".join(misfits), _DETAIL_CHARS).rstrip(".")
    return f"The answer did not fit {output.name} three times in a row: {why}. {_ADVICE}"


def _refused_in_a_row(path: Path) -> int:
    """How many of the last steps brought nothing but answers that were refused, those that were cut off included."""
    if not path.messages or path.messages[-1].role != "assistant":
        return 0
    calls = [part for part in path.messages[-1].parts if isinstance(part, ToolCallPart)]
    steps = [list(group) for _, group in groupby(reversed(calls), key=lambda call: call.step)]
    refused = takewhile(lambda step: all(call.tool == FINAL_RESULT and call.error for call in step), steps)
    return sum(1 for _ in refused)


def objection(call: ToolCallPart, parts: tuple[Part, ...], output: Output) -> str | None:
    """Why a call of the tool is no answer."""
    if any(isinstance(part, ToolCallPart) and part.tool != FINAL_RESULT for part in parts):
        return OTHERS_FIRST
    return output.objection(call.arguments)
