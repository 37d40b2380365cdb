"""Context providers as they are declared: what an agent refuses, and what of a provider counts."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.agent import Agent
from perdure.context import (
    Context,
    ProviderRun,
    after_hook,
    before_hook,
    has_hooks,
    is_each_call,
    is_required,
    is_sink,
    said,
    timeout_of,
)
from perdure.errors import ConfigurationError, InvalidContext
from perdure.history_provider import HistoryProvider, InMemoryHistoryProvider
from perdure.tools import function_tool
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext


def provider(name: object = "b", **attributes: Any) -> Any:
    """A provider with just these attributes."""
    return SimpleNamespace(name=name, **attributes)


async def hook(*_: object) -> None:
    """A hook."""


def not_a_hook(*_: object) -> None:
    """Forgot its `async`."""


@pytest.mark.parametrize(
    ("context", "sentence"),
    [
        ([provider(" ")], "the context provider SimpleNamespace needs a name"),
        ([provider(None)], "needs a name"),
        ([provider(), provider()], "two context providers named 'b'"),
        ([provider(before_run=hook, on_invoking=hook)], "`before_run` and `on_invoking` are one hook"),
        ([provider(after_run=hook, on_invoked=hook)], "`after_run` and `on_invoked` are one hook"),
        ([provider(on_invoked=not_a_hook)], "`after_run` must be an `async def`"),
        ([HistoryProvider(store_context_from=["rga"]), provider("rag")], "names 'rga', which is no context provider"),
        ([provider(timeout=timedelta())], "within a timeout of 0:00:00 nothing can be asked"),
        (
            [HistoryProvider(), InMemoryHistoryProvider()],
            "the providers 'history' and 'memory' both load the conversation",
        ),
        (
            [provider(tools=[hook])],
            r"^Context provider 'b': its tools are made with `function_tool\(\.\.\.\)`; hook is a plain function\.$",
        ),
        ([provider(tools=["look"])], r"^Context provider 'b': its tools are made with .*; 'look' is none\.$"),
        (
            [provider(tools=hook)],
            r"^Context provider 'b': its `tools` are a list of what `function_tool\(\.\.\.\)` makes",
        ),
    ],
)
def test_providers_that_cannot_be_are_refused_when_the_agent_is_declared(context: list[Any], sentence: str) -> None:
    """With a sentence that says what to do."""
    with pytest.raises(ConfigurationError, match=sentence):
        Agent("a", model="x", context=context)


def test_providers_that_can_be_are_taken() -> None:
    """The controls of what is refused."""
    log = HistoryProvider("audit", load_messages=False)
    Agent("a", model="x", context=[provider(), provider("c", before_run=hook, on_invoked=hook), HistoryProvider(), log])
    Agent("a", model="x", context=[HistoryProvider(store_context_from=["b"]), provider()])
    Agent("a", model="x", context=[HistoryProvider(load_messages=False), InMemoryHistoryProvider()])
    Agent("a", model="x", context=[HistoryProvider(load_messages=False), log], history="service")


def test_the_tools_of_providers_are_distinct_and_not_reserved() -> None:
    """Among themselves, and from the agent's own, whichever is declared first."""

    async def look() -> str:
        """Look."""
        return ""

    tool = function_tool(look)
    two = [provider("b", tools=[tool]), provider("c", tools=[tool])]
    with pytest.raises(ConfigurationError, match="two tools named 'look'"):
        Agent("a", model="x", context=two)
    with pytest.raises(ConfigurationError, match="two tools named 'look'"):
        Agent("a", model="x", tools=[tool], context=two[:1])
    with pytest.raises(ConfigurationError, match="two tools named 'look'"):
        Agent("a", model="x", context=two[:1]).add_tool(tool)
    with pytest.raises(ConfigurationError, match="look is a plain function"):
        Agent("a", model="x", tools=[tool], context=[provider("b", tools=[look])])
    reserved = function_tool(look, name="receive_event__injected")
    with pytest.raises(ConfigurationError, match="reserved"):
        Agent("a", model="x", context=[provider(tools=[reserved])])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "audit"}, "give it load_messages=False"),
        ({"store_inputs": False}, "stored in any case"),
        ({"store_outputs": False}, "stored in any case"),
        ({"store_context_from": "rag"}, "as a list of names"),
    ],
)
def test_a_history_provider_that_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    """A log gives no model anything, and the thread's own conversation is always stored."""
    with pytest.raises(ConfigurationError, match=sentence):
        HistoryProvider(**options)


def test_either_name_of_a_hook_is_found() -> None:
    """And no hook is none."""
    assert before_hook(provider(on_invoking=hook)) is hook
    assert before_hook(provider(before_run=hook)) is hook
    assert after_hook(provider(on_invoked=hook)) is hook
    assert after_hook(provider(after_run=hook)) is hook
    assert before_hook(provider()) is None
    assert after_hook(provider()) is None


def test_a_turn_is_looked_after_only_for_those_who_want_it() -> None:
    """A history provider that says nothing new costs no activity; a log, a listener and a teller do."""
    assert not has_hooks([])
    assert not has_hooks([HistoryProvider(), provider()])
    assert has_hooks([HistoryProvider("audit", load_messages=False)])
    assert has_hooks([HistoryProvider(load_messages=False)])
    assert has_hooks([provider(before_run=hook)])
    assert has_hooks([provider(on_invoked=hook)])


def test_what_is_said_is_a_copy() -> None:
    """Lists that the provider goes on filling, and texts that become messages."""
    messages: list[ContextMessage | str] = ["one"]
    answer = Context(instructions="i", messages=messages, replace=messages)
    kept = said(provider(), answer, 2)
    messages.append("two")
    one = (ContextMessage(text="one"),)
    assert kept == ProviderContext(source="b", instructions="i", messages=one, replace=one, step=2)
    assert said(provider(), None, 0) == ProviderContext(source="b")


def test_what_is_no_context_is_refused() -> None:
    """Nothing is guessed."""
    for answer in ("words", {"instructions": "x"}, Context(messages="one text"), Context(tools=["unknown"])):
        with pytest.raises(InvalidContext):
            said(provider(), answer, 0)


def test_a_turn_context_joins_what_was_said_and_the_newest_counts() -> None:
    """Instructions in order with a blank line between, blank ones left out; replacements one after the other."""
    a0 = ProviderContext(source="a", instructions=" A ", replace=(), messages=(ContextMessage(text="a"),))
    b0 = ProviderContext(source="b", instructions="B", problem="broken")
    c0 = ProviderContext(source="c", replace=(ContextMessage(text="c"),))
    b1 = ProviderContext(source="b", instructions="B1", messages=(ContextMessage(text="b"),), step=1)
    first, second = TurnContext(providers=(a0, b0, c0)), TurnContext(providers=(a0, b0, c0, b1), step=1)
    assert (first.instructions, second.instructions) == ("A\n\nB", "A\n\nB1")
    assert (first.problems, second.problems) == (("broken",), ())
    assert first.replace == (ContextMessage(text="c"),)
    assert TurnContext(providers=(a0,)).replace == ()
    assert TurnContext(providers=(b0,)).replace is None
    assert [[one.text for one in second.messages(step)] for step in (0, 1)] == [["a"], ["b"]]


async def test_without_its_conversation_a_model_reads_this_turn() -> None:
    """The history provider replaces it by nothing."""
    run = ProviderRun("t", "a", "default", 1, 0, (), {})
    ask = before_hook(HistoryProvider(load_messages=False))
    assert ask is not None
    assert await ask(run) == Context(replace=())
    assert before_hook(HistoryProvider()) is None


def test_a_provider_that_says_nothing_of_itself_is_required_and_asked_once() -> None:
    """For each hook it has half a minute, and what it keeps counts."""
    plain = provider(before_run=hook)
    assert (is_required(plain), is_each_call(plain), is_sink(plain)) == (True, False, False)
    assert timeout_of(plain) == timedelta(seconds=30)
    other = provider(required=False, each_call=True, write_only=True, timeout=timedelta(seconds=1))
    assert (is_required(other), is_each_call(other), is_sink(other)) == (False, True, True)
    assert timeout_of(other) == timedelta(seconds=1)
