"""The loop of a thread: turns, tools, inputs during a turn, and the run's own life."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from perdure import ids
from perdure.agent import Agent
from perdure.errors import ThreadNotFound
from perdure.limits import Limits
from perdure.messages import Message, ToolResultPart
from perdure.ordering import dispatched_calls, early_dispatches
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words."""
    return Reply(f"you said {asked.user_text}")


async def history_of(stack: Stack, thread_id: str) -> list[HistoryEvent]:
    """The events of a thread's present run."""
    handle: WorkflowHandle[object, object] = stack.handle(thread_id)
    return [event async for event in handle.fetch_history_events()]


def results(message: Message) -> list[ToolResultPart]:
    """The tool results of a message, in order."""
    return [part for part in message.parts if isinstance(part, ToolResultPart)]


async def test_a_message_is_answered_once(start_stack: StackFactory, thread: str) -> None:
    """A turn of one model call: the user's words and the answer are stored, complete."""
    model = ScriptedModel(echo)
    stack = await start_stack(Agent("a", model=model))
    assert await stack.client.ask(thread, "hi", id="m1") == "you said hi"
    messages = await stack.client.history(thread)
    assert [message.role for message in messages] == ["user", "assistant"]
    assert messages[1].status.state == "complete"
    assert len(model.requests) == 1


async def test_parallel_calls_run_after_their_turn_is_durable_and_answer_in_call_order(
    start_stack: StackFactory, thread: str
) -> None:
    """Results come back in any order and stand in the order of the calls."""
    model = ScriptedModel([Reply("let me look", Call("slow", {}), Call("fast", {})), "done"])
    agent = Agent("a", model=model)
    fast_returned = asyncio.Event()

    @agent.tool
    async def slow() -> str:
        await fast_returned.wait()
        return "slow result"

    @agent.tool
    async def fast() -> str:
        fast_returned.set()
        return "fast result"

    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "go") == "done"
    answer = (await stack.client.history(thread))[1]
    assert [part.content for part in results(answer)] == ["slow result", "fast result"]
    events = await history_of(stack, thread)
    assert len(dispatched_calls(events)) == 2
    assert early_dispatches(events, thread) == []


async def test_words_in_mid_answer_stop_it_and_are_answered(start_stack: StackFactory, thread: str) -> None:
    """What had streamed stays, the turn is incomplete/cancelled, and the new words get their own turn."""
    replies = {"count": Reply("one two three four five six", chunk_chars=4, delay_s=0.05, hang=True)}
    model = ScriptedModel(lambda asked: replies.get(asked.user_text, Reply(f"you said {asked.user_text}")))
    stack = await start_stack(Agent("a", model=model))
    first = await stack.client.send(thread, "count")
    await eventually(lambda: _streamed(stack, thread, "two"))
    second = await stack.client.send(thread, "stop that")
    assert (first.disposition, second.disposition) == ("started", "interrupted")
    answer = await stack.client.wait_settled(thread, second.message_id)
    assert answer_text(answer) == "you said stop that"
    messages = await stack.client.history(thread)
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1].status.reason == "cancelled"
    assert answer_text(messages[1]).startswith("one two")


async def _streamed(stack: Stack, thread_id: str, text: str) -> bool:
    live = (await stack.store.snapshot(thread_id)).live
    return live is not None and any(text in getattr(part, "text", "") for part in live.parts)


async def test_an_interrupt_in_mid_tool_closes_every_call(start_stack: StackFactory, thread: str) -> None:
    """The finished call keeps its result, the running one is cancelled and answered as interrupted."""
    model = ScriptedModel([Reply(Call("hang", {}), Call("quick", {})), "after"])
    agent = Agent("a", model=model)
    cancelled = asyncio.Event()

    @agent.tool
    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    @agent.tool
    async def quick() -> str:
        return "quick result"

    stack = await start_stack(agent)
    await stack.client.send(thread, "go")
    await eventually(lambda: _call_settled(stack, thread, "quick"))
    stopped = await stack.client.stop(thread)
    assert stopped.turn == 1
    answer = (await stack.client.history(thread))[1]
    assert [(part.outcome, part.content == "quick result") for part in results(answer)] == [
        ("interrupted", False),
        ("ok", True),
    ]
    assert answer.status.reason == "cancelled"
    await eventually(cancelled.is_set)
    assert (await stack.client.stop(thread)).turn == 0


async def _call_settled(stack: Stack, thread: str, tool: str) -> bool:
    status = await stack.client.status(thread)
    return any(call.tool == tool and call.state == "settled" for call in status.open_calls)


async def test_modes_of_a_message_during_a_turn(start_stack: StackFactory, thread: str) -> None:
    """`reject` is refused, `steer` joins before the next model call, `queue` comes after the turn."""
    release = asyncio.Event()
    model = ScriptedModel(
        lambda asked: Reply(Call("wait", {})) if asked.user_text == "go" else Reply(f"you said {asked.user_text}")
    )
    agent = Agent("a", model=model)

    @agent.tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    stack = await start_stack(agent)
    await stack.client.send(thread, "go")
    await eventually(lambda: _call_open(stack, thread))
    assert (await stack.client.send(thread, "no", mode="reject")).disposition == "rejected"
    queued = await stack.client.send(thread, "later", mode="queue")
    steered = await stack.client.send(thread, "instead", mode="steer")
    assert (queued.disposition, steered.disposition) == ("queued", "steered")
    release.set()
    await stack.client.wait_settled(thread, queued.message_id)
    said = [(message.role, message.status.reason) for message in await stack.client.history(thread)]
    assert said == [
        ("user", None),
        ("assistant", "steered"),
        ("user", None),
        ("assistant", None),
        ("user", None),
        ("assistant", None),
    ]
    assert len(model.requests) == 3


async def _call_open(stack: Stack, thread: str) -> bool:
    return any(call.state == "running" for call in (await stack.client.status(thread)).open_calls)


async def test_a_failed_attempt_leaves_nothing_behind(start_stack: StackFactory, thread: str) -> None:
    """The provider fails in mid-stream; the retry's answer is the only one, and the failed words are gone."""
    reply = Reply("the whole answer", chunk_chars=4, failures=[Failure(503, after_chunks=2)])
    stack = await start_stack(Agent("a", model=ScriptedModel([reply])))
    assert await stack.client.ask(thread, "hi") == "the whole answer"


async def test_a_model_that_fails_for_good_ends_the_turn_and_not_the_thread(
    start_stack: StackFactory, thread: str
) -> None:
    """The error is the turn's; the next message is answered."""
    reply = Reply("never", failures=[Failure(401)] * 20)
    model = ScriptedModel(lambda asked: reply if asked.user_text == "fail" else echo(asked))
    stack = await start_stack(Agent("a", model=model))
    accepted = await stack.client.send(thread, "fail")
    failed = await stack.client.wait_settled(thread, accepted.message_id)
    assert failed.status.reason == "error"
    assert failed.status.detail
    assert await stack.client.ask(thread, "hi") == "you said hi"


async def test_the_same_message_again_is_known_at_any_time(start_stack: StackFactory, thread: str) -> None:
    """At once, later, after continue-as-new, after hibernation: one message, one turn; other words are a conflict."""
    model = ScriptedModel(echo)
    agent = Agent("a", model=model, limits=Limits(history_events=20, idle=timedelta(seconds=1)))
    stack = await start_stack(agent)
    first = await stack.client.send(thread, "hi", id="m1")
    again = await stack.client.send(thread, "hi", id="m1")
    assert (again.message_id, again.disposition) == (first.message_id, "duplicate")
    await stack.client.ask(thread, "more", id="m2")
    await stack.client.ask(thread, "even more", id="m3")

    async def has_continued() -> bool:
        info = (await stack.handle(thread).describe()).raw_description.workflow_execution_info
        return info.execution.run_id != info.first_run_id

    await eventually(has_continued)
    assert (await stack.client.send(thread, "hi", id="m1")).disposition == "duplicate"
    await eventually(lambda: _completed(stack, thread))
    assert (await stack.client.send(thread, "hi", id="m1")).disposition == "duplicate"
    assert (await stack.client.send(thread, "other words", id="m1")).disposition == "conflict"
    await stack.restart_worker()
    assert (await stack.client.send(thread, "hi", id="m1")).disposition == "duplicate"
    assert [message.role for message in await stack.client.history(thread)] == ["user", "assistant"] * 3
    assert len(model.requests) == 3


async def _completed(stack: Stack, thread_id: str) -> bool:
    description = await stack.handle(thread_id).describe()
    return description.status == WorkflowExecutionStatus.COMPLETED


async def test_a_thread_goes_on_over_continue_as_new(start_stack: StackFactory, thread: str) -> None:
    """Runs end between turns and nothing is asked twice."""
    model = ScriptedModel(echo)
    stack = await start_stack(Agent("a", model=model, limits=Limits(history_events=20)))
    for number in range(6):
        assert await stack.client.ask(thread, f"n{number}") == f"you said n{number}"
    first_run = (await stack.handle(thread).describe()).raw_description.workflow_execution_info.first_run_id
    assert (await stack.handle(thread).describe()).run_id != first_run
    assert len(model.requests) == 6


async def test_a_plain_signal_and_a_plain_start_work(start_stack: StackFactory, thread: str) -> None:
    """What `temporal workflow start` and `temporal workflow signal` send is enough, also with a typing error."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    await stack.temporal.start_workflow(
        "ThreadWorkflow", id=ids.workflow_id(thread), task_queue=stack.settings.task_queue, args=[{"agent": "a"}]
    )
    await stack.handle(thread).signal("user_message", {"id": "m1", "txet": "hi"})
    await stack.handle(thread).signal("user_message", {"id": "m1", "text": "hi"})
    await eventually(lambda: _is_stored(stack, thread))
    answer = await stack.client.wait_settled(thread, ids.input_message_id(thread, "m1"))
    assert answer_text(answer) == "you said hi"
    problems = (await stack.client.status(thread)).problems
    assert len(problems) == 1
    assert "txet" in problems[0]


async def _is_stored(stack: Stack, thread: str) -> bool:
    try:
        return bool(await stack.client.history(thread))
    except ThreadNotFound:
        return False


async def test_a_result_from_outside_stops_the_call_that_ran(start_stack: StackFactory, thread: str) -> None:
    """The running activity is cancelled, nothing of it is left over, and the thread may hibernate."""
    cancelled = asyncio.Event()
    agent = Agent("a", model=ScriptedModel([Reply(Call("hang", {})), "done"]), limits=Limits(idle=timedelta(seconds=1)))

    @agent.tool
    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    await eventually(lambda: _call_open(stack, thread))
    (call,) = await stack.client.open_calls(thread)
    await stack.client.tool_result(thread, call.call_id, "from outside")
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    assert [part.content for part in results(answer)] == ["from outside"]
    await eventually(cancelled.is_set)
    await eventually(lambda: _completed(stack, thread))


async def test_a_thread_that_may_not_hibernate_looks_again_much_later(start_stack: StackFactory, thread: str) -> None:
    """A message queued behind a call from outside keeps the thread awake; its idle timer does not become a loop."""
    agent = Agent("a", model=ScriptedModel([Reply(Call("ask", {}))]), limits=Limits(idle=timedelta(seconds=1)))

    @agent.tool(kind="client")
    async def ask() -> str:
        raise AssertionError("the user's side answers")

    stack = await start_stack(agent)
    await stack.client.send(thread, "go")
    await eventually(lambda: _waits(stack, thread))
    await stack.client.send(thread, "later", mode="queue")
    await eventually(lambda: _timers(stack, thread, 3))
    timers = [event for event in await history_of(stack, thread) if event.HasField("timer_started_event_attributes")]
    starts = [event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta() for event in timers]
    # The first was set before the message came, so the second may be for what was left since then.
    assert starts[2] == timedelta(seconds=1), "the full idle time again, and not what is left of nothing"


async def _waits(stack: Stack, thread: str) -> bool:
    return (await stack.client.status(thread)).state == "waiting"


async def _timers(stack: Stack, thread: str, count: int) -> bool:
    events = await history_of(stack, thread)
    return sum(event.HasField("timer_started_event_attributes") for event in events) >= count


async def test_a_workflow_id_that_is_not_a_threads_is_refused(start_stack: StackFactory, thread: str) -> None:
    """Without the prefix it would be a second writer of the thread; the failure says which id to take."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    handle = await stack.temporal.start_workflow("ThreadWorkflow", id=thread, task_queue=stack.settings.task_queue)
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert f"thread:{thread}" in str(failure.value.cause)


async def test_a_sender_among_many_signals_is_answered(start_stack: StackFactory, thread: str) -> None:
    """However many inputs one batch has, the sender that waits for one of them gets its answer."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    await stack.client.ask(thread, "hi")
    await stack.stop_worker()
    sending = asyncio.create_task(stack.client.send(thread, "me", id="me"))
    await asyncio.gather(*(stack.handle(thread).signal("user_message", f"n{number}") for number in range(300)))
    await stack.start_worker()
    assert (await sending).disposition in ("started", "interrupted")
    assert "me" in await stack.client.transcript(thread)


async def test_an_input_that_is_too_large_is_refused_in_a_sentence(start_stack: StackFactory, thread: str) -> None:
    """Temporal refuses what is above 2 MB, and tries such a task for ever; a plain signal gets a smaller limit."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    await stack.client.ask(thread, "hi")
    await stack.handle(thread).signal("user_message", {"id": "m", "text": "x" * 300_000})
    await eventually(lambda: _has_problem(stack, thread, "above 262,144 bytes"))
    assert await stack.client.ask(thread, "still there?") == "you said still there?"


async def _has_problem(stack: Stack, thread: str, words: str) -> bool:
    return any(words in problem for problem in (await stack.client.status(thread)).problems)


async def test_a_result_that_comes_before_its_step_is_durable_waits_for_it(
    start_stack: StackFactory, thread: str
) -> None:
    """Readers see a call while the model still streams; a quick answer to it is kept until the step is synced."""
    call = Reply(Call("ask", {}), "and so on, for a while", chunk_chars=2, delay_s=0.1)
    agent = Agent("a", model=ScriptedModel([call, "done"]))

    @agent.tool(kind="client")
    async def ask() -> str:
        raise AssertionError("the user's side answers")

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    await eventually(lambda: _streamed(stack, thread, "and"))
    await stack.client.tool_result(thread, ids.call_id(thread, 1, 0, 0), "quick")
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    assert [part.content for part in results(answer)] == ["quick"]
    assert answer_text(answer) == "done"


async def test_a_thread_keeps_the_title_of_its_first_words(start_stack: StackFactory, thread: str) -> None:
    """The memo shows them, also after the thread has slept and other words have woken it."""
    agent = Agent("a", model=ScriptedModel(echo), limits=Limits(idle=timedelta(seconds=1)))
    stack = await start_stack(agent)
    await stack.client.ask(thread, "first words")
    assert await _title(stack, thread) == "first words"
    await eventually(lambda: _completed(stack, thread))
    await stack.client.ask(thread, "other words")
    await eventually(lambda: _is_titled(stack, thread, "first words"))


async def _is_titled(stack: Stack, thread: str, title: str) -> bool:
    return await _title(stack, thread) == title


async def _title(stack: Stack, thread: str) -> str:
    title: str = await (await stack.handle(thread).describe()).memo_value("title")
    return title
