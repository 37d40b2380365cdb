"""What is counted of a thread: every model call once, whatever becomes of it, and to the billionth of a dollar."""

from datetime import timedelta

from temporalio.client import WorkflowExecutionStatus

from perdure.compaction import Compaction
from perdure.contract import ThreadStatus
from perdure.limits import Limits
from perdure.messages import Usage
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from tests.eventually import eventually
from tests.limits.spenders import (
    CALL,
    PRICE,
    by_words,
    counted,
    limits,
    reply,
    say,
    spender,
    spent,
    streams,
    times,
    told,
)
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


async def queried(stack: Stack, thread_id: str) -> Usage:
    """What the thread's workflow says that was spent."""
    status: ThreadStatus = await stack.handle(thread_id).query("status", result_type=ThreadStatus)
    return status.usage


async def test_the_sum_is_that_of_the_messages_and_of_what_the_workflow_says(
    start_stack: StackFactory, thread: str
) -> None:
    """Tokens, cached ones and money, of turns with and without tools."""

    def script(asked: Asked) -> Reply:
        return reply(Call("look")) if asked.user_text == "look" and not asked.results else reply("done")

    stack = await start_stack(spender(script))
    for words in ("hi", "look", "ho"):
        await say(stack, thread, words)
    assert await spent(stack, thread) == times(CALL, 4)
    assert await told(stack, thread) == await queried(stack, thread) == times(CALL, 4)
    usages = [message.usage for message in await stack.client.history(thread) if message.role == "assistant"]
    assert usages == [CALL, CALL + CALL, CALL]


async def test_failed_attempts_count_with_what_is_known_of_them(start_stack: StackFactory, thread: str) -> None:
    """One that a provider refuses is a call without tokens; one that breaks off in the middle is estimated."""

    def script(asked: Asked) -> Reply:
        failures = [Failure(503), Failure(None, after_chunks=1)]
        return reply("a" * 400, chunk_chars=40, failures=failures)

    stack = await start_stack(spender(script))
    await say(stack, thread, "hi there")
    total = await spent(stack, thread)
    assert total.requests == 3
    lost = total.output_tokens - CALL.output_tokens
    assert lost == 10
    assert total.input_tokens == CALL.input_tokens + len("hi there") // 4
    assert total.nano_usd == CALL.nano_usd + 10 * 2_000 + 2 * 1_000
    assert total.unpriced == 1
    assert await told(stack, thread) == total


async def test_an_answer_that_was_stopped_counts_for_its_turn(start_stack: StackFactory, thread: str) -> None:
    """With an estimate of what was sent and of what had streamed, marked as one; so do words that interrupt it."""
    stack = await start_stack(spender())
    await stack.client.start(thread)
    for stop in (stack.client.stop, stack.client.interrupt):
        before = await spent(stack, thread)
        await stack.client.send(thread, "hang")
        await eventually(lambda: streams(stack, thread, "one two"))
        await stop(thread)
        await counted(stack, thread, before.requests + 1)
        total = await spent(stack, thread)
        assert total.unpriced == total.requests
        assert total.output_tokens > before.output_tokens
        assert total.nano_usd > before.nano_usd
    await stack.client.send(thread, "hang")
    await eventually(lambda: streams(stack, thread, "one two"))
    assert (await say(stack, thread, "never mind")).state == "complete"
    await counted(stack, thread, 4)
    assert await told(stack, thread) == await spent(stack, thread)


async def test_a_worker_that_shuts_down_has_asked_for_nothing_for_free(start_stack: StackFactory, thread: str) -> None:
    """It hands the call over, and the next one asks again: both are counted."""
    asked: list[str] = []

    def script(request: Asked) -> Reply:
        asked.append(request.user_text)
        return reply("one two three four", chunk_chars=4, hang=len(asked) == 1)

    stack = await start_stack(spender(script))
    accepted = await stack.client.send(thread, "hi")
    await eventually(lambda: streams(stack, thread, "one two"))
    await stack.restart_worker()
    assert (await stack.client.wait_settled(thread, accepted.message_id)).status.state == "complete"
    total = await spent(stack, thread)
    assert (total.requests, total.unpriced) == (2, 1)
    assert total.nano_usd > CALL.nano_usd


async def test_a_fallback_and_the_model_before_it_are_both_counted(start_stack: StackFactory, thread: str) -> None:
    """In the step that they answer together."""
    fallback = ScriptedModel(by_words, name="second")
    agent = spender(lambda _: reply("no", failures=[Failure(500)] * 9), fallbacks=[fallback])
    stack = await start_stack(agent)
    assert (await say(stack, thread, "hi")).state == "complete"
    assert await spent(stack, thread) == await queried(stack, thread) == CALL + Usage(requests=1)


async def test_runs_of_a_workflow_and_its_sleep_lose_no_count(start_stack: StackFactory, thread: str) -> None:
    """After continue-as-new and after hibernation the workflow says the same as the store, stopped calls included."""
    stack = await start_stack(spender(limits=Limits(history_events=1, idle=timedelta(seconds=0.3))))
    for number in range(3):
        await say(stack, thread, "hi")
        assert await spent(stack, thread) == times(CALL, number + 1)
    await stack.client.send(thread, "hang")
    await eventually(lambda: streams(stack, thread, "one two"))
    await stack.client.stop(thread)
    await counted(stack, thread, 4)

    async def sleeps() -> bool:
        return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED

    await eventually(sleeps)
    asleep = await spent(stack, thread)
    assert (await stack.client.status(thread)).usage == asleep
    await say(stack, thread, "hi")
    assert await queried(stack, thread) == await spent(stack, thread) == asleep + CALL


async def test_a_summary_counts_for_its_thread_and_no_turn(start_stack: StackFactory, thread: str) -> None:
    """It is in the sum of the thread, and in that of no message; no turn's budget keeps it from being made."""

    def script(asked: Asked) -> Reply:
        return reply(f"you said {asked.user_text[:20]} " + "word " * 200)

    agent = spender(script, compaction=Compaction(context_window=500, keep=0.1, at=1.0), price=PRICE)
    stack = await start_stack(agent)
    for words in ("one", "two", "three"):
        await say(stack, thread, words + " word" * 100)
    assert await spent(stack, thread) == await told(stack, thread) == times(CALL, 3)
    agent.limits = limits("turn", model_calls=1)
    await stack.client.compact(thread)

    async def is_there() -> bool:
        return (await stack.store.load_history_with_ancestors(thread)).summary is not None

    await eventually(is_there, timeout=20)
    path = await stack.store.load_history_with_ancestors(thread)
    assert path.summary is not None
    assert path.summary.usage.requests > 0
    assert await spent(stack, thread) == await told(stack, thread) + path.summary.usage
