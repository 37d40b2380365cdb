"""Statements 29 to 35: what of a turn's rounds is stored when, and what is read of it afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from activities.complete import CompleteActivities
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.inputs import UserMessage
from perdure.limits import Limits
from perdure.messages import ToolCallPart, ToolResultPart
from perdure.runtime import AgentThread
from perdure.testing import Asked, Call, Reply
from perdure.waiting import pending_approvals
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.statements.requests import agent_of, lines, stored
from tests.workflows.conftest import StackFactory


@asynccontextmanager
async def process(store: PostgresStore, agent: Agent, *words: str) -> AsyncGenerator[asyncio.Task[None]]:
    """One that drives the thread, and is gone at the end of the block, wherever it is then."""
    agents = Agents([agent])
    complete, dispatch = CompleteActivities(store, agents), DispatchActivities(store, agents)
    thread = await AgentThread.load(
        store, store, "t", complete=complete.execute, dispatch=dispatch.execute, agent=agent.name
    )
    for index, text in enumerate(words):
        thread.put(UserMessage(id=f"m{index}", text=text))

    async def drive() -> None:
        while await thread.step():
            pass

    running = asyncio.create_task(drive())
    try:
        yield running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def reached(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a point of the turn."""
    await eventually(condition)


def hanging_once(model_requests: list[Asked], at: int, replies: list[Reply]) -> Callable[[Asked], Reply]:
    """Replies by how often the model has answered; the request number `at` gets no answer."""

    def answer(asked: Asked) -> Reply:
        return Reply(hang=True) if len(model_requests) == at else replies[asked.answered]

    return answer


async def test_s29_a_process_that_dies_before_the_answer_leaves_no_orphan(store: PostgresStore) -> None:
    """The question is stored; whoever takes over answers it, once."""
    requests: list[Asked] = []
    agent, model = agent_of(hanging_once(requests, 1, [Reply("there")]))
    model.requests = requests
    async with process(store, agent, "where?"):
        await eventually(lambda: len(requests) == 1)
    path = (await store.load_history_with_ancestors("t")).messages
    assert stored(path) == ["user: where?"]
    assert path[-1].status.state == "running"
    async with process(store, agent) as running:
        await running
    path = (await store.load_history_with_ancestors("t")).messages
    assert stored(path) == ["user: where?", "model: there"]
    assert [message.status.state for message in path] == ["complete", "complete"]


async def test_s30_rounds_are_stored_in_their_order(start_stack: StackFactory, thread: str) -> None:
    """Question, call, result, call, result, answer."""
    agent, _ = agent_of([Reply(Call("look", {"what": "a"})), Reply(Call("look", {"what": "b"})), "done"])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "go")
    assert stored(await stack.client.history(thread)) == [
        *("user: go", "call: look", "result: saw a", "call: look", "result: saw b", "model: done")
    ]


async def test_s31_a_crash_before_the_second_model_call_loses_no_round(store: PostgresStore) -> None:
    """Question, call and result are stored, the result after its call; who takes over asks with valid pairs."""
    requests: list[Asked] = []
    agent, model = agent_of(hanging_once(requests, 2, [Reply(Call("look", {"what": "it"})), Reply("done")]))
    model.requests = requests
    async with process(store, agent, "go"):
        await eventually(lambda: len(requests) == 2)
    rounds = ["user: go", "call: look", "result: saw it"]
    assert stored((await store.load_history_with_ancestors("t")).messages) == rounds
    async with process(store, agent) as running:
        await running
    assert [lines(asked) for asked in requests[1:]] == [rounds, rounds]
    assert stored((await store.load_history_with_ancestors("t")).messages) == [*rounds, "model: done"]


async def test_s32_a_call_that_waits_for_approval_is_shown_as_waiting_and_not_run(
    start_stack: StackFactory, thread: str
) -> None:
    """It has no result, not even an empty one, whoever reads it; words about something else do not run it."""
    paid: list[int] = []
    agent, model = agent_of([Reply(Call("pay", {"amount": 3})), "as you like"])

    @agent.tool(approval="always")
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    stack = await start_stack(agent)
    await stack.client.send(thread, "pay three")

    async def waits() -> bool:
        return [call.state for call in await stack.client.open_calls(thread)] == ["approval"]

    await eventually(waits)
    await stack.restart_worker()
    path = await stack.client.history(thread)
    assert stored(path) == ["user: pay three", "call: pay"]
    assert [call.tool for call in pending_approvals(path)] == ["pay"]
    await stack.client.ask(thread, "what is the weather?")
    assert paid == []
    results = [part for message in await stack.client.history(thread) for part in message.parts]
    assert [part.outcome for part in results if isinstance(part, ToolResultPart)] == ["cancelled"]
    assert len(model.requests) == 2


async def test_s33_a_turn_that_ends_after_a_tool_keeps_all_rounds(start_stack: StackFactory, thread: str) -> None:
    """The limit of steps ends the loop: the last result is stored, and the next turn reads it."""
    agent, model = agent_of(
        [Reply(Call("look", {"what": "a"})), Reply(Call("look", {"what": "b"})), "done"], limits=Limits(steps=2)
    )
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "limit")
    rounds = ["user: go", "call: look", "result: saw a", "call: look", "result: saw b"]
    assert stored(await stack.client.history(thread)) == rounds
    assert await stack.client.ask(thread, "and?") == "done"
    assert lines(model.requests[-1]) == [*rounds, "user: and?"]


async def test_s34_what_was_decided_is_no_part_of_what_a_model_reads(start_stack: StackFactory, thread: str) -> None:
    """A question that was answered is over and not asked again; one that is open is shown. The model reads neither."""
    agent, model = agent_of([Reply(Call("pay", {"amount": 1})), "paid one", Reply(Call("pay", {"amount": 2}))])

    @agent.tool(approval="always")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    stack = await start_stack(agent)

    async def pending() -> list[str]:
        found = [call for call in await stack.client.open_calls(thread) if call.state == "approval"]
        return [call.call_id for call in found]

    await stack.client.send(thread, "pay one")
    (first,) = await eventually(pending)
    await stack.client.approve(thread, first)
    await stack.client.wait_settled(thread)
    await stack.client.send(thread, "pay two")
    (second,) = await eventually(pending)
    await stack.restart_worker()
    path = await stack.client.history(thread)
    assert [call.call_id for call in pending_approvals(path)] == [second]
    decided = [part for message in path for part in message.parts if isinstance(part, ToolCallPart) and part.decision]
    assert [part.call_id for part in decided] == [first]
    assert lines(model.requests[-1]) == [
        *("user: pay one", "call: pay", "result: paid 1", "model: paid one", "user: pay two")
    ]


async def test_s35_words_that_join_while_a_tool_runs_are_read_once_by_the_next_call(
    start_stack: StackFactory, thread: str
) -> None:
    """Many at once, none of them lost, also when another worker takes over before the tool is through."""
    agent, model = agent_of(lambda asked: Reply("done") if asked.answered else Reply(Call("wait")))
    agent.client_tool("wait", description="Wait.", parameters={"type": "object", "properties": {}})
    stack = await start_stack(agent)
    await stack.client.send(thread, "go")

    async def waits() -> str | None:
        calls = await stack.client.open_calls(thread)
        return calls[0].call_id if calls and calls[0].state == "waiting" else None

    call_id = await eventually(waits)
    assert call_id is not None
    words = [f"words {number}" for number in range(5)]
    sends = [stack.client.send(thread, text, id=text, mode="steer") for text in [*words, words[0]]]
    assert {one.disposition for one in await asyncio.gather(*sends)} <= {"steered", "duplicate"}
    await stack.restart_worker()
    await stack.client.tool_result(thread, call_id, "waited")
    await stack.client.wait_settled(thread)

    async def idle() -> bool:
        return (await stack.client.status(thread)).state == "idle"

    await eventually(idle)
    read = lines(model.requests[-1])
    assert read[:3] == ["user: go", "call: wait", "result: waited"]
    assert sorted(read[3:]) == [f"user: {text}" for text in words]
    assert len(model.requests) == 2
