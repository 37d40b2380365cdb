"""Statements 15 to 20: what of a conversation is loaded and stored, and by whom."""

import pytest

from perdure.context import ContextProvider
from perdure.errors import ConfigurationError
from perdure.history_provider import HistoryProvider, InMemoryHistoryProvider
from perdure.records import LoggedMessage
from perdure.testing import Asked, Call, Reply
from tests.activities.providers import Teller
from tests.statements.requests import agent_of, lines, log_of, stored
from tests.workflows.conftest import StackFactory


def said(log: tuple[LoggedMessage, ...]) -> list[str]:
    """Who said what."""
    return [f"{message.role}: {message.text}" for message in log]


async def test_s15_without_loading_a_model_reads_the_new_words_only(start_stack: StackFactory, thread: str) -> None:
    """No other loader comes in, the rounds of the turn itself are read, and everything is stored."""

    def answer(asked: Asked) -> Reply:
        if asked.user_text == "hi":
            return Reply("hello")
        return Reply("there") if asked.results else Reply(Call("look", {"what": "it"}))

    agent, model = agent_of(answer, context=[HistoryProvider(load_messages=False)])
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "where?")
    assert [lines(asked) for asked in model.requests] == [
        ["user: hi"],
        ["user: where?"],
        ["user: where?", "call: look", "result: saw it"],
    ]
    path = stored(await stack.client.history(thread))
    assert [line for line in path if line.startswith("user")] == ["user: hi", "user: where?"]
    assert (await stack.client.counts(thread)).total == 4


async def test_s16_a_log_stores_inputs_or_outputs_as_it_says(start_stack: StackFactory, thread: str) -> None:
    """One of each, and both."""
    agent, _ = agent_of(
        ["hello", "there"],
        context=[
            HistoryProvider("answers", load_messages=False, store_inputs=False),
            HistoryProvider("questions", load_messages=False, store_outputs=False),
        ],
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "where?")
    assert said(await log_of(stack, thread, "answers", 2)) == ["assistant: hello", "assistant: there"]
    assert said(await log_of(stack, thread, "questions", 2)) == ["user: hi", "user: where?"]


async def test_s17_a_log_beside_the_conversation_doubles_nothing(start_stack: StackFactory, thread: str) -> None:
    """Each message reaches the model once, and the log holds all of them."""
    agent, model = agent_of(
        ["hello", "there"], context=[HistoryProvider(), HistoryProvider("audit", load_messages=False)]
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "where?")
    assert lines(model.requests[1]) == ["user: hi", "model: hello", "user: where?"]
    assert said(await log_of(stack, thread, "audit", 4)) == [
        *("user: hi", "assistant: hello", "user: where?", "assistant: there")
    ]


@pytest.mark.parametrize(
    "loaders",
    [
        [HistoryProvider(), HistoryProvider()],
        [HistoryProvider(), InMemoryHistoryProvider()],
        [InMemoryHistoryProvider(), InMemoryHistoryProvider(name="other")],
    ],
)
def test_s18_two_loaders_are_refused(loaders: list[ContextProvider]) -> None:
    """The model would read the history twice. Control: one loader and a log are taken."""
    with pytest.raises(ConfigurationError):
        agent_of([], context=loaders)
    agent_of([], context=[loaders[0], HistoryProvider("audit", load_messages=False)])


def test_s19_a_conversation_that_a_service_keeps_is_not_loaded_here_too() -> None:
    """A loader is refused with a sentence; none is added. Control: without the service it is taken."""
    with pytest.raises(ConfigurationError, match="must not load it too"):
        agent_of([], context=[HistoryProvider()], history="service")
    with pytest.raises(ConfigurationError, match="must not load it too"):
        agent_of([], context=[InMemoryHistoryProvider()], history="service")
    agent, _ = agent_of([], history="service")
    assert agent.context == ()
    agent_of([], context=[HistoryProvider()])


async def test_s20_context_is_never_the_users_input(start_stack: StackFactory, thread: str) -> None:
    """A message of the role `user` in each of three runs: three messages of the user are stored, and counted."""
    agent, model = agent_of(["one", "two", "three"], context=[Teller("rag", "a passage")])
    stack = await start_stack(agent)
    for number in range(3):
        await stack.client.ask(thread, f"question {number}")
    assert lines(model.requests[2])[-2:] == ["user: a passage", "user: question 2"]
    assert lines(model.requests[2]).count("user: a passage") == 1
    assert (await stack.client.counts(thread)).user == 3
    users = [message for message in await stack.client.history(thread) if message.role == "user"]
    assert stored(users) == [f"user: question {number}" for number in range(3)]
