"""Statements 1 to 10: what providers say, in which order, and what happens when one fails."""

import asyncio

import pytest
from temporalio.client import Client

from perdure.context import Context, ProviderRun
from perdure.errors import ConfigurationError
from perdure.history_provider import HistoryProvider, InMemoryHistoryProvider
from perdure.messages import ContextPart, Status
from perdure.policy import ErrorType
from perdure.session import Session
from perdure.testing import Call, Reply
from perdure.tools import function_tool
from perdure.turn_context import ContextMessage
from tests.activities.conversation import Conversation, FaultyStore, failed
from tests.activities.providers import Silent, Teller
from tests.eventually import eventually
from tests.stack import Stack
from tests.statements.requests import agent_of, instructions, lines, log_of, stored
from tests.workflows.conftest import StackFactory


async def pending_failure(stack: Stack, thread: str, activity: str) -> str:
    """Why an activity of the thread that is tried again has failed last, as the Temporal UI shows it."""
    description = await stack.handle(thread).describe()
    pending = description.raw_description.pending_activities
    return "".join(one.last_failure.message for one in pending if one.activity_type.name == activity)


async def test_s01_before_hooks_run_in_order_and_after_hooks_in_reverse(start_stack: StackFactory, thread: str) -> None:
    """Providers A, B, C: asked A, B, C, and told C, B, A."""
    journal: list[str] = []
    agent, _ = agent_of(["hello"], context=[Teller(name, journal=journal) for name in "ABC"])
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "hi") == "hello"
    await eventually(lambda: len(journal) == 6)
    assert journal == [f"before {name}" for name in "ABC"] + [f"after {name}" for name in "CBA"]


async def test_s02_instructions_of_all_providers_reach_the_model_and_are_not_stored(
    start_stack: StackFactory, thread: str
) -> None:
    """After the agent's own, in the order of registration; nothing in the store holds them once the turn is over."""
    first, second = (Silent(name, Context(instructions=f"Be {name}.")) for name in ("brief", "kind"))
    agent, model = agent_of(["hello"], context=[first, second], instructions="You help.")
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    assert instructions(model.requests[0]) == "You help.\n\nBe brief.\n\nBe kind."
    assert stored(await stack.client.history(thread)) == ["user: hi", "model: hello"]

    async def forgotten() -> bool:
        return await stack.store.get_turn_context(thread, 1, 0) is None

    await eventually(forgotten)


async def test_s03_an_injected_message_stands_between_history_and_input_and_is_not_stored(
    start_stack: StackFactory, thread: str
) -> None:
    """In each turn anew, also while the turn's tools run."""
    hints = Teller("hints", "hint 1", "hint 2")
    agent, model = agent_of(["hello", Reply(Call("look", {"what": "it"})), "there"], context=[hints])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "where?")
    beginning = ["user: hi", "model: hello", "user: hint 2", "user: where?"]
    assert [lines(asked) for asked in model.requests] == [
        ["user: hint 1", "user: hi"],
        beginning,
        [*beginning, "call: look", "result: saw it"],
    ]
    assert stored(await stack.client.history(thread)) == [
        *("user: hi", "model: hello"),
        *("user: where?", "call: look", "result: saw it", "model: there"),
    ]


async def test_s04_kept_context_is_stored_with_its_source_before_the_answer(
    start_stack: StackFactory, thread: str
) -> None:
    """And read before the words of its turn ever after; `store_context_from` keeps that of the listed sources only."""
    history = HistoryProvider(store_context_from=["hints"])
    agent, model = agent_of(
        ["hello", "there"], context=[history, Teller("hints", "hint 1", "hint 2"), Teller("clock", "noon", "one")]
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "where?")
    path = await stack.client.history(thread)
    assert path[1].parts[0] == ContextPart(source="hints", text="hint 1")
    assert stored(path) == [
        *("user: hi", "context of hints: hint 1", "model: hello"),
        *("user: where?", "context of hints: hint 2", "model: there"),
    ]
    assert lines(model.requests[0]) == ["user: hint 1", "user: noon", "user: hi"]
    assert lines(model.requests[1]) == [
        *("user: hint 1", "user: hi", "model: hello"),
        *("user: hint 2", "user: one", "user: where?"),
    ]


async def test_s04_a_log_keeps_context_before_the_input(start_stack: StackFactory, thread: str) -> None:
    """With `store_context` it holds what all have said, each with its source; without it nothing."""
    agent, _ = agent_of(
        ["hello"],
        context=[
            HistoryProvider("all", load_messages=False, store_context=True),
            HistoryProvider("some", load_messages=False, store_context_from=["clock"]),
            HistoryProvider("none", load_messages=False),
            Teller("hints", "a hint"),
            Teller("clock", "noon"),
        ],
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    held: dict[str, list[tuple[str | None, str]]] = {}
    for name in ("all", "some", "none"):
        log = await log_of(stack, thread, name, 2)
        held[name] = [(message.source, message.text) for message in log]
    turn = [(None, "hi"), (None, "hello")]
    assert held == {
        "all": [("hints", "a hint"), ("clock", "noon"), *turn],
        "some": [("clock", "noon"), *turn],
        "none": turn,
    }


async def test_s05_what_a_provider_says_again_and_again_stays_its_own(start_stack: StackFactory, thread: str) -> None:
    """The object that it hands out in each turn is not marked and not changed; each turn reads it once."""
    message = ContextMessage(text="the same")
    mine: list[ContextMessage | str] = [message]
    context = Context(messages=mine)
    agent, model = agent_of(["one", "two"], context=[HistoryProvider(store_context=True), Teller("hints", context)])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "again")
    assert mine == [ContextMessage(text="the same")]
    assert context == Context(messages=[message])
    assert lines(model.requests[1]).count("user: the same") == 2, "one of each turn"


async def test_s06_a_provider_cannot_add_what_wraps_the_agent() -> None:
    """Only instructions, messages, tools and a replacement: all else fails, and no model is asked."""

    class Meddler:
        name = "meddler"

        async def before_run(self, run: ProviderRun) -> Context:
            """Try it."""
            return Context(middleware=[print])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # the mistake

    agent, model = agent_of(["hello"], context=[Meddler()])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    assert "Context provider 'meddler' failed: TypeError" in (await failed(thread.complete())).message
    assert model.requests == []


def test_s07_a_provider_tool_with_the_name_of_an_agents_tool_is_refused() -> None:
    """The error names the tool; neither is chosen silently. Control: under another name it is taken."""

    async def look() -> str:
        """Look."""
        return ""

    with pytest.raises(ConfigurationError, match="two tools named 'look'"):
        agent_of(["hello"], context=[Teller("b", tools=[function_tool(look)])])
    agent, _ = agent_of(["hello"], context=[Teller("b", tools=[function_tool(look, name="see")])])
    assert list(agent.tools) == ["look"]


async def test_s07_a_provider_tool_runs_like_any_other(start_stack: StackFactory, thread: str) -> None:
    """When it is offered; when it is not, a model that calls it all the same is told that there is none."""

    async def search(words: str) -> str:
        """Search."""
        return f"found {words}"

    called = Reply(Call("search", {"words": "x"}))
    tools = Teller("b", Context(tools=["search"]), Context(tools=[]), tools=[function_tool(search)])
    agent, model = agent_of([called, "done", called, "done"], context=[tools])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    assert model.requests[0].tools == ("look", "search", "read_result")
    assert model.requests[1].results == ("found x",)
    await stack.client.ask(thread, "again")
    assert model.requests[2].tools == ("look", "read_result")
    assert "search" in model.requests[3].results[0]
    assert "found" not in model.requests[3].results[0]


async def test_s08_a_before_hook_that_fails_keeps_the_model_from_being_asked() -> None:
    """Nothing is stored, and the error names the provider; the next try may succeed."""
    agent, model = agent_of(
        ["hello"], context=[Teller("A"), Teller("B", ValueError("no index"), "a hint"), Teller("C")]
    )
    thread = await Conversation.start(agent)
    await thread.say("hi")
    error = await failed(thread.complete())
    assert (error.type, error.non_retryable) == (ErrorType.CONTEXT, False)
    assert "'B'" in error.message
    assert model.requests == []
    assert await thread.parts() == ()
    assert (await thread.complete(attempt=2)).preview == "hello"


async def test_s08_a_required_provider_is_waited_for_and_seen(start_stack: StackFactory, thread: str) -> None:
    """The failure is in the Temporal UI while it is tried again; then the turn goes on as if nothing had been."""
    hints = Teller("B", ValueError("no index"), ValueError("no index"), "a hint")
    agent, model = agent_of(["hello"], context=[hints])
    stack = await start_stack(agent)
    await stack.client.start(thread)
    asking = asyncio.create_task(stack.client.ask(thread, "hi"))

    async def seen() -> bool:
        return "Context provider 'B' failed: ValueError: no index." in await pending_failure(stack, thread, "complete")

    await eventually(seen)
    assert await asking == "hello"
    assert lines(model.requests[0]) == ["user: a hint", "user: hi"]


async def test_s08_an_optional_provider_is_left_out_and_the_thread_says_so(
    start_stack: StackFactory, thread: str
) -> None:
    """The answer comes, and the status names the provider until it works again."""
    hints = Teller("B", ValueError("no index"), "a hint", required=False)
    agent, model = agent_of(["hello", "there"], context=[hints])
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "hi") == "hello"
    assert lines(model.requests[0]) == ["user: hi"]
    problem = "Context provider 'B' failed: ValueError: no index. The turn goes on without it."
    assert (await stack.client.status(thread)).problems == (problem,)
    await stack.client.ask(thread, "where?")
    assert (await stack.client.status(thread)).problems == ()


async def test_s09_a_history_that_cannot_be_loaded_is_an_error_and_never_an_empty_one() -> None:
    """The thread's own, and that of a provider. The next try reads it whole."""
    agent, model = agent_of(["hello", "there"])
    store = FaultyStore()
    thread = await Conversation.start(agent, store)
    await thread.say("hi")
    await thread.commit(await thread.complete())
    await thread.say("where?")
    store.away = {"load": 1}
    error = await failed(thread.complete())
    assert (error.type, error.non_retryable) == (ErrorType.STORE, False)
    assert len(model.requests) == 1
    await thread.complete(attempt=2)
    assert lines(model.requests[1]) == ["user: hi", "model: hello", "user: where?"]


async def test_s09_a_session_that_cannot_be_read_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a provider in memory has the history. Control: without the fault the model is asked."""

    async def away(_: Session) -> None:
        raise OSError("Away")

    agent, model = agent_of(["hello"], context=[InMemoryHistoryProvider()])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    with monkeypatch.context() as broken:
        broken.setattr(Session, "get_messages", away)
        assert "Context provider 'memory' failed: OSError: Away" in (await failed(thread.complete())).message
    assert model.requests == []
    await thread.complete(attempt=2)
    assert len(model.requests) == 1


async def test_s10_an_after_hook_that_fails_is_seen_and_tried_again_and_undoes_nothing(
    start_stack: StackFactory, thread: str, temporal: Client
) -> None:
    """The answer is delivered and the turn complete; the failure is in the Temporal UI; the others run once."""
    journal: list[str] = []
    broken, fine = Teller("B", journal=journal, failures=1), Teller("C", journal=journal)
    agent, _ = agent_of(["hello"], context=[broken, fine])
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "hi") == "hello"

    async def seen() -> bool:
        message = await pending_failure(stack, thread, "after_turn")
        return "Context provider 'B' failed after turn 1: ValueError: B is broken." in message

    await eventually(seen)
    path = await stack.client.history(thread)
    assert stored(path) == ["user: hi", "model: hello"]
    assert path[1].status == Status()
    await eventually(lambda: bool(broken.told))
    assert journal.count("after C") == 1
    assert journal.count("after B") == 2
