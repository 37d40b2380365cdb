"""The activity `complete`: its plain way, again and late, stopped and handed over."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities.complete import CompleteActivities
from perdure.agent import Agents
from perdure.limits import Limits
from perdure.messages import ReasoningPart, TextPart
from perdure.policy import ErrorType
from perdure.testing import Asked, Call, Failure, Reply, Think
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, FaultyStore, failed, requests_of, scripted, until

# -- the plain way ----------------------------------------------------------------------------------------------


async def test_an_answer_at_once_costs_one_write_and_reads_the_whole_request() -> None:
    """Words in, words out: the model gets instructions and words, the store one write, the workflow an outline."""
    store = FaultyStore()
    agent = scripted(["hello there"], instructions="Be kind.")
    thread = await Conversation.start(agent, store)
    await thread.say("hi")
    outlined = await thread.complete()
    assert (outlined.parts, outlined.finish, outlined.preview) == (1, "stop", "hello there")
    assert outlined.usage.requests == 1
    assert outlined.model == "scripted"
    assert store.writes == ["finish"]
    asked = requests_of(agent).requests[0]
    assert asked.user_text == "hi"
    assert asked.parameters.instruction_parts is not None
    assert [part.content for part in asked.parameters.instruction_parts] == ["Be kind."]
    await thread.commit(outlined)
    assert await thread.parts() == (TextPart(text="hello there"),)


async def test_calls_are_outlined_with_what_dispatch_needs_and_their_results_go_back() -> None:
    """A step with calls, their results, and the next step that reads them."""
    agent = scripted([Reply("let me look", Call("weather", {"city": "Paris"}), Call("ask", {})), "sunny"])

    @agent.tool(passive=True, timeout=timedelta(seconds=7))
    async def weather(city: str) -> str:
        return city

    @agent.tool(kind="client")
    async def ask() -> str:
        return ""

    thread = await Conversation.start(agent)
    await thread.say("weather?")
    outlined = await thread.complete()
    assert outlined.finish == "tool_calls"
    assert outlined.first_call == 1
    first, second = outlined.calls
    assert (first.tool, first.preview, first.kind, first.passive, first.timeout_s) == (
        "weather", 'city="Paris"', "function", True, 7.0,
    )  # fmt: skip
    assert (second.index, second.kind, second.error) == (1, "client", None)
    await thread.commit(outlined, "18 degrees", "yes")
    last = await thread.complete()
    assert last.finish == "stop"
    assert requests_of(agent).requests[1].results == ("18 degrees", "yes")
    assert requests_of(agent).requests[1].tools == ("weather", "ask", "read_result")


async def test_a_slow_answer_streams_and_its_chunks_join_to_the_answer() -> None:
    """While the model writes, a reader sees the beginning; the finished step holds exactly the answer."""
    store = FaultyStore()
    agent = scripted([Reply(Think("hm"), "one two three four", chunk_chars=2, delay_s=0.02)])
    thread = await Conversation.start(agent, store)
    await thread.say("count")
    running = asyncio.create_task(thread.complete())
    await until(lambda: "append" in store.writes)
    live = (await store.snapshot("t")).live
    assert live is not None
    assert live.state == "open"
    await running
    done = await store.begin_step("t", 1, 0, 1)
    assert done.parts == (ReasoningPart(text="hm"), TextPart(text="one two three four"))
    assert store.writes.count("append") <= 12
    assert store.writes.count("finish") == 1


async def test_the_step_limit_ends_the_turn_without_asking_the_model() -> None:
    """At the limit the result says so, and no request is made."""
    agent = scripted(["never"], limits=Limits(steps=3))
    thread = await Conversation.start(agent)
    await thread.say("hi")
    thread.step = 3
    outlined = await thread.complete()
    assert outlined.finish == "limit"
    assert "3" in (outlined.detail or "")
    assert requests_of(agent).requests == []


# -- again, and late --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_step_that_streamed_and_is_done_is_not_asked_again(attempt: int) -> None:
    """A second run returns the same outline out of the store, calls and refusals included; the model is asked once."""
    agent = scripted([Reply("a", Call("x", {"n": 1}), Call("nobody", {}), delay_s=0.06)])

    @agent.tool
    async def x(n: int) -> int:
        return n

    thread = await Conversation.start(agent)
    await thread.say("hi")
    first = await thread.complete()
    model = requests_of(agent)
    again = scripted([Reply("other", chunk_chars=1, delay_s=0.06)])
    again.add_tool(agent.tools["x"])
    thread.activities = CompleteActivities(thread.store, Agents([again]))
    assert await thread.complete(attempt) == first
    assert len(model.requests) == 1
    assert len(requests_of(again).requests) == (1 if attempt == 1 else 0)


async def test_a_done_step_stands_against_a_new_run_that_answers_at_once() -> None:
    """A new run of the workflow counts attempts from 1 again: its answer comes too late, the stored one is returned."""
    agent = scripted(lambda asked: replies.pop(0))
    replies = [Reply("the answer", Call("x", {})), Reply("another one")]
    thread = await Conversation.start(agent)
    await thread.say("hi")
    first = await thread.complete(1)
    assert await thread.complete(1) == first


async def test_a_second_attempt_voids_what_the_first_one_streamed() -> None:
    """The connection is lost in mid-answer; the next attempt starts over and nothing of the first one stays."""
    agent = scripted([Reply("the whole answer", chunk_chars=3, delay_s=0.06, failures=[Failure(after_chunks=3)])])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    failure = await failed(thread.complete(1))
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    assert (await thread.complete(2)).preview == "the whole answer"
    await thread.commit(await thread.complete(3))
    assert await thread.parts() == (TextPart(text="the whole answer"),)


async def test_a_sealed_step_stops_its_writer() -> None:
    """After a stop the running call ends by itself, as a failure that is not tried again, and adds nothing."""
    agent = scripted([Reply("abcdefghijkl" * 20, chunk_chars=2, delay_s=0.02)])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    running = asyncio.create_task(thread.complete())
    await until(thread.streamed)
    await thread.stop()
    kept = await thread.parts()
    failure = await failed(running)
    assert (failure.type, failure.non_retryable) == (ErrorType.SEALED, True)
    assert await thread.parts() == kept


async def test_a_zombie_of_an_earlier_attempt_cannot_add_a_word() -> None:
    """A worker that lost its heartbeat goes on streaming; the later attempt owns the step, its answer stands."""
    agent = scripted(lambda asked: replies.pop(0))
    replies = [Reply("zombie " * 30, chunk_chars=4, delay_s=0.02), Reply("the answer")]
    thread = await Conversation.start(agent)
    await thread.say("hi")
    zombie = asyncio.create_task(thread.complete(1))
    await until(thread.streamed)
    outlined = await thread.complete(2)
    assert outlined.preview == "the answer"
    assert await zombie == outlined
    await thread.commit(outlined)
    assert await thread.parts() == (TextPart(text="the answer"),)


# -- stops and shutdowns ----------------------------------------------------------------------------------------


async def test_a_cancelled_call_stops_within_half_a_second() -> None:
    """A model that says nothing for ever does not delay the stop."""
    agent = scripted([Reply("a", hang=True)])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await until(lambda: bool(requests_of(agent).requests))
    began = asyncio.get_running_loop().time()
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.get_running_loop().time() - began < 0.5


@pytest.mark.parametrize("notice", ["shutdown", "cancelled by the shutdown"])
async def test_b58_a_shutdown_hands_the_call_over_and_is_no_stop(notice: str) -> None:
    """B58: a worker that shuts down fails the attempt in a way that is retried at once; the next one answers."""
    agent = scripted(lambda asked: replies.pop(0))
    replies = [Reply("half", chunk_chars=2, delay_s=0.02, hang=True), Reply("the full text")]
    thread = await Conversation.start(agent)
    await thread.say("hi")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await until(thread.streamed)
    if notice == "shutdown":
        environment.worker_shutdown()
    else:
        environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
    failure = await failed(running)
    assert failure.type == ErrorType.WORKER_SHUTDOWN
    assert not failure.non_retryable
    assert failure.next_retry_delay is not None
    assert timedelta(0) < failure.next_retry_delay < timedelta(seconds=0.1)
    await thread.commit(await thread.complete(2))
    assert await thread.parts() == (TextPart(text="the full text"),)


async def test_b58_heartbeats_go_out_before_the_first_word() -> None:
    """B58: setting up for longer than the heartbeat allows is no reason to die."""
    store = MemoryStore()
    agent = scripted([Reply("late", start_delay_s=1.2)])
    thread = await Conversation.start(agent, store)
    await thread.say("hi")
    beats: list[float] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *_: beats.append(asyncio.get_running_loop().time())
    await thread.complete(environment=environment)
    assert len(beats) >= 3


async def test_a_call_that_cancels_itself_is_tried_again() -> None:
    """A CancelledError that nobody asked for is a failure of the model call, not a stop."""

    def cancel(asked: Asked) -> Reply:
        raise asyncio.CancelledError

    thread = await Conversation.start(scripted(cancel))
    await thread.say("hi")
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
