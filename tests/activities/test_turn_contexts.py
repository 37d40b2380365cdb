"""What providers say before a model call: asked once, kept before it is used, read ever after."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.testing import ActivityEnvironment

from activities.catalog import ToolCatalog
from activities.turn_contexts import TurnContexts, kept_context, offered
from activities.whole_turn import turn_input
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.context import Context, ContextProvider, ProviderRun
from perdure.contract import CompleteRequest
from perdure.errors import UsageError
from perdure.history_provider import HistoryProvider
from perdure.messages import ContextPart, Message, TextPart
from perdure.policy import ErrorType
from perdure.records import Path, ProviderState, Summary
from perdure.testing import Call, Reply
from perdure.tools import Tool, function_tool
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, failed, scripted
from tests.activities.providers import Silent, Teller, WatchedStore
from tests.eventually import eventually

WORDS = Message(id="u1", thread_id="t", role="user", parts=(TextPart(text="hi"),))
ANSWER = Message(id=ids.turn_message_id("t", 1), thread_id="t", role="assistant", turn=1)
PATH = Path(messages=(WORDS, ANSWER))


def request(step: int = 0, turn: int = 1) -> CompleteRequest:
    """A model call of the thread."""
    return CompleteRequest(thread_id="t", agent="a", turn=turn, step=step)


async def watched(agent: Agent) -> tuple[WatchedStore, TurnContexts]:
    """A store with the thread, and a worker's contexts over it."""
    store = WatchedStore()
    await Conversation.start(agent, store)
    return store, TurnContexts(store)


def search() -> Tool:
    """A tool of a provider."""

    async def search(words: str) -> str:
        """Search."""
        return words

    return function_tool(search)


def test_a_turn_has_the_input_of_all_words_since_the_last_answer() -> None:
    """Words that nobody answered yet are among them, and what was answered is not."""
    more = WORDS.with_(id="u2")
    path = Path(messages=(WORDS.with_(id="u0"), ANSWER.with_(id="a0"), WORDS, more, ANSWER))
    assert [message.id for message in turn_input(path)] == ["u1", "u2"]


async def test_the_input_of_a_turn_is_whole_though_a_summary_stands_for_it() -> None:
    """The request grew too long in mid-turn: words and rounds are behind a summary, and a provider still reads them."""
    teller = Teller("b", "words", each_call=True)
    agent = scripted([Reply(Call("look")), "done"], context=[teller])

    @agent.tool
    async def look() -> str:
        """Look."""
        return ""

    thread = await Conversation.start(agent)
    await thread.say("where?")
    await thread.commit(await thread.complete(), "it")
    covering = Summary(id="s", thread_id="t", message_id=thread.message_id, parts=2, text="They looked for it.")
    assert await thread.store.add_summary(covering)
    await thread.complete()
    assert [[message.id for message in run.input] for run in teller.asked] == [["u1"], ["u1"]]


async def test_an_agent_without_providers_costs_no_statement() -> None:
    """Nothing is read and nothing is written; one whose providers only listen is as cheap."""

    class Listener:
        name = "listener"

        async def after_run(self, *_: object) -> None:
            """Only this."""

    for agent in (Agent("a", model="x"), Agent("a", model="x", context=[HistoryProvider(), Listener()])):
        store, contexts = await watched(agent)
        assert await contexts.of(agent, request(), PATH) == TurnContext()
        assert store.calls == []


async def test_what_is_said_is_stored_before_it_is_used_and_read_by_every_retry() -> None:
    """On this worker and on another; the providers are asked once. Control: for another turn they are asked again."""
    teller = Teller("b", "first", "second")
    agent = Agent("a", model="x", context=[teller])
    store, contexts = await watched(agent)
    said = await contexts.of(agent, request(), PATH)
    assert said.messages(0) == (ContextMessage(text="first"),)
    assert await store.get_turn_context("t", 1, 0) == said
    assert await contexts.of(agent, request(), PATH) == said
    assert await TurnContexts(store).of(agent, request(), PATH) == said
    assert len(teller.asked) == 1
    next_path = Path(messages=(*PATH.messages, WORDS, ANSWER.with_(id=ids.turn_message_id("t", 2), turn=2)))
    assert (await contexts.of(agent, request(turn=2), next_path)).messages(0) == (ContextMessage(text="second"),)


async def test_of_two_attempts_at_once_both_use_what_the_first_has_stored() -> None:
    """A worker that was taken for dead asks too, and reads the other's answers."""
    agent = Agent("a", model="x", context=[Teller("b", "late")])
    store, contexts = await watched(agent)

    async def overtaken(*_: object) -> None:
        first = TurnContext(providers=(ProviderContext(source="b", messages=(ContextMessage(text="early"),)),))
        await MemoryStore.put_turn_context(store, "t", 1, 0, first)

    agent.context[0].before_run = overtaken  # type: ignore[attr-defined]  # the other worker is faster
    assert (await contexts.of(agent, request(), PATH)).messages(0) == (ContextMessage(text="early"),)


async def test_a_later_call_of_a_turn_reads_nothing() -> None:
    """The worker remembers the turn; another one reads the row once."""
    agent = Agent("a", model="x", context=[Teller("b", "words")])
    store, contexts = await watched(agent)
    said = await contexts.of(agent, request(), PATH)
    store.calls.clear()
    for step in (1, 2):
        assert (await contexts.of(agent, request(step), PATH)).providers == said.providers
    assert store.calls == []
    other = TurnContexts(store)
    for step in (1, 2):
        assert (await other.of(agent, request(step), PATH)).providers == said.providers
    assert store.calls == ["get 0"]


async def test_a_provider_of_each_call_is_asked_at_each_and_its_words_keep_their_place() -> None:
    """What it said before earlier calls stays there; a worker that takes over reads all of it and asks for its own."""
    once, often = Teller("once", "o"), Teller("often", "0", "1", "2", each_call=True)
    agent = Agent("a", model="x", context=[once, often])
    store, contexts = await watched(agent)
    for step in range(2):
        await contexts.of(agent, request(step), PATH)
    context = await TurnContexts(store).of(agent, request(2), PATH)
    assert [[message.text for message in context.messages(step)] for step in range(3)] == [["o", "0"], ["1"], ["2"]]
    assert [run.step for run in often.asked] == [0, 1, 2]
    assert len(once.asked) == 1
    assert await TurnContexts(store).of(agent, request(2), PATH) == context
    assert len(often.asked) == 3


async def test_a_provider_that_came_in_mid_turn_is_asked_now() -> None:
    """A deploy adds one: the turn has no row yet, so it is asked for the turn, and its guard holds at once."""
    agent = Agent("a", model="x", context=[Teller("b", Context(instructions="Be careful."))])
    _, contexts = await watched(agent)
    assert (await contexts.of(agent, request(3), PATH)).instructions == "Be careful."


async def test_a_provider_sees_whose_turn_it_is_and_a_copy_of_its_state() -> None:
    """Thread, tenant, turn, words; what it does to its state before a run is not kept."""

    class Meddler:
        name = "b"
        seen: ProviderRun

        async def before_run(self, run: ProviderRun) -> None:
            """Change it."""
            self.seen = run
            run.state["list"].append(2)

    meddler = Meddler()
    agent = Agent("a", model="x", context=[meddler])
    store, contexts = await watched(agent)
    await store.finish_hook("t", 9, "b", ProviderState(values={"list": [1]}))
    await contexts.of(agent, request(), PATH)
    assert (meddler.seen.thread_id, meddler.seen.agent, meddler.seen.tenant) == ("t", "a", "default")
    assert (meddler.seen.turn, meddler.seen.step, meddler.seen.input) == (1, 0, (WORDS,))
    assert meddler.seen.state == {"list": [1, 2]}
    assert (await store.get_provider_states("t"))["b"].values == {"list": [1]}


@pytest.mark.parametrize(
    ("teller", "why"),
    [
        (Teller("b", ValueError("no index")), "ValueError: no index"),
        (Teller("b", UsageError("no such shelf")), "no such shelf"),
        (Teller("b", hangs=True, timeout_s=0.01), "it did not answer within 1 s"),
    ],
    ids=["raises", "raises an error of ours", "hangs"],
)
async def test_a_required_provider_that_fails_is_named_and_asked_again(teller: Teller, why: str) -> None:
    """No model is asked; the failure may be tried again, and nothing is stored that would stand in the way of that.

    It does not say that it is tried again: the last try's is what the turn ends with.
    """
    agent = Agent("a", model="x", context=[teller])
    store, contexts = await watched(agent)
    error = await failed(contexts.of(agent, request(), PATH))
    assert error.message == f"Context provider 'b' failed: {why}."
    assert (error.type, error.non_retryable) == (ErrorType.CONTEXT, False)
    assert await store.get_turn_context("t", 1, 0) is None


MISTAKES: list[tuple[Any, str]] = [
    (Context(tools=["fly"]), "it offers the tool 'fly', which is none of its `tools`"),
    (Context(messages="one text"), "its messages are one text; put it into a list"),
    ({"text": "words"}, "it returned dict, not a Context or None"),
    (Context(instructions=5), "its `instructions` are not valid: Value error, must be text"),  # type: ignore[arg-type]  # a mistake
    (Context(messages=[5]), "its `messages` are not valid: Input should be"),  # type: ignore[list-item]  # a mistake
    (Context(replace=7), "its Context is not valid: 'int' object is not iterable"),  # type: ignore[arg-type]  # a mistake
]
"""What a hook returns by mistake, and what is said of it."""


@pytest.mark.parametrize(("answer", "why"), MISTAKES)
async def test_what_a_required_provider_returns_by_mistake_fails_at_once(answer: Any, why: str) -> None:
    """It would return the same again. One that is not required is left out, and the turn goes on."""
    agent = Agent("a", model="x", context=[Teller("b", answer)])
    store, contexts = await watched(agent)
    error = await failed(contexts.of(agent, request(), PATH))
    assert error.message.startswith(f"Context provider 'b' failed: {why}")
    assert "\n" not in error.message
    assert (error.type, error.non_retryable) == (ErrorType.CONTEXT, True)
    assert await store.get_turn_context("t", 1, 0) is None
    agent = Agent("a", model="x", context=[Teller("b", answer, required=False)])
    (problem,) = (await contexts.of(agent, request(), PATH)).problems
    assert why in problem


async def test_an_optional_provider_that_fails_is_left_out_and_the_turn_says_so() -> None:
    """With its tools; the others are asked, and the retry reads the same. Control: one that works is not left out."""
    broken = Teller("b", ValueError("no index"), required=False, tools=[search()])
    agent = Agent("a", model="x", context=[broken, Teller("c", "words")])
    store, contexts = await watched(agent)
    with capture_logs() as logs:
        context = await contexts.of(agent, request(), PATH)
    assert context.problems == ("Context provider 'b' failed: ValueError: no index. The turn goes on without it.",)
    assert context.messages(0) == (ContextMessage(text="words"),)
    assert [log["event"] for log in logs] == ["a context provider was left out"]
    catalog = await ToolCatalog(store, Agents([agent])).of(agent, "t")
    assert list(catalog.tools) == ["search", "read_result"]
    now = offered(catalog, agent, context)
    assert (list(now.tools), now.problems) == (["read_result"], context.problems)
    assert await TurnContexts(store).of(agent, request(), PATH) == context
    assert len(broken.asked) == 1


async def test_a_provider_that_cancels_itself_is_a_failure_like_any_other() -> None:
    """It awaited something that was cancelled: an optional one is left out, and the model is asked."""
    agent = scripted(["fine"], context=[Silent("b", asyncio.CancelledError(), required=False)])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    result = await thread.complete()
    assert result.preview == "fine"
    assert result.problems == ("Context provider 'b' failed: it was cancelled. The turn goes on without it.",)


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "why"),
    [(SystemExit(3), "SystemExit: 3"), (BaseException("odd"), "BaseException: odd"), (Mute(), "Mute")],
)
async def test_whatever_a_provider_raises_is_its_failure(error: BaseException, why: str) -> None:
    """It ends no worker and no turn: an optional one is left out with its reason, and the model is asked."""
    agent = scripted(["fine"], context=[Silent("b", error, required=False)])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    result = await thread.complete()
    assert result.preview == "fine"
    assert result.problems == (f"Context provider 'b' failed: {why}. The turn goes on without it.",)


async def test_a_stop_does_not_wait_for_a_provider() -> None:
    """One that hangs is cancelled, and nothing is stored of it; the optional one is no exception."""
    teller = Silent("b", hangs=True, required=False)
    agent = scripted(["fine"], context=[teller])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await eventually(lambda: bool(teller.asked))
    began = asyncio.get_running_loop().time()
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.get_running_loop().time() - began < 0.5
    assert await thread.store.get_turn_context("t", 1, 0) is None


async def test_state_of_another_version_is_refused_and_kept() -> None:
    """A provider does not guess what an older one meant; one that knows the version goes on with it."""

    class Second(Silent):
        schema_version = 2

    agent = Agent("a", model="x", context=[Second("b", "words")])
    store, contexts = await watched(agent)
    await store.finish_hook("t", 9, "b", ProviderState(values={"k": 1}, schema_version=1))
    error = await failed(contexts.of(agent, request(), PATH))
    assert "its state was written by version 1 and it reads version 2" in error.message
    assert not error.non_retryable, "a worker with the other version may take over"
    assert (await store.get_provider_states("t"))["b"].values == {"k": 1}
    Second.schema_version = 1
    assert (await contexts.of(agent, request(), PATH)).messages(0) == (ContextMessage(text="words"),)


async def test_tools_that_a_provider_does_not_offer_now_are_gone() -> None:
    """Of its own only; None offers all."""
    agent = Agent("a", model="x", context=[Teller("b", Context(tools=[]), Context(), each_call=True, tools=[search()])])

    @agent.tool
    async def look() -> str:
        """Look."""
        return ""

    store, contexts = await watched(agent)
    catalog = await ToolCatalog(store, Agents([agent])).of(agent, "t")
    assert list(offered(catalog, agent, await contexts.of(agent, request(), PATH)).tools) == ["look", "read_result"]
    assert offered(catalog, agent, await contexts.of(agent, request(1), PATH)) is catalog


async def test_kept_context_is_that_of_this_very_call_and_is_not_read_twice() -> None:
    """It becomes parts of the step; from then on the conversation holds it, and the context does no more."""
    agent = Agent(
        "a",
        model="x",
        context=[
            HistoryProvider(store_context_from=["b", "often"]),
            Teller("b", "kept"),
            Teller("other", "not kept"),
            Teller("often", "0", "1", each_call=True),
        ],
    )
    _, contexts = await watched(agent)
    context = await contexts.of(agent, request(), PATH)
    parts = kept_context(agent, context)
    assert parts == (ContextPart(source="b", text="kept"), ContextPart(source="often", text="0"))
    committed = Path(messages=(WORDS, ANSWER.with_(parts=parts)))
    later = await contexts.of(agent, request(1), committed)
    assert kept_context(agent, later) == (ContextPart(source="often", text="1", step=1),)
    assert [message.text for message in later.messages(0)] == ["not kept"]
    assert [message.text for message in later.messages(1)] == ["1"]


async def test_nothing_is_kept_without_a_history_provider_that_says_so() -> None:
    """Neither by default nor for a log."""
    log = HistoryProvider("audit", load_messages=False, store_context=True)
    contexts_of: list[list[ContextProvider]] = [[], [HistoryProvider()], [log]]
    for context in contexts_of:
        context.append(Teller("b", "words"))
        agent = Agent("a", model="x", context=context)
        _, contexts = await watched(agent)
        assert kept_context(agent, await contexts.of(agent, request(), PATH)) == ()


async def test_complete_carries_what_is_wrong_with_a_provider() -> None:
    """The outline of the step names it, so that the thread's status does."""
    agent = scripted(["fine"], context=[Silent("b", ValueError("no index"), required=False)])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    assert (await thread.complete()).problems == (
        "Context provider 'b' failed: ValueError: no index. The turn goes on without it.",
    )
