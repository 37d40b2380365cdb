"""The history provider in memory: by itself on a session, and in an agent."""

from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from perdure.context import Context, ProviderRun, RunOutcome
from perdure.history_provider import InMemoryHistoryProvider
from perdure.messages import Message, Status
from perdure.session import Session
from perdure.turn_context import ContextMessage
from tests.perdure.session_messages import message


def run(*words: Message, thread: str = "t", tenant: str = "default") -> ProviderRun:
    """A turn that answers these words."""
    return ProviderRun(thread, "a", tenant, 1, 0, words, {})


async def test_a_session_is_loaded_and_a_turn_is_added_in_one_batch() -> None:
    """The seed's way: history goes before the new words, and then both sides are in the session."""
    provider, session = InMemoryHistoryProvider(), Session("s")
    assert await provider.on_invoking(session) == Context(messages=())
    await provider.on_invoked(session, [message("1", "hi"), message("2", "hello", "assistant")])
    context = await provider.on_invoking(session)
    assert context.messages == (ContextMessage(text="hi"), ContextMessage(text="hello", role="assistant"))
    assert session.get_message_count() == 2


async def test_without_loading_all_is_still_stored() -> None:
    """The offset rule of the seed loses every question from the second turn on; ids lose none."""
    provider, session = InMemoryHistoryProvider(load_messages=False), Session("s")
    for turn in range(3):
        assert await provider.on_invoking(session) == Context()
        await provider.on_invoked(session, [message(f"u{turn}"), message(f"a{turn}", role="assistant")])
    assert session.get_message_count("user") == 3


async def test_a_turn_that_is_told_twice_is_in_the_session_once() -> None:
    """So is a transcript that the client sends again as a whole."""
    provider, session = InMemoryHistoryProvider(), Session("s")
    turn = [message("1"), message("2", role="assistant")]
    for _ in range(2):
        await provider.on_invoked(session, turn)
    await provider.on_invoked(session, [*turn, message("3")])
    assert [one.id for one in await session.get_messages()] == ["1", "2", "3"]


async def test_a_write_that_fails_is_warned_about_and_not_raised() -> None:
    """The answer is there all the same. Control: one that succeeds warns of nothing."""

    class Full(Session):
        @override
        async def add_messages_batch(self, messages: Iterable[Message]) -> int:
            raise OSError("No space left on device")

    provider = InMemoryHistoryProvider()
    for session, warnings in ((Full("s"), 1), (Session("s"), 0)):
        with capture_logs() as logs:
            await provider.on_invoked(session, [message("1")])
        assert [log["event"] for log in logs] == ["a session was not written"] * warnings


async def test_a_read_that_fails_is_an_error() -> None:
    """The seed goes on with an empty history; a model would answer as if nothing had been said."""

    class Away(Session):
        @override
        async def get_messages(self) -> tuple[Message, ...]:
            raise OSError("Away")

    with pytest.raises(OSError, match="Away"):
        await InMemoryHistoryProvider().on_invoking(Away("s"))


async def test_in_an_agent_it_stands_for_the_conversation() -> None:
    """What its session holds is read in place of the thread's history; a turn without an answer adds its words."""
    provider = InMemoryHistoryProvider()
    question = message("1", "hi")
    assert await provider.on_invoking(run(question)) == Context(replace=())
    answer = message("2", "hello", "assistant")
    await provider.on_invoked(run(question), RunOutcome("success", Status(), answer))
    assert (await provider.on_invoking(run(message("3")))).replace == (
        ContextMessage(text="hi"),
        ContextMessage(text="hello", role="assistant"),
    )
    await provider.on_invoked(run(message("3")), RunOutcome("cancel", Status(), message("4").with_(parts=())))
    assert [one.id for one in await provider.session("t").get_messages()] == ["1", "2", "3"]
    assert (await provider.on_invoking(run(tenant="other"))).replace == ()


async def test_sessions_are_bounded() -> None:
    """The one that was not used for the longest time goes."""
    provider = InMemoryHistoryProvider(max_sessions=2)
    for thread in ("a", "b", "a", "c"):
        await provider.session(thread).add_messages_batch([message("1")])
    assert [provider.session(thread).get_message_count() for thread in ("a", "c", "b")] == [1, 1, 0]
