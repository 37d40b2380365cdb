"""A thread that is driven without Temporal: the same decisions, stores, model calls and tools."""

import asyncio

import pytest

from perdure.agent import Agent
from perdure.contract import CompleteRequest, CompleteResult, DispatchResult
from perdure.errors import StaleWriter, StepSealed, StoreUnavailable, ThreadNotFound, UnflushedTurn, UsageError
from perdure.inputs import Interrupt, ToolResult
from perdure.messages import TextPart, ToolCallPart, ToolResultPart
from perdure.records import StepOutcome
from perdure.runtime import AgentThread
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from perdure.turn_buffer import Chunk
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.perdure.in_process import Journal, background, drive, load, messages, said, streams, weather_agent

TWO_CALLS = Reply("look", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Rome"}))


@pytest.fixture
def store() -> Journal:
    """An empty store."""
    return Journal()


async def test_a_turn_goes_through_completion_sync_and_dispatch_in_that_order(store: Journal) -> None:
    """Inputs are durable before the model is asked, a step before its tools run, results before the next step."""
    thread = await load(store, weather_agent([TWO_CALLS, "fine"]))
    thread.put(said("weather?"))
    assert await thread.step(), "a model call is still to be made"
    assert not await thread.step()
    assert store.calls == [
        "sync append_message append_message",
        "sync commit_step",
        "dispatch",
        "dispatch",
        "sync commit_results",
        "sync commit_step set_status",
    ]
    question, answer = await messages(store)
    assert question.parts == (TextPart(text="weather?"),)
    results = [part.content for part in answer.parts if isinstance(part, ToolResultPart)]
    assert results == ["sunny in Paris", "sunny in Rome"]
    assert answer_text(answer) == "fine"
    assert not await thread.step(), "nothing is left to do"


async def test_a_call_may_not_run_before_its_turn_is_durable(store: Journal) -> None:
    """Whoever drives the loop by hand and forgets to sync is told so, and the tool does not run."""
    thread = await load(store, weather_agent([]))
    thread.put(said("hi"))
    thread.history.handle_content(said("by hand"))
    await thread.sync()
    thread.history.begin_step()
    thread.history.handle_completion(
        Chunk(index=0, part=ToolCallPart(call_id="", tool="get_weather", arguments='{"city":"Paris"}'))
    )
    with pytest.raises(UnflushedTurn):
        await thread.sync()
    thread.history.flush_turn()
    turn = thread.history.open_turn
    assert turn is not None
    with pytest.raises(UsageError, match="sync first"):
        await thread.execute_action(turn.calls[0])
    assert "dispatch" not in store.calls
    await thread.sync()
    assert (await thread.execute_action(turn.calls[0])).preview == "sunny in Paris"
    await thread.sync()
    assert isinstance((await messages(store))[-1].parts[-1], ToolResultPart)


async def test_a_tool_runs_once_however_often_its_call_is_executed(store: Journal) -> None:
    """The staged result is returned, in another process too."""
    runs: list[str] = []

    async def tool(city: str) -> str:
        runs.append(city)
        return "sunny"

    agent = weather_agent([Reply(Call("get_weather", {"city": "Paris"})), "fine"], tool)
    thread = await load(store, agent)
    thread.put(said("hi"))
    thread.history.handle_content(said("first"))
    await thread.sync()
    thread.history.begin_step()
    thread.history.handle_completion(
        Chunk(index=0, part=ToolCallPart(call_id="", tool="get_weather", arguments='{"city":"Paris"}'))
    )
    thread.history.flush_turn()
    await thread.sync()
    turn = thread.history.open_turn
    assert turn is not None
    await thread.execute_action(turn.calls[0])
    other = await load(store, agent, new=False)
    await drive(other)
    assert runs == ["Paris"]
    assert answer_text((await messages(store))[-1]) == "fine"
    with pytest.raises(StaleWriter):
        await thread.sync()


async def test_words_in_mid_answer_stop_it(store: Journal) -> None:
    """An input that interrupts ends the model call at once; what streamed stays, and the words are answered."""

    def script(asked: Asked) -> Reply:
        return Reply("one two", chunk_chars=4, hang=True) if asked.user_text == "count" else Reply("stopped")

    thread = await load(store, Agent("demo", model=ScriptedModel(script)))
    thread.put(said("count"))
    async with background(thread.step()) as step:
        await eventually(lambda: streams(thread, "one two"))
        thread.put(said("stop", mode="interrupt"))
        await asyncio.wait_for(step, 5)
        await drive(thread)
        path = await messages(store)
        assert [answer_text(message) for message in path] == ["count", "one two", "stop", "stopped"]
        assert path[1].status.reason == "cancelled"


async def test_a_client_that_attaches_in_mid_stream_sees_what_is_in_flight(store: Journal) -> None:
    """The snapshot is the committed path and what streams, through the store or through the manager."""
    model = ScriptedModel([Reply("one two", chunk_chars=4, hang=True)])
    thread = await load(store, Agent("demo", model=model))
    thread.put(said("count"))
    async with background(thread.step()) as step:
        await eventually(lambda: streams(thread, "one two"))
        snapshot = await thread.snapshot()
        assert snapshot.committed[-1].parts == ()
        assert snapshot.messages[-1].parts == (TextPart(text="one two"),)
        assert snapshot.seq == (await store.get_thread("t1")).seq
        thread.put(Interrupt())
        await asyncio.wait_for(step, 5)
        thread.history.handle_content(said("again"))
        await thread.sync()
        thread.history.begin_step()
        thread.history.handle_completion(Chunk(index=0, delta="by hand"))
        snapshot = await thread.snapshot()
        assert (answer_text(snapshot.committed[-1]), answer_text(snapshot.messages[-1])) == ("", "by hand")


async def test_an_interrupt_in_mid_tool_cancels_it_and_answers_its_call(store: Journal) -> None:
    """The running tool is told, its call is closed as interrupted, and its late result changes nothing."""
    cancelled = asyncio.Event()
    running = asyncio.Event()

    async def tool(city: str) -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    thread = await load(store, weather_agent([Reply(Call("get_weather", {"city": "Paris"})), "fine"], tool))
    thread.put(said("hi"))
    async with background(thread.step()) as step:
        await running.wait()
        thread.put(said("never mind"))
        await asyncio.wait_for(step, 5)
        assert cancelled.is_set()
        await drive(thread)
        path = await messages(store)
        results = [part for part in path[1].parts if isinstance(part, ToolResultPart)]
        assert [part.outcome for part in results] == ["interrupted"]
        assert answer_text(path[-1]) == "fine"


async def test_queued_words_wait_and_steering_ones_join_between_two_steps(store: Journal) -> None:
    """The modes mean here what they mean in the workflow."""
    returned = asyncio.Event()
    running = asyncio.Event()

    async def tool(city: str) -> str:
        running.set()
        await returned.wait()
        return "sunny"

    def script(asked: Asked) -> Reply:
        if asked.user_text == "hi":
            return Reply(Call("get_weather", {"city": "Paris"}))
        return Reply(f"you said {asked.user_text}")

    thread = await load(store, weather_agent(script, tool))
    thread.put(said("hi"))
    async with background(drive(thread)) as driving:
        await running.wait()
        thread.put(said("later", mode="queue"))
        thread.put(said("by the way", mode="steer"))
        returned.set()
        await asyncio.wait_for(driving, 5)
        path = await messages(store)
        texts = [answer_text(message) for message in path if message.role == "user"]
        assert texts == ["hi", "by the way", "later"]
        assert [message.status.reason for message in path if message.role == "assistant"] == ["steered", None, None]


async def test_a_failed_model_call_is_tried_again_and_a_hopeless_one_ends_the_turn(store: Journal) -> None:
    """The thread stays usable after both."""
    flaky = Reply("worked", failures=[Failure(status=503, retry_after_s=0.01)])
    model = ScriptedModel([flaky, Reply("never", failures=[Failure(status=401)] * 2), "fine"])
    thread = await load(store, Agent("demo", model=model))
    thread.put(said("one"))
    await drive(thread)
    thread.put(said("two"))
    await drive(thread)
    path = await messages(store)
    assert answer_text(path[1]) == "worked"
    assert path[3].status.reason == "error"
    assert "model call failed" in str(path[3].status.detail)


async def test_an_input_that_comes_twice_is_taken_once(store: Journal) -> None:
    """In one batch, later, and in another process; other words under its id change nothing."""
    agent = Agent("demo", model=ScriptedModel(lambda asked: Reply(f"you said {asked.user_text}")))
    thread = await load(store, agent)
    assert thread.put(said("hi", id="m1")) is None
    assert thread.put(said("hi", id="m1")) == "duplicate"
    assert thread.put(said("ho", id="m1")) == "conflict"
    await drive(thread)
    thread.put(said("hi", id="m1"))
    await drive(thread)
    other = await load(store, agent, new=False)
    other.put(said("ho", id="m1"))
    await drive(other)
    assert [answer_text(message) for message in await messages(store)] == ["hi", "you said hi"]


async def test_results_from_outside_are_waited_for(store: Journal) -> None:
    """A client-side call leaves nothing to do until its result is put."""
    thread = await load(store, weather_agent([Reply(Call("get_weather", {"city": "Paris"})), "fine"], kind="client"))
    thread.put(said("hi"))
    assert not await thread.step()
    turn = thread.history.open_turn
    assert turn is not None
    thread.put(ToolResult(call_id=turn.calls[0].call_id, content="sunny"))
    await drive(thread)
    assert answer_text((await messages(store))[-1]) == "fine"


@pytest.mark.parametrize("applies_first", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
async def test_a_step_can_be_tried_again_after_the_store_was_away(
    store: Journal, fails_at: int, applies_first: bool
) -> None:
    """Whichever sync fails, before or after it was applied, nothing is lost and no tool runs twice."""
    runs: list[str] = []

    async def tool(city: str) -> str:
        runs.append(city)
        return "sunny"

    store.fails_at, store.applies_first = fails_at, applies_first
    thread = await load(store, weather_agent([TWO_CALLS, "fine"], tool))
    thread.put(said("hi"))
    with pytest.raises(StoreUnavailable):
        await drive(thread)
    await drive(thread)
    question, answer = await messages(store)
    assert (answer_text(question), answer_text(answer)) == ("hi", "fine")
    assert sorted(runs) == ["Paris", "Rome"]


async def test_who_cancels_a_step_cancels_what_it_runs(store: Journal) -> None:
    """The model call ends with the step, and another owner takes the turn over from the start."""
    model = ScriptedModel([Reply("one two", chunk_chars=4, hang=True)])
    thread = await load(store, Agent("demo", model=model))
    thread.put(said("hi"))
    async with background(thread.step()) as step:
        await eventually(lambda: streams(thread, "one two"))
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        other = await load(store, Agent("demo", model=ScriptedModel(["whole"])), new=False)
        await drive(other)
        assert [answer_text(message) for message in await messages(store)] == ["hi", "whole"]


async def test_a_step_that_is_given_up_does_not_write_into_the_next_try(store: Journal) -> None:
    """Each try of a model call is an attempt of its own, so what the first streams is void, even late."""
    attempts: list[int] = []

    async def complete(request: CompleteRequest, attempt: int) -> CompleteResult:
        attempts.append(attempt)
        place = ("t1", request.turn, request.step, attempt)
        await store.append_chunks(*place, [Chunk(index=0, delta="half")])
        if len(attempts) == 1:
            await asyncio.Event().wait()
        with pytest.raises(StepSealed):
            await store.append_chunks(*place[:3], attempts[0], [Chunk(index=0, delta="late")])
        await store.finish_step(*place, (TextPart(text="whole"),), StepOutcome(), [])
        return CompleteResult(parts=1)

    async def dispatch(_: object) -> DispatchResult:
        raise AssertionError("no call was made")

    thread = await AgentThread.load(store, store, "t1", complete=complete, dispatch=dispatch, agent="demo")
    thread.put(said("hi"))
    async with background(thread.step()):
        await eventually(lambda: attempts)
    await drive(thread)
    assert attempts == [1, 2]
    assert answer_text((await messages(store))[-1]) == "whole"


async def test_a_thread_that_is_not_stored_needs_an_agent(store: Journal) -> None:
    """Loading does not start threads by accident."""
    with pytest.raises(ThreadNotFound):
        await load(store, Agent("demo", model=ScriptedModel([])), new=False)
