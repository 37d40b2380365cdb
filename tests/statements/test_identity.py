"""Statements 23 to 28, 51 and 52: messages are known by their ids, and turns come one after the other."""

import asyncio

from typing_extensions import override

from perdure.context import ProviderRun
from perdure.history_provider import HistoryProvider
from perdure.messages import Message, Status
from perdure.testing import Asked, Call, Reply
from tests.activities.providers import Teller
from tests.eventually import eventually
from tests.stack import Stack
from tests.statements.requests import agent_of, lines, log_of, stored
from tests.workflows.conftest import StackFactory


def echo(asked: Asked) -> str:
    """Answer by the last words."""
    return f"answer to {asked.user_text}"


async def sent(stack: Stack, thread: str, text: str, id: str) -> tuple[str, Message]:
    """Send words under an id; what became of them, and the turn that answers them."""
    accepted = await stack.client.send(thread, text, id=id, mode="queue")
    return accepted.disposition, await stack.client.wait_settled(thread, accepted.message_id)


async def test_s23_two_runs_on_a_thread_are_two_turns_one_after_the_other(
    start_stack: StackFactory, thread: str
) -> None:
    """The second comes while the first runs: both are complete, in order, and the second has read the first."""
    agent, model = agent_of(lambda asked: Reply(echo(asked), chunk_chars=1, delay_s=0.02))
    stack = await start_stack(agent)
    first = asyncio.create_task(sent(stack, thread, "one", "m1"))
    await eventually(lambda: bool(model.requests))
    assert (await sent(stack, thread, "two", "m2"))[0] == "queued"
    await first
    path = await stack.client.history(thread)
    assert stored(path) == ["user: one", "model: answer to one", "user: two", "model: answer to two"]
    assert [message.status for message in path] == [Status()] * 4
    assert lines(model.requests[1]) == stored(path)[:3]


async def test_s23_words_that_come_before_a_turn_has_begun_are_answered_together_or_in_order(
    start_stack: StackFactory, thread: str
) -> None:
    """Sent at the very same time: both are stored and read, and the last request has all that is before its words."""
    agent, model = agent_of(echo)
    stack = await start_stack(agent)
    await stack.client.start(thread)
    turns = await asyncio.gather(sent(stack, thread, "one", "m1"), sent(stack, thread, "two", "m2"))
    assert [turn.status for _, turn in turns] == [Status()] * 2
    path = stored(await stack.client.history(thread))
    assert sorted(line for line in path if line.startswith("user")) == ["user: one", "user: two"]
    assert lines(model.requests[-1]) == path[:-1]


async def test_s24_words_sent_the_moment_the_answer_comes_see_the_turn_before(
    start_stack: StackFactory, thread: str
) -> None:
    """And what its hooks have kept, though nobody has waited for them."""
    seen: list[int] = []

    class Counting(Teller):
        @override
        async def before_run(self, run: ProviderRun) -> None:
            seen.append(run.state.get("turns", 0))

    agent, model = agent_of(echo, context=[Counting("b")])
    stack = await start_stack(agent)
    for number in range(4):
        await stack.client.ask(thread, f"words {number}")
    assert [len(lines(asked)) for asked in model.requests] == [1, 3, 5, 7]
    assert seen == [0, 1, 2, 3]


async def test_s25_the_same_words_twice_are_two_messages(start_stack: StackFactory, thread: str) -> None:
    """Without ids nobody guesses that the second greeting is the first."""
    agent, model = agent_of(["hello", "hello"], context=[HistoryProvider("log", load_messages=False)])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "hi")
    assert stored(await stack.client.history(thread)) == ["user: hi", "model: hello", "user: hi", "model: hello"]
    assert (await stack.client.counts(thread)).total == 4
    assert len(await log_of(stack, thread, "log", 4)) == 4
    assert len(model.requests) == 2


async def test_s26_the_same_id_is_one_message_and_other_words_under_it_a_conflict(
    start_stack: StackFactory, thread: str
) -> None:
    """In a later run too, and nothing is asked again."""
    agent, model = agent_of(echo)
    stack = await start_stack(agent)
    assert (await sent(stack, thread, "one", "m1"))[0] == "started"
    await sent(stack, thread, "two", "m2")
    before = await stack.client.history(thread)
    assert (await sent(stack, thread, "one", "m1"))[0] == "duplicate"
    assert (await stack.client.send(thread, "other", id="m1")).disposition == "conflict"
    assert await stack.client.history(thread) == before
    assert len(model.requests) == 2


async def test_s27_of_a_transcript_that_is_sent_again_only_what_is_new_is_stored(
    start_stack: StackFactory, thread: str
) -> None:
    """Also after an edit, which has made another branch of it."""
    agent, model = agent_of(echo)
    stack = await start_stack(agent)
    said: list[str] = []
    for number in range(3):
        said.append(f"words {number}")
        told = [(await sent(stack, thread, text, f"m{index}"))[0] for index, text in enumerate(said)]
        assert told == ["duplicate"] * number + ["started"]
    assert (await stack.client.counts(thread)).total == 6
    path = await stack.client.history(thread)
    await stack.client.edit(thread, path[2].id, "other words", id="edit")
    await stack.client.wait_settled(thread)
    before = stored(await stack.client.history(thread))
    assert before[2:] == ["user: other words", "model: answer to other words"]
    told = [(await stack.client.send(thread, text, id=f"m{index}")).disposition for index, text in enumerate(said)]
    assert told == ["duplicate"] * 3
    assert stored(await stack.client.history(thread)) == before
    assert len(model.requests) == 4


async def test_s28_hooks_that_run_twice_add_no_row(start_stack: StackFactory, thread: str) -> None:
    """A hook fails after the log was written, so that all of it is tried again."""
    log, broken = HistoryProvider("log", load_messages=False), Teller("b", failures=1)
    agent, _ = agent_of([Reply(Call("look")), "there"], context=[broken, log])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "where?")
    await eventually(lambda: bool(broken.told))
    assert [message.role for message in await log_of(stack, thread, "log", 2)] == ["user", "assistant"]
    path = await stack.client.history(thread)
    assert stored(path) == ["user: where?", "call: look", "result: saw ", "model: there"]
    assert (await stack.client.counts(thread)).total == 2


async def test_s51_a_request_that_is_sent_again_gets_the_answer_that_is_there(
    start_stack: StackFactory, thread: str
) -> None:
    """By its id, after a restart too; the model is not asked."""
    agent, model = agent_of(echo)
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "one", id="m1") == "answer to one"
    await stack.client.ask(thread, "two", id="m2")
    await stack.restart_worker()
    assert await stack.client.ask(thread, "one", id="m1") == "answer to one"
    assert len(model.requests) == 2


async def test_s52_what_was_delivered_is_a_set_and_not_a_highest_number(start_stack: StackFactory, thread: str) -> None:
    """1 and 3 have come; then 2 and 4 do, and 3 again. All are there once, also after a restart."""
    agent, _ = agent_of(echo)
    stack = await start_stack(agent)
    for batch in ([1, 3], [2, 4, 3], [1, 2, 3, 4]):
        for number in batch:
            await sent(stack, thread, f"words {number}", f"m{number}")
        await stack.restart_worker()
    users = [line for line in stored(await stack.client.history(thread)) if line.startswith("user")]
    assert users == [f"user: words {number}" for number in (1, 3, 2, 4)]
