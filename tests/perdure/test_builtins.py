"""Tools that come with the runtime: what a model is told of them, and what it may pass."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.agent import Agent
from perdure.builtins import RESERVED, SUBSCRIPTION_TOOLS, Threads, Timers
from perdure.codec import dumps
from perdure.errors import ConfigurationError
from perdure.timer import timer
from perdure.tools import Tool
from perdure.view import EVENT_TOOL

BY_NAME = {tool.name: tool for tool in (*Threads().tools, *Timers().tools, *SUBSCRIPTION_TOOLS)}


@pytest.mark.parametrize(
    ("name", "parameters", "required", "kind", "toolset"),
    [
        ("spawn_thread", ["instructions", "child_of"], ["instructions", "child_of"], "thread", "threads"),
        ("report_to_parent", ["report"], ["report"], "thread", "threads"),
        ("close_thread", ["thread_id", "report_to_parent"], ["thread_id"], "thread", "threads"),
        ("send_message_to_child", ["thread_id", "message"], ["thread_id", "message"], "thread", "threads"),
        ("sleep", ["seconds", "reason"], ["seconds"], "workflow", "timers"),
        ("sleep_until", ["date", "time", "timezone"], ["date", "time"], "workflow", "timers"),
        ("sleep_until_event_or_input", [], [], "workflow", "timers"),
        ("cancel_subscription", ["tool_call_id"], ["tool_call_id"], "workflow", "subscriptions"),
    ],
)
def test_each_tool_is_declared_as_the_protocol_names_it(
    name: str, parameters: list[str], required: list[str], kind: str, toolset: str
) -> None:
    """Names, parameters and which of them are required; who carries it out; every parameter has a type and words."""
    tool = BY_NAME[name]
    schema: dict[str, Any] = dict(tool.parameters)
    assert list(schema["properties"]) == parameters
    assert schema.get("required", []) == required
    assert schema["additionalProperties"] is False
    assert (tool.kind, tool.toolset, tool.operation) == (kind, toolset, name)
    for field in schema["properties"].values():
        assert field["description"]
        assert "type" in field or "anyOf" in field
    assert len(tool.description) > 60


def test_tools_come_in_a_fixed_order() -> None:
    """The order is part of what a provider caches."""
    assert [tool.name for tool in Threads().tools] == [
        "spawn_thread",
        "report_to_parent",
        "close_thread",
        "send_message_to_child",
    ]
    assert [tool.name for tool in Timers().tools] == ["sleep", "sleep_until", "sleep_until_event_or_input"]
    assert [tool.name for tool in SUBSCRIPTION_TOOLS] == ["cancel_subscription"]
    assert dumps([dict(tool.parameters) for tool in Timers().tools]) == dumps(
        [dict(tool.parameters) for tool in Timers().tools]
    )


def test_only_sleepers_let_events_through() -> None:
    """A passive call does not hold events back: the sleep family, and nothing else."""
    assert {name for name, tool in BY_NAME.items() if tool.passive} == {
        "sleep",
        "sleep_until",
        "sleep_until_event_or_input",
    }


def test_what_other_threads_are_told_may_be_told_again() -> None:
    """Reports and messages carry the id of their call, so a second run after a crash does no harm."""
    assert {tool.name for tool in Threads().tools if tool.retry_safe} == {
        "report_to_parent",
        "close_thread",
        "send_message_to_child",
    }


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("spawn_thread", '{"child_of":["r"]}', "instructions: Field required"),
        ("spawn_thread", '{"child_of":["r"],"instructions":" \\n"}', "instructions: must not be blank"),
        ("spawn_thread", '{"child_of":["r"],"instructions":5}', "instructions: must be text"),
        ("report_to_parent", "{}", "report: Field required"),
        ("report_to_parent", '{"report":""}', "report: must not be blank"),
        ("close_thread", '{"report_to_parent":"done"}', "thread_id: Field required"),
        ("send_message_to_child", '{"thread_id":"c"}', "message: Field required"),
        ("sleep", "{}", "seconds: Field required"),
        ("sleep_until", '{"date":"2026-01-01"}', "time: Field required"),
        ("sleep_until_event_or_input", '{"event":"x"}', "event: Extra inputs are not permitted"),
        ("cancel_subscription", "{}", "tool_call_id: Field required"),
        ("cancel_subscription", "[]", "not a JSON object"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(name: str, arguments: str, sentence: str) -> None:
    """What is missing or wrong is named, in one line, before anything is done."""
    with pytest.raises(ValueError, match="arguments") as refused:
        BY_NAME[name].validate(arguments)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "arguments", "values"),
    [
        (
            "spawn_thread",
            '{"instructions":" look\\n","child_of":["r","c"]}',
            {"instructions": " look\n", "child_of": ["r", "c"]},
        ),
        (
            "spawn_thread",
            '{"instructions":"\\ud800","child_of":[]}',
            {"instructions": "\ud800", "child_of": []},
        ),
        ("close_thread", '{"thread_id":"c"}', {"thread_id": "c", "report_to_parent": None}),
        ("sleep", '{"seconds":0.5}', {"seconds": 0.5, "reason": None}),
        ("sleep_until_event_or_input", "{}", {}),
    ],
)
def test_right_arguments_pass_as_they_are(name: str, arguments: str, values: dict[str, Any]) -> None:
    """The control: words keep every character, half a surrogate pair too, and what is left out has its default."""
    assert BY_NAME[name].validate(arguments) == values


@pytest.mark.parametrize("child_of", ['"r"', "null", "5", '["r",5]', "{}", None])
def test_what_is_no_stack_counts_as_none(child_of: str | None) -> None:
    """Absent or of another type it is no error of the schema: the model is to be shown its real stack."""
    rest = "" if child_of is None else f',"child_of":{child_of}'
    assert BY_NAME["spawn_thread"].validate(f'{{"instructions":"x"{rest}}}')["child_of"] == []


@pytest.mark.parametrize("seconds", ["-1", '"60"', "null", "true"])
def test_odd_seconds_are_left_to_the_timer(seconds: str) -> None:
    """They mean no wait at all, and not a failed call."""
    arguments = BY_NAME["sleep"].validate(f'{{"seconds":{seconds}}}')
    assert timer("sleep", arguments, "UTC").seconds == 0


def test_a_zone_that_is_left_out_is_the_declared_one() -> None:
    """The model is told which, and the timer takes it."""
    sleep_until = Timers("America/New_York").tools[1]
    assert "Without `timezone` they are in America/New_York." in sleep_until.description
    arguments = sleep_until.validate('{"date":"2026-11-01","time":"09:00"}')
    assert timer("sleep_until", arguments, Timers("America/New_York").timezone).due == 1793541600


@pytest.mark.parametrize("zone", ["", "localtime", "../../etc/passwd", "Mars/Phobos"])
def test_timers_need_a_zone_that_there_is(zone: str) -> None:
    """It is refused when it is declared, not when a model sleeps."""
    with pytest.raises(ConfigurationError, match="There is no time zone"):
        Timers(timezone=zone)


@pytest.mark.parametrize("depth", [0, -1])
def test_threads_need_a_level_of_children(depth: int) -> None:
    """A depth that would refuse every child is a mistake."""
    with pytest.raises(ConfigurationError, match="at least one level"):
        Threads(max_depth=depth)
    assert Threads(max_depth=1).max_depth == 1


def test_declarations_are_values() -> None:
    """Equal by what they say, and they cannot be changed after an agent was made of them."""
    assert Threads() == Threads(8)
    assert Timers() != Timers("Europe/Paris")
    assert (Threads().name, Timers().name) == ("threads", "timers")
    with pytest.raises(FrozenInstanceError):
        Threads().max_depth = 3  # type: ignore[misc]  # that it is refused is what is tested


def test_reserved_names_are_those_that_the_view_makes_up() -> None:
    """A tool of such a name could not be told from what the runtime shows."""
    assert EVENT_TOOL in RESERVED
    assert not RESERVED & BY_NAME.keys()


def test_an_agent_can_have_them_all() -> None:
    """No two share a name, and each has a model that checks its arguments."""
    agent = Agent("a", model="x", tools=BY_NAME.values())
    assert list(agent.tools) == list(BY_NAME)
    tools: list[Tool] = list(agent.tools.values())
    assert all(tool.arguments is not None and issubclass(tool.arguments, BaseModel) for tool in tools)
