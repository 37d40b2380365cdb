"""Agents: declared in Python, looked up by name."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure.agent import Agent, Agents
from perdure.errors import ConfigurationError, UsageError
from perdure.limits import Limits
from perdure.tools import Tool


def test_a_decorated_function_is_a_tool_and_stays_a_function() -> None:
    """With and without options; the order is that of the declarations, which is what the model always sees."""
    agent = Agent("a", model="scripted")

    @agent.tool
    async def second(city: str) -> str:
        """Second."""
        return city

    @agent.tool(name="first", retry_safe=True, timeout=timedelta(seconds=3))
    def third() -> str:
        """Third."""
        return "called"

    assert third() == "called"
    assert list(agent.tools) == ["second", "first"]
    assert agent.tools["first"].retry_safe
    assert agent.tools["first"].timeout == timedelta(seconds=3)
    assert agent.tools["second"].function is second


def test_a_client_tool_is_declared_by_its_signature() -> None:
    """It waits for a result from the user's side; the function only describes it."""
    agent = Agent("a", model="scripted")

    @agent.tool(kind="client")
    def ask(question: str) -> str:
        """Ask the user."""
        raise NotImplementedError

    assert agent.tools["ask"].kind == "client"
    assert list(agent.tools["ask"].parameters["properties"]) == ["question"]


def test_tools_elsewhere_are_declared_by_their_schema() -> None:
    """A client-side one needs no function, an activity has a queue and perhaps another name there."""
    agent = Agent("a", model="scripted")
    parameters = {"properties": {"id": {"type": "integer"}}}
    asked = agent.client_tool("ask", description="Ask.", parameters=parameters)
    looked = agent.activity_tool(
        "look_up",
        description="Look it up.",
        parameters=parameters,
        task_queue="catalogue",
        activity="LookUp",
        retry_safe=True,
        timeout=timedelta(seconds=3),
    )
    assert (asked.kind, asked.parameters) == ("client", {"type": "object", **parameters})
    assert (looked.kind, looked.operation, looked.task_queue) == ("activity", "LookUp", "catalogue")
    assert (looked.retry_safe, looked.timeout) == (True, timedelta(seconds=3))
    assert agent.tools == {"ask": asked, "look_up": looked}


def test_every_kind_of_tool_may_need_an_approval() -> None:
    """Each declaration takes it, and says nothing unless it does; the agent speaks for those, and asks nobody."""
    agent = Agent("a", model="scripted")
    schema = {"type": "object"}

    @agent.tool(approval="always")
    def send() -> str:
        """Send."""
        return ""

    agent.client_tool("ask", description="", parameters=schema, approval="always")
    agent.activity_tool("look_up", description="", parameters=schema, task_queue="q", approval="always")
    agent.client_tool("show", description="", parameters=schema)
    assert [tool.approval for tool in agent.tools.values()] == ["always", "always", "always", None]
    assert agent.approval == "never"


def test_an_agent_has_a_policy_of_its_own() -> None:
    """A word, or a function of a tool's name and the arguments."""

    def policy(tool: str, arguments: Mapping[str, Any]) -> bool:
        return tool == "send" and bool(arguments)

    assert Agent("a", model="m", approval="always").approval == "always"
    assert Agent("a", model="m", approval=policy).approval is policy
    wrong: Any = len
    with pytest.raises(ConfigurationError, match="must take a tool's name and the arguments") as refused:
        Agent("a", model="m", approval=wrong)
    assert str(refused.value).startswith("Agent 'a': ")


@pytest.mark.parametrize("parameters", [{"type": "array"}, {"properties": 5}, {"type": "object", "minProperties": "x"}])
def test_a_schema_that_is_none_is_refused_when_it_is_declared(parameters: dict[str, object]) -> None:
    """A provider would refuse it with every request, and no arguments could be checked."""
    agent = Agent("a", model="scripted")
    with pytest.raises(ConfigurationError, match="Tool 'ask': its parameters are no JSON schema of an object"):
        agent.client_tool("ask", description="", parameters=parameters)
    with pytest.raises(ConfigurationError, match="Tool 'ask'"):
        agent.activity_tool("ask", description="", parameters=parameters, task_queue="q")
    assert agent.tools == {}


def test_two_tools_of_one_name_are_refused() -> None:
    """One line that says which and what to do."""
    ask = Tool(name="ask", description="", parameters={"type": "object"}, kind="client")
    with pytest.raises(ConfigurationError, match="two tools named 'ask'; rename one"):
        Agent("a", model="scripted", tools=[ask, ask])


def test_what_is_left_out_has_a_default() -> None:
    """A name and a model are enough."""
    agent = Agent("a", model="scripted", settings={"temperature": 0})
    assert (agent.instructions, agent.limits, agent.settings) == ("", Limits(), {"temperature": 0})
    assert agent.tools == {}


@pytest.mark.parametrize("wrong", ["a lot", "off", 3])
def test_how_much_its_model_thinks_is_checked(wrong: object) -> None:
    """When it is declared, and not by the first turn; the levels are listed."""
    with pytest.raises(ConfigurationError) as caught:
        Agent("a", model="openai:x", settings={"thinking": wrong})
    assert str(caught.value) == (
        f"Agent 'a' sets thinking to what it cannot be: {wrong!r} is none of minimal, low, medium, high, xhigh, max, "
        "True, False."
    )


def test_agents_are_found_by_name_and_the_first_is_the_default() -> None:
    """A worker serves them all."""
    one, two = Agent("one", model="m"), Agent("two", model="m")
    agents = Agents([one, two])
    assert agents["two"] is two
    assert agents.default is one
    assert list(agents) == ["one", "two"]
    assert len(agents) == 2
    assert "three" not in agents
    assert agents.get("three") is None


def test_an_unknown_agent_is_a_sentence_that_names_the_known_ones() -> None:
    """Whoever mistyped it sees what there is."""
    with pytest.raises(UsageError, match="There is no agent 'thre' on this worker; it serves one, two"):
        Agents([Agent("one", model="m"), Agent("two", model="m")])["thre"]


def test_a_worker_needs_agents_of_different_names() -> None:
    """Neither none nor two of one name."""
    with pytest.raises(ConfigurationError, match="at least one agent"):
        Agents([])
    with pytest.raises(ConfigurationError, match="Two agents are named 'one'"):
        Agents([Agent("one", model="m"), Agent("one", model="m")])
