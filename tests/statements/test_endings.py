"""Statements 11 to 14: turns that fail, break off, lose their reader or are stopped."""

import asyncio
from contextlib import aclosing

from perdure.messages import Status, ToolResultPart
from perdure.testing import Call, Failure, Reply
from perdure.watch import View
from tests.activities.providers import Teller
from tests.eventually import eventually
from tests.statements.requests import agent_of, lines, stored
from tests.workflows.conftest import StackFactory


async def test_s11_a_model_call_that_fails_loses_no_question(start_stack: StackFactory, thread: str) -> None:
    """The words are stored, the turn is marked, its hooks are told, and the next run sees the question."""
    teller = Teller("b")
    refused = Reply("never", failures=[Failure(status=400, body="no")])
    agent, model = agent_of(lambda asked: "there" if asked.user_text == "please" else refused, context=[teller])
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "where?")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "error")
    assert stored(await stack.client.history(thread)) == ["user: where?"]
    await eventually(lambda: bool(teller.told))
    run, outcome = teller.told[0]
    assert outcome.result == "failure"
    assert outcome.error == turn.status.detail
    assert stored(run.input) == ["user: where?"]
    model.requests.clear()
    await stack.client.ask(thread, "please")
    assert lines(model.requests[0]) == ["user: where?", "user: please"]


async def test_s12_the_words_of_a_stream_that_breaks_are_no_answer(start_stack: StackFactory, thread: str) -> None:
    """Tried again, they are replaced whole; stopped in mid-answer, they are kept and marked as cut off."""
    broken = Reply("half an answer", chunk_chars=4, failures=[Failure(after_chunks=2)])
    agent, model = agent_of([broken, Reply("half of another", chunk_chars=5, hang=True), "whole"])
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "one") == "half an answer"
    assert stored(await stack.client.history(thread)) == ["user: one", "model: half an answer"]
    accepted = await stack.client.send(thread, "two")

    async def streamed() -> bool:
        live = (await stack.store.snapshot(thread)).live
        return live is not None and stored([(await stack.client.history(thread))[-1].with_(parts=live.parts)]) == [
            "model: half of another"
        ]

    await eventually(streamed)
    await stack.client.stop(thread)
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert stored([turn]) == ["model: half of another"]
    assert (turn.status.state, turn.status.reason) == ("incomplete", "cancelled")
    assert len(model.requests) == 3


async def test_s12_a_stream_that_breaks_for_good_leaves_a_turn_that_is_marked(
    start_stack: StackFactory, thread: str
) -> None:
    """It is never shown as a full answer, whatever had streamed."""
    broken = Reply("half an answer", chunk_chars=4, failures=[Failure(status=400, after_chunks=2)])
    agent, _ = agent_of([broken, "whole"])
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "one")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "error")
    assert stored([turn]) in ([], ["model: half an "])


async def test_s13_a_reader_who_leaves_stops_nothing(start_stack: StackFactory, thread: str) -> None:
    """The run goes on to its end and is stored."""
    agent, _ = agent_of([Reply("a long answer", chunk_chars=1, delay_s=0.02)])
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "hi")
    view = View()
    async with aclosing(stack.client.watch(thread)) as news:
        async for one in news:
            view.apply(one)
            if view.live is not None and view.live.parts:
                break
    assert (await stack.client.history(thread))[-1].status.state == "running", "the reader left in mid-answer"
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (stored([turn]), turn.status) == (["model: a long answer"], Status())


async def test_s14_a_stop_in_a_tool_closes_every_open_call(start_stack: StackFactory, thread: str) -> None:
    """With a result that says so; the hooks hear of a cancel, and later requests are valid."""
    begun = asyncio.Event()
    teller = Teller("b")
    agent, model = agent_of([Reply(Call("wait"), Call("look"), Call("wait")), "fine"], context=[teller])

    @agent.tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    await begun.wait()

    async def looked() -> bool:
        return [call.state for call in await stack.client.open_calls(thread)].count("settled") == 1

    await eventually(looked)
    await stack.client.stop(thread)
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    results = [part for part in turn.parts if isinstance(part, ToolResultPart)]
    assert [result.outcome for result in results] == ["interrupted", "ok", "interrupted"]
    await eventually(lambda: bool(teller.told))
    assert teller.told[0][1].result == "cancel"
    assert await stack.client.ask(thread, "and now?") == "fine"
    assert [line.split(":")[0] for line in lines(model.requests[-1])] == [
        *("user", "call", "call", "call", "result", "result", "result", "user")
    ]
