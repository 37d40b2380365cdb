"""What comes from outside for the calls of a thread, as the client sends it."""

from datetime import timedelta

import pytest

from perdure.batch import StoreLateResult
from perdure.codec import loads
from perdure.contract import TreeChanged
from perdure.errors import ThreadClosed, ThreadNotFound, UsageError
from perdure.inputs import Disposition, ToolResult
from perdure.messages import ToolCallPart, ToolResultPart
from perdure.records import Summary
from perdure.results import ThreadResults
from perdure.turn_buffer import Chunk
from stores.memory import MemoryStore
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

TAKEN = TreeChanged(disposition="settled", head_id="h")


class Fixture:
    """A thread, and what the client sends to it."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.store = talk.store
        self.calls = RecordedCalls(answers={"add_result": TAKEN})
        self.client = ThreadResults(talk.store, self.calls, timedelta(seconds=1))

    async def called(self) -> None:
        """The thread has made the call `c1`, in the message `a1`."""
        await self.talk.say("hi")
        await self.talk.commit((ToolCallPart(call_id="c1", tool="look"),))

    @property
    def result(self) -> ToolResult:
        """The result that was sent last."""
        _, content = self.calls.sent[-1]
        assert isinstance(content, ToolResult)
        return content


@pytest.fixture
async def outside() -> Fixture:
    """The thread and its client."""
    return Fixture(await Talk.begin(MemoryStore()))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("blue", "blue"),
        ("", ""),
        ("null", "null"),
        (None, "null"),
        (False, "false"),
        (0, "0"),
        (1.5, "1.5"),
        ([], "[]"),
        ({"n": 9007199254740993007, "é": "\x00"}, '{"n":9007199254740993007,"\\u00e9":"\\u0000"}'),
    ],
)
async def test_any_json_value_is_a_result(outside: Fixture, content: object, text: str) -> None:
    """Also those that are nothing elsewhere; text stays as it is, and of the others the model reads the JSON."""
    await outside.called()
    assert await outside.client.tool_result(THREAD, "c1", content) is None
    assert outside.calls.sent[-1][0] == "tool_result"
    assert (outside.result.content, outside.result.size_bytes) == (text, len(text.encode()))
    if not isinstance(content, str):
        assert loads(outside.result.content) == content


@pytest.mark.parametrize("content", [{1}, {1: 2}, float("nan"), object(), (1,)])
async def test_what_is_no_json_is_refused_here(outside: Fixture, content: object) -> None:
    """Whoever gives it is told, and nothing is sent."""
    with pytest.raises(UsageError, match="JSON value"):
        await outside.client.tool_result(THREAD, "c1", content)
    assert outside.calls.sent == []


async def test_results_that_are_answered_go_as_updates(outside: Fixture) -> None:
    """Those that name their message, which are also taken late, and preliminary ones; the others are signals."""
    client = outside.client
    await outside.called()
    assert await client.tool_result(THREAD, "c1", "x", message_id="a1", outcome="error") == TAKEN
    assert outside.calls.sent[-1][0] == "add_result"
    assert (outside.result.message_id, outside.result.outcome, outside.result.preliminary) == ("a1", "error", False)
    outside.calls.answers["add_result"] = TAKEN.with_(disposition="changed")
    assert (await client.tool_result(THREAD, "c1", {"percent": 40}, preliminary=True)) is not None
    assert outside.calls.sent[-1][0] == "add_result"
    assert (outside.result.message_id, outside.result.preliminary) == (None, True)
    await client.tool_result(THREAD, "c1", "x", subscription=True)
    assert outside.calls.sent[-1][0] == "tool_result"
    assert outside.result.subscription


@pytest.mark.parametrize("disposition", ["dropped", "rejected", "refused"])
async def test_a_result_that_nobody_waits_for_is_an_error(outside: Fixture, disposition: Disposition) -> None:
    """Where the thread answers. A repetition is none: the result is there."""
    outside.calls.answers["add_result"] = TAKEN.with_(disposition=disposition)
    with pytest.raises(UsageError, match="Nobody waits for a result of the call 'c1'"):
        await outside.client.tool_result(THREAD, "c1", "x", message_id="a1")
    outside.calls.answers["add_result"] = TAKEN.with_(disposition="duplicate")
    assert await outside.client.tool_result(THREAD, "c1", "x", message_id="a1") is not None
    outside.calls.answers["add_result"] = UsageError("There is no message 'a9' in this thread.")
    with pytest.raises(UsageError, match="There is no message 'a9'"):
        await outside.client.tool_result(THREAD, "c1", "x", message_id="a9")


async def test_a_large_value_travels_as_a_reference(outside: Fixture) -> None:
    """Whatever it was; the whole of it is stored."""
    value = ["word"] * 20_000
    await outside.client.tool_result(THREAD, "c1", value, message_id="a1")
    assert outside.result.blob is not None
    assert len(outside.result.content) < 100
    assert loads(await outside.store.get_blob(THREAD, outside.result.blob)) == value


async def test_a_thread_that_takes_nothing_is_told(outside: Fixture) -> None:
    """One that never was, or is closed."""
    with pytest.raises(ThreadNotFound):
        await outside.client.tool_result("nope", "c1", "x", preliminary=True)
    with pytest.raises(UsageError, match="message_id"):
        await outside.client.tool_result(THREAD, "c1", "x", message_id="")
    with pytest.raises(UsageError, match="cannot be the id"):
        await outside.client.event(THREAD, "c1", "x", id="a\nb")
    await outside.store.close_thread(THREAD)
    with pytest.raises(ThreadClosed):
        await outside.client.tool_result(THREAD, "c1", "x", message_id="a1")
    assert outside.calls.sent == []


async def test_a_result_that_comes_after_a_real_one_did_not_count(outside: Fixture) -> None:
    """What a tool has returned stays, and whoever brings another result is told. The same once more is none.

    The thread itself answers all of them alike.
    """
    await outside.talk.say("hi")
    await outside.talk.commit((ToolCallPart(call_id="c1", tool="look"), ToolCallPart(call_id="c2", tool="look")))
    await outside.store.stage_result(THREAD, ToolResultPart(call_id="c1", content="blue"))
    client = outside.client
    for is_committed in (False, True):
        with pytest.raises(UsageError, match=r"did not count: the call 'c1' has one already \(ok: blue\), which stays"):
            await client.tool_result(THREAD, "c1", "red", message_id="a1")
        with pytest.raises(UsageError, match="has one already"):
            await client.tool_result(THREAD, "c1", "blue", outcome="error", message_id="a1")
        with pytest.raises(UsageError, match="has one already"):
            await client.tool_result(THREAD, "c1", "blue" * 20_000, message_id="a1")
        assert await client.tool_result(THREAD, "c1", "blue", message_id="a1") == TAKEN
        assert await client.tool_result(THREAD, "c1", "bl", message_id="a1", subscription=True) == TAKEN
        if not is_committed:
            await outside.talk.settle_calls()
    assert await client.tool_result(THREAD, "c1", "red", message_id="gone") == TAKEN, "deleted meanwhile: nothing stays"
    taken = TAKEN.with_(disposition="changed")
    outside.calls.answers["add_result"] = taken
    assert await client.tool_result(THREAD, "c1", "red", message_id="a1", preliminary=True) == taken


async def test_a_late_result_that_was_stored_counts(outside: Fixture) -> None:
    """It has taken the place of the one that was made up, large ones by their blob; also behind a summary."""
    await outside.talk.say("hi")
    await outside.talk.commit((ToolCallPart(call_id="c1", tool="look"),))
    await outside.talk.stop()
    large = "word " * 20_000
    blob = await outside.store.put_blob(THREAD, large.encode())
    result = ToolResultPart(call_id="c1", content="word", blob=blob)
    await outside.talk.sync(StoreLateResult(message_id="a1", result=result))
    await outside.talk.say("and?")
    assert await outside.store.add_summary(Summary(id="s", thread_id=THREAD, message_id="a1", parts=2, text="So far."))
    assert await outside.client.tool_result(THREAD, "c1", large, message_id="a1") == TAKEN
    with pytest.raises(UsageError, match="has one already"):
        await outside.client.tool_result(THREAD, "c1", "word", outcome="denied", message_id="a1")


async def test_a_call_that_there_never_was_is_an_error(outside: Fixture) -> None:
    """Nothing is sent for it. A call is one while it streams, on a branch that is not shown, and when it is over."""
    with pytest.raises(UsageError, match="There is no call 'c1' in this thread"):
        await outside.client.tool_result(THREAD, "c1", "x")
    await outside.talk.say("hi")
    await outside.talk.stream([Chunk(index=0, part=ToolCallPart(call_id="c1", tool="look"))])
    await outside.client.tool_result(THREAD, "c1", "x")
    await outside.talk.commit((ToolCallPart(call_id="c1", tool="look"),))
    await outside.talk.stop()
    await outside.talk.say("rather this", beside="u1")
    await outside.client.tool_result(THREAD, "c1", "x")
    with pytest.raises(UsageError, match="There is no call 'c2'"):
        await outside.client.tool_result(THREAD, "c2", "x")
    assert [name for name, _ in outside.calls.sent] == ["tool_result"] * 2
