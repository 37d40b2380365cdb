"""A thread that is driven without Temporal, and tools that answer later: servers, sleepers, what needs a workflow."""

import asyncio
from typing import Any

import pytest

from activities.complete import CompleteActivities
from perdure.agent import Agent, Agents
from perdure.builtins import Threads, Timers
from perdure.contract import DispatchRequest, DispatchResult, NotifyRequest
from perdure.history_state import SubscriptionLimits
from perdure.inputs import AnyInput, Control, Event, ToolResult, UserMessage
from perdure.messages import EventPart, ToolResultPart
from perdure.runtime import AgentThread
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.tools import Tool
from perdure.upkeep import Notify
from perdure.watch import answer_text
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.perdure.in_process import Journal, background, drive, load, messages, said, streams


@pytest.fixture
def store() -> Journal:
    """An empty store."""
    return Journal()


# -- tools that answer later ------------------------------------------------------------------------------------


WATCH = Tool(name="watch", description="Watch.", parameters={"type": "object"}, kind="rap", toolset="watcher")
WAIT = Tool(name="wait", description="Wait.", parameters={"type": "object"}, kind="client", passive=True)
ASK = Tool(name="ask", description="Ask.", parameters={"type": "object"}, kind="client")


async def load_with_server(
    store: MemoryStore, script: Any, notify: Notify | None = None, limits: SubscriptionLimits | None = None
) -> AgentThread:
    """A thread whose agent has a tool server that acknowledges every call, and tools that wait."""
    agents = Agents([Agent("demo", model=ScriptedModel(script), tools=[WATCH, WAIT, ASK])])

    async def dispatch(request: DispatchRequest) -> DispatchResult:
        await store.start_call(request.thread_id, request.call_id)
        return DispatchResult(outcome="pending")

    complete = CompleteActivities(store, agents).execute
    return await AgentThread.load(
        store, store, "t1", complete=complete, dispatch=dispatch, notify=notify, agent="demo", limits=limits
    )


def open_call(thread: AgentThread) -> str:
    """The id of the one call that is open."""
    assert thread.history.open_turn is not None
    (call,) = thread.history.open_turn.calls
    return call.call_id


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sleep", {"seconds": 5}),
        ("sleep_until_event_or_input", {}),
        ("report_to_parent", {"report": "done"}),
        ("remote", {}),
    ],
)
async def test_what_needs_a_workflow_is_answered_with_an_error_that_says_so(
    store: Journal, tool: str, arguments: dict[str, Any]
) -> None:
    """The model reads it and goes on; nobody waits for a timer that no one has set."""
    remote = Tool(
        name="remote", description="Far away.", parameters={"type": "object"}, kind="activity", task_queue="elsewhere"
    )
    model = ScriptedModel([Reply(Call(tool, arguments)), "then not"])
    agent = Agent("demo", model=model, tools=[remote], toolsets=[Timers(), Threads()])
    thread = await load(store, agent)
    thread.put(said("hi"))
    await asyncio.wait_for(drive(thread), 5)
    answer = (await messages(store))[-1]
    (result,) = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    assert result.outcome == "error"
    assert result.content == (
        f"The tool could not be run: `{tool}` is carried out by a thread's workflow, and this thread is driven "
        "without one."
    )
    assert answer_text(answer) == "then not"
    assert "dispatch" not in store.calls


async def test_calls_of_tool_servers_wait_for_their_result_and_their_events_join(store: Journal) -> None:
    """An event that is not associative too: there are no child threads here. The limits hold as elsewhere."""
    script = [Reply(Call("watch", {})), "I watch.", "Rain, I see.", "Sun, I see."]
    thread = await load_with_server(store, script, limits=SubscriptionLimits(events=2))
    thread.put(said("watch it"))
    await drive(thread)
    name = open_call(thread)
    thread.put(Event(id="e1", call_id=name, content="rain", associative=False))
    await drive(thread)
    assert thread.history.phase == "calling", "the event waits for the call"
    thread.put(ToolResult(call_id=name, content="Watching.", subscription=True))
    await drive(thread)
    thread.put(Event(id="e2", call_id=name, content="sun"))
    await drive(thread)
    path = await messages(store)
    told = [part.content for message in path for part in message.parts if isinstance(part, EventPart)]
    assert told == ["rain", "sun"]
    assert thread.history.take_spawns() == ()
    (subscription,) = thread.history.state.subscriptions
    assert (subscription.received, subscription.minute > 0) == (2, True)
    assert subscription.paused is not None


async def test_a_passive_call_is_cut_short_by_whatever_comes(store: Journal) -> None:
    """By words that are queued, and by a report; there is nothing to do until something comes."""

    def script(asked: Asked) -> Reply:
        return Reply(Call("wait", {})) if asked.user_text == "wait" else Reply("awake")

    thread = await load_with_server(store, script)
    comes: list[AnyInput] = [said("up", mode="queue"), Event(id="r1", call_id="c", source="child")]
    for number, content in enumerate(comes):
        thread.put(said("wait", id=f"m{number}"))
        await drive(thread)
        assert thread.history.phase == "sleeping"
        assert not await thread.step()
        thread.put(content)
        await drive(thread)
        assert thread.history.phase == ("idle" if number == 0 else "sleeping"), "the last words still say `wait`"
    results = [part.outcome for one in await messages(store) for part in one.parts if isinstance(part, ToolResultPart)]
    assert results == ["interrupted", "interrupted"]


async def test_turns_that_rest_on_other_branches_go_on_one_after_the_other(store: Journal) -> None:
    """Both have got what they lacked, and neither is shown: whoever drives while there is more to do ends both."""

    def script(asked: Asked) -> Reply:
        if asked.results:
            return Reply("thanks")
        return Reply("hello") if asked.user_text == "hi" else Reply(Call("ask", {}))

    thread = await load_with_server(store, script)
    words: str | None = None
    asked: dict[str, str] = {}
    for name in ("m1", "m2", "m3"):
        thread.put(UserMessage(id=name, text="hi" if name == "m3" else "ask", source_id=words))
        await drive(thread)
        words, turn = (message.id for message in await messages(store))
        if name != "m3":
            asked[turn] = open_call(thread)
    assert thread.history.open_turn is None
    for call_id in asked.values():
        thread.put(ToolResult(call_id=call_id, content="yes"))
    await drive(thread)
    stored = {one.message.id: one.message for one in (await store.load_tree("t1")).messages}
    assert [answer_text(stored[turn]) for turn in asked] == ["thanks", "thanks"]


async def test_tool_servers_are_told_and_not_waited_for(store: Journal) -> None:
    """Of a call that is interrupted, and that the thread is closed; `close` sees that it is told."""
    told: list[NotifyRequest] = []
    answers = asyncio.Event()

    async def notify(request: NotifyRequest) -> None:
        await answers.wait()
        told.append(request)

    def script(_: Asked) -> Reply:
        return Reply(Call("watch", {}))

    thread = await load_with_server(store, script, notify)
    thread.put(said("watch it"))
    await drive(thread)
    first = open_call(thread)
    thread.put(said("no, watch that"))
    await asyncio.wait_for(drive(thread), 5)
    second = open_call(thread)
    thread.put(Control(action="close"))
    await asyncio.wait_for(drive(thread), 5)
    thread.put(said("hello?"))
    assert not await thread.step()
    assert told == []
    answers.set()
    await thread.close()
    assert [(request.call_ids, request.closed) for request in told] == [((first,), False), ((second,), True)]
    assert thread.history.state.closed


async def test_closing_stops_what_runs(store: Journal) -> None:
    """A model call in mid-stream: what it said stays, and nothing is asked any more."""
    thread = await load(store, Agent("demo", model=ScriptedModel([Reply("one two", chunk_chars=4, hang=True)])))
    thread.put(said("count"))
    async with background(thread.step()) as step:
        await eventually(lambda: streams(thread, "one two"))
        thread.put(Control(action="close"))
        assert not await asyncio.wait_for(step, 5)
    answer = (await messages(store))[-1]
    assert (answer_text(answer), answer.status.detail) == ("one two", "The thread was closed.")
    assert (await store.get_thread("t1")).closed_at is not None
