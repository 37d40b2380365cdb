"""The problems that a status shows: streams of the same hide no others, and what is over is not shown any more."""

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from activities import catalog
from perdure.agent import Agent
from perdure.limits import Limits
from perdure.rap.toolset import RapToolset
from perdure.testing import Call, ScriptedModel
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import DISCOVERY, Answer, FakeRapServer, FakeTool
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.rap_stack import RapStack
from workflows.problems import KEPT, SENTENCE_CHARS, Problem, Problems

AWAY = [Answer(status=500)] * 3
"""A server that does not give its manifest, however often it is asked once."""


def happened(*sentences: str, about: str = "") -> Problems:
    """What is noted when these happen one after the other."""
    problems = Problems()
    for sentence in sentences:
        problems = problems.adding(Problem(sentence=sentence, about=about))
    return problems


# -- what is noted -----------------------------------------------------------------------------------------------------


def test_a_stream_of_the_same_is_one_problem_with_a_count() -> None:
    """It tells the last one, so that what came before it is still seen; others of it are not."""
    problems = happened("The disk is full.")
    for number in range(1, 38):
        problems = problems.adding(Problem(sentence=f"e{number} was dropped.", about="drops"))
    assert problems.told == ("The disk is full.", "e37 was dropped. (37 like this so far.)")


def test_the_same_sentence_is_the_same_problem() -> None:
    """It is the newest then. Another sentence is another problem."""
    assert happened("a", "b", "a").told == ("b", "a (2 like this so far.)")


def test_the_oldest_problem_goes() -> None:
    """Problems are bounded in number and length, those of tools by themselves."""
    problems = happened(*(f"{number} {'x' * 1_000}" for number in range(KEPT + 1)))
    problems = problems.offering(f"t{number} {'x' * 1_000}" for number in range(KEPT + 1))
    assert [told.split()[0] for told in problems.told] == [
        *(f"t{number}" for number in range(KEPT)),
        *(str(number) for number in range(1, KEPT + 1)),
    ]
    assert {len(told) for told in problems.told} == {SENTENCE_CHARS}


def test_problems_of_tools_are_those_of_the_newest_offer() -> None:
    """What is not said again is over; what has happened stays."""
    problems = happened("x").offering(["a is away.", "b is away."]).offering(["b is away."])
    assert problems.told == ("b is away.", "x")
    assert problems.offering([]).told == ("x",)


def test_what_works_again_is_no_problem_any_more() -> None:
    """All else stays, and what goes wrong with it later is counted anew."""
    problems = happened("a", "b", about="hooks").adding(Problem(sentence="c")).offering(["t is away."])
    assert problems.without("hooks").told == ("t is away.", "c")
    assert problems.without("compaction") == problems
    assert problems.without("hooks").adding(Problem(sentence="d", about="hooks")).told == ("t is away.", "c", "d")


def test_a_run_goes_on_from_the_one_before() -> None:
    """Counts add up, what it has noted itself is newer, and tools stay as they were until they are offered again."""
    before = happened("a", "b", about="x").adding(Problem(sentence="c")).offering(["t is away."])
    assert before.before(happened("d", about="x")).told == ("t is away.", "c", "d (3 like this so far.)")
    assert before.before(Problems().offering(["u is away."])).told[0] == "u is away."


# -- what a thread shows -----------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server with a tool."""
    async with FakeRapServer(FakeTool("ask"), name="good") as server:
        yield server


async def shows(stack: Stack, thread: str, *expected: str) -> None:
    """Wait until these are all problems that the thread shows, each by its beginning."""

    async def are_shown() -> bool:
        told = (await stack.client.status(thread)).problems
        return len(told) == len(expected) and all(map(str.startswith, told, expected))

    await eventually(are_shown, timeout=20)


async def test_a_stream_of_dropped_events_hides_no_other_problem(start_stack: StackFactory, thread: str) -> None:
    """They are one problem with a count, as are inputs that cannot be read and messages that are turned away."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: "heard")))
    await stack.client.ask(thread, "hi", id="m1")
    await stack.handle(thread).signal("user_message", {"id": "m2", "txet": "hi"})
    # Other mistakes of the same kind are counted with it.
    await stack.handle(thread).signal("user_message", {"id": "m3", "tetx": "hi"})
    for number in range(1, 38):
        await stack.handle(thread).signal("event", {"id": f"e{number}", "call_id": "call_x", "content": "rain"})
    refused = "The user_message was refused: there is no field `tetx`"
    dropped = "The event e37 of call_x was dropped. (37 like this so far.)"
    await shows(stack, thread, refused, dropped)
    for number in range(2):
        await stack.handle(thread).signal("user_message", {"id": "m1", "text": f"other words {number}"})
    again = "The message m1 came again with other content; the first content stays. (2 like this so far.)"
    await shows(stack, thread, refused, dropped, again)


async def test_a_server_that_answers_again_is_no_problem_any_more(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one with every step for which it is away, said once, and gone with the step that has its tools."""
    monkeypatch.setattr(catalog, "RETRY_S", 0.0)
    async with RapStack(temporal, store, RapToolset(server.url, "good")) as stack:
        server.script(DISCOVERY, *AWAY * 2)
        for words in ("one", "two"):
            await stack.client.send(thread, words, id=words)
            await stack.heard(thread, f"heard {words}")
            await shows(stack, thread, "good answers the request for its manifest with HTTP 500")
        call = await stack.called(thread, server, Call("ask"))
        await server.result(call, "done")
        await stack.heard(thread, "heard done")
        await shows(stack, thread)


async def test_problems_last_from_run_to_run(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts go on, and what is wrong with tools is over in a later run as it would have been in the first."""
    monkeypatch.setattr(catalog, "RETRY_S", 0.0)
    # Runs are full after every input.
    async with RapStack(temporal, store, RapToolset(server.url, "good"), limits=Limits(history_events=1)) as stack:
        away = "good answers the request for its manifest with HTTP 500"
        server.script(DISCOVERY, *AWAY)
        await stack.client.send(thread, "one", id="one")
        await stack.heard(thread, "heard one")
        for number in range(1, 4):
            await stack.handle(thread).signal("event", {"id": f"e{number}", "call_id": "call_x", "content": "rain"})
            counted = f" ({number} like this so far.)" if number > 1 else ""
            await shows(stack, thread, away, f"The event e{number} of call_x was dropped.{counted}")
        assert await stack.runs(thread) > 3
        await stack.client.send(thread, "two", id="two")
        await stack.heard(thread, "heard two")
        await shows(stack, thread, "The event e3 of call_x was dropped. (3 like this so far.)")
