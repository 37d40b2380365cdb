"""The view as pydantic-ai messages."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile

from activities.model_messages import to_messages
from perdure.messages import ProviderData
from perdure.models import resolve
from perdure.testing import ScriptedModel
from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserText


@pytest.fixture
def openai() -> Model[Any]:
    """A model whose system is `openai`."""
    return resolve("openai:x", {"base_url": "http://127.0.0.1:9/v1"})


@pytest.mark.parametrize(
    ("thought", "goes_back"),
    [
        (Reasoning("t", "sig", ProviderData(name="openai")), True),
        (Reasoning("t", None, ProviderData(name="openai", id="reasoning_content")), True),
        (Reasoning("t", None, ProviderData(name="openai", id="content")), False),
        (Reasoning("t", None, ProviderData(name="openai")), False),
        (Reasoning("t", "sig", ProviderData(name="anthropic")), False),
        (Reasoning("t", "sig"), False),
    ],
    ids=["signed", "from its own field", "from the words", "unsigned", "of another provider", "of nobody"],
)
def test_b20_a_thought_goes_back_where_it_came_from_or_nowhere(
    openai: Model[Any], thought: Reasoning, goes_back: bool
) -> None:
    """B20: what would have to become visible text is left out instead."""
    (message,) = to_messages((Response((thought, ModelText("so"))),), openai, {})
    assert isinstance(message, ModelResponse)
    assert [isinstance(part, ThinkingPart) for part in message.parts] == ([True, False] if goes_back else [False])


def test_ids_are_shortened_the_same_way_for_call_and_result() -> None:
    """A provider that takes nine characters gets nine, and the pair still matches."""
    model = ScriptedModel(["x"], profile=ModelProfile(tool_call_id_length=9))
    calls = tuple(Call(f"call_{number:032x}", "a", "{}") for number in range(3))
    results = tuple(Result(call.call_id, "a", "r") for call in calls)
    response, request = to_messages((Response(calls), Request(results)), model, {})
    asked = [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
    answered = [part.tool_call_id for part in request.parts if isinstance(part, ToolReturnPart)]
    assert asked == answered
    assert len(set(asked)) == 3
    assert {len(call_id) for call_id in asked} == {9}


def test_a_providers_own_call_id_stays_here() -> None:
    """It is extra data: only the other details go back to the provider."""
    provider = ProviderData(name="scripted", id="fc_1", details={"call_id": "p1", "thought_signature": "s"})
    (message,) = to_messages((Response((Call("c", "a", "{}", provider),)),), ScriptedModel(["x"]), {})
    part = message.parts[0]
    assert isinstance(part, ToolCallPart)
    assert (part.tool_call_id, part.id, part.provider_details) == ("c", "fc_1", {"thought_signature": "s"})


def test_words_stay_words() -> None:
    """A plain request is a plain prompt."""
    (message,) = to_messages((Request((UserText("hi"),)),), ScriptedModel(["x"]), {})
    assert isinstance(message, ModelRequest)
    assert [part.part_kind for part in message.parts] == ["user-prompt"]


_two_processes = """
from activities.model_messages import request_parameters
from perdure.agent import Agent
from perdure.tools import Tool
names = ["delta", "alpha", "echo", "bravo", "golf", "foxtrot", "hotel", "charlie"]
schema = {"type": "object", "properties": {}}
agent = Agent("a", model="x", tools=[Tool(name, "", schema, kind="client") for name in names])
print([tool.name for tool in request_parameters(agent).function_tools])
"""


@pytest.mark.slow
def test_b39_tools_keep_their_order_in_every_process() -> None:
    """B39: the order of eight tools is that of their declaration, whatever the hash seed."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", _two_processes],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    }
    names = ["delta", "alpha", "echo", "bravo", "golf", "foxtrot", "hotel", "charlie"]
    assert printed == {f"{names}\n"}
