"""The tool `read_result`: how an agent reads what was cut off for it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.catalog import ToolCatalog
from activities.dispatch import DispatchActivities
from activities.read_result import ResultReader
from activities.tool_run import run_tool
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, CommitResults, CommitStep, Operation, SyncBatch
from perdure.builtins import READ_RESULT, Timers
from perdure.codec import dumps, head
from perdure.contract import DispatchRequest
from perdure.errors import ConfigurationError, ToolError
from perdure.inputs import INLINE_BYTES
from perdure.messages import EventPart, Message, Part, Role, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Summary, ThreadRecord
from perdure.testing import Asked, Call, Reply
from perdure.tools import Tool
from perdure.view import Result, view
from perdure.view_calls import short_id
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, requests_of, scripted


class Bench:
    """A thread with results, and a reader."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.reader = ResultReader(self.store)
        self._version = 0

    async def start(self) -> "Bench":
        """Make the thread `t`."""
        await self.store.create_thread(ThreadRecord(thread_id="t", agent="a"))
        return self

    async def add(self, id: str, role: Role, *parts: Part) -> None:
        """Append a message."""
        await self.apply(AppendMessage(message=Message(id=id, thread_id="t", role=role, parts=parts)))

    async def apply(self, operation: Operation) -> None:
        """Apply a batch."""
        self._version += 1
        sync_id = str(self._version)
        batch = SyncBatch(thread_id="t", number=self._version, sync_id=sync_id, operations=(operation,))
        assert not (await self.store.append_messages(batch)).refused

    async def result(self, data: bytes, call_id: str = "c1", thread_id: str = "t") -> ToolResultPart:
        """A result as `dispatch` stages it."""
        blob = await self.store.put_blob(thread_id, data)
        return ToolResultPart(call_id=call_id, content=head(data, INLINE_BYTES), blob=blob, size_bytes=len(data))


def call(call_id: str) -> ToolCallPart:
    """A call."""
    return ToolCallPart(call_id=call_id, tool="look")


async def read_on(bench: Bench, call_id: str, offset: int, thread_id: str = "t") -> str:
    """All there is from the offset on, by following the notes."""
    text = ""
    while True:
        piece = await bench.reader.read(thread_id, call_id, offset)
        assert len(piece.encode("utf-8", "surrogatepass")) <= INLINE_BYTES
        words, _, note = piece.rpartition("\n\n[Bytes ")
        text += words
        following = re.search(r'read_result\(call_id="(.+)", offset=(\d+)\)', note)
        if following is None:
            assert note.endswith("This is the end.]")
            return text
        assert following[1] == call_id
        offset = int(following[2])


@given(st.lists(st.sampled_from(["a", "é", "€", "😀", "\n", "\ud800"]), min_size=1, max_size=40).map("".join))
@settings(max_examples=25, deadline=None)
async def test_the_pieces_are_the_whole_result(words: str) -> None:
    """Whatever its characters, none is lost, doubled or torn; the first piece is what the model has seen already."""
    bench = await Bench().start()
    whole = words * (150_000 // len(words))
    shown = await bench.result(whole.encode("utf-8", "surrogatepass"))
    await bench.add("m1", "assistant", call("c1"), shown)
    offset = len(shown.content.encode("utf-8", "surrogatepass"))
    assert shown.content + await read_on(bench, "c1", offset) == whole
    assert await read_on(bench, "c1", 0) == whole


async def test_the_note_of_a_clipped_result_says_how_to_go_on() -> None:
    """What the view says can be done as it says it, with the id that the model sees, odd ids and events included."""
    bench = await Bench().start()
    event = EventPart(event_id="e", origin_call_id="c", content="é" * 50_000)
    await bench.add("m1", "assistant", call("odd id"), await bench.result(b"o" * 90_000, "odd id"))
    doubled = [await bench.result(letter * 90_000, "dup") for letter in (b"1", b"2")]
    await bench.add("m2", "assistant", call("dup"), call("dup"), *doubled)
    await bench.add("m3", "event", event)
    path = await bench.store.load_history_with_ancestors("t")
    results = [item for message in view(path) for item in message.items if isinstance(item, Result)]
    rest: list[str] = []
    for result in results:
        note = re.search(r'read_result\(call_id="(.+)", offset=(\d+)\)', result.text)
        assert note is not None
        assert note[1] == result.call_id
        rest.append(await read_on(bench, note[1], int(note[2])))
    assert [(text[:1], text[-1:], len(text)) for text in rest] == [
        ("o", "o", 90_000 - INLINE_BYTES),
        ("1", "1", 90_000 - INLINE_BYTES),
        ("2", "2", 90_000 - INLINE_BYTES),
        ("é", "é", 50_000 - INLINE_BYTES),
    ]


async def test_an_id_that_a_provider_has_shortened_is_known() -> None:
    """Some take nine characters: the model then sees a hash of the id."""
    bench = await Bench().start()
    await bench.add("m1", "assistant", call("c1"), await bench.result(b"x" * 40_000))
    assert await read_on(bench, short_id("c1", 9), INLINE_BYTES) == "x" * (40_000 - INLINE_BYTES)
    with pytest.raises(ToolError):
        await bench.reader.read("t", short_id("c1", 9)[:7], 0)


async def test_a_result_can_be_read_behind_a_summary_by_a_child_and_on_another_branch() -> None:
    """The store has it all: what was compacted, what a thread inherits, and what the head has left."""
    bench = await Bench().start()
    await bench.add("m0", "user", TextPart(text="go"))
    await bench.add("m1", "assistant", call("c1"), await bench.result(b"x" * 40_000))
    await bench.add("m2", "user", TextPart(text="go on"))
    await bench.store.add_summary(Summary(id="s", thread_id="t", message_id="m1", parts=2, text="what was"))
    assert [message.id for message in (await bench.store.load_history_with_ancestors("t")).messages] == ["m2"]
    rest = "x" * (40_000 - INLINE_BYTES)
    assert await read_on(bench, "c1", INLINE_BYTES) == rest
    child = ThreadRecord(thread_id="k", agent="a", parent_thread_id="t", spawn_message_id="m2")
    await bench.store.create_thread(child)
    assert await read_on(bench, "c1", INLINE_BYTES, "k") == rest
    other = Message(id="n1", thread_id="t", role="user", parts=(TextPart(text="anew"),))
    await bench.apply(AppendMessage(message=other, beside="m0"))
    assert await read_on(bench, "c1", INLINE_BYTES) == rest


async def test_bytes_that_are_no_text_are_read_as_what_stands_for_them() -> None:
    """A result from outside may be anything; reading it ends, and each piece is small enough to be shown whole."""
    bench = await Bench().start()
    blob = await bench.store.put_blob("t", b"\x80" * 10 + b"x" * 40_000 + b"\xff\x80" * 20_000)
    await bench.add("m1", "assistant", call("c1"), ToolResultPart(call_id="c1", content="?", blob=blob))
    text = await read_on(bench, "c1", 0)
    assert text.count("x") == 40_000
    assert text.endswith("\ufffd")


@pytest.mark.parametrize(
    ("call_id", "offset", "sentence"),
    [
        ("c9", 0, "There is no result of a call 'c9' in this conversation."),
        ("\ud800" * 200, 0, "There is no result"),
        ("c1", 40_000, "The result of 'c1' has 40000 bytes, so there is nothing at 40000."),
        ("c2", 0, "There is no result of a call 'c2' in this conversation."),
        ("gone", 0, "The rest of this result is missing"),
    ],
    ids=["unknown", "hostile", "beyond the end", "without a result", "not stored"],
)
async def test_what_cannot_be_read_is_said_in_a_sentence(call_id: str, offset: int, sentence: str) -> None:
    """The model gets an error result that it can go on from."""
    bench = await Bench().start()
    gone = ToolResultPart(call_id="gone", content="it begins", blob="0" * 64, size_bytes=99)
    shown = await bench.result(b"x" * 40_000)
    await bench.add("m1", "assistant", call("c1"), call("gone"), call("c2"), shown, gone)
    arguments = dumps({"call_id": call_id, "offset": offset})
    output = await run_tool(bench.reader.tool("t"), arguments)
    assert output.outcome == "error"
    assert output.content.startswith(sentence)


@pytest.mark.parametrize("arguments", ["{}", '{"call_id":" "}', '{"call_id":"c1","offset":-1}', '{"call_id":1}'])
async def test_odd_arguments_are_refused(arguments: str) -> None:
    """Before anything is read."""
    output = await run_tool(ResultReader(MemoryStore()).tool("t"), arguments)
    assert output.outcome == "error"
    assert "do not fit the tool" in output.content


async def test_an_agent_reads_the_rest_of_its_own_result() -> None:
    """Through the activities: the model is told how, calls the tool, and gets the next piece from `dispatch`."""
    whole = "".join(f"line {number}\n" for number in range(8_000))

    def script(asked: Asked) -> Reply | str:
        if not asked.results:
            return Reply(Call("look"))
        note = re.search(r'read_result\(call_id="(.+)", offset=(\d+)\)', asked.results[0])
        return Reply(Call(READ_RESULT, {"call_id": note[1], "offset": int(note[2])})) if note else "I have read it all."

    agent = scripted(script)

    @agent.tool
    async def look() -> str:
        return whole

    thread = await Conversation.start(agent)
    dispatch = DispatchActivities(thread.store, Agents([agent]))
    await thread.say("go")
    parts = 0
    while (outlined := await thread.complete()).calls:
        await thread.sync(CommitStep(message_id=thread.message_id, start=parts, turn=1, step=thread.step))
        call_id = ids.call_id("t", 1, thread.step, 0)
        assert (await dispatch.execute(DispatchRequest(thread_id="t", agent="a", call_id=call_id))).outcome == "ok"
        parts += outlined.parts
        await thread.sync(CommitResults(message_id=thread.message_id, start=parts, call_ids=(call_id,)))
        parts += 1
        thread.step += 1
    assert outlined.preview == "I have read it all."
    pieces = [request.results[0].rpartition("\n\n[")[0] for request in requests_of(agent).requests[1:]]
    assert len(pieces) == 3
    assert "".join(pieces) == whole


async def test_the_tool_is_offered_where_there_is_something_to_read() -> None:
    """After all others, to every agent that has any; nobody is asked about it, and no other tool has its name."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id="t", agent="a"))
    without, with_tool = Agent("a", model="test"), Agent("b", model="test", toolsets=[Timers()])
    catalog = ToolCatalog(store, Agents([without, with_tool]))
    assert tuple((await catalog.of(without, "t")).tools) == ()
    offered = (await catalog.of(with_tool, "t")).tools
    assert tuple(offered)[-1] == READ_RESULT
    assert offered[READ_RESULT].approval == "never"
    assert tuple((await catalog.kept(with_tool, "t")).tools) == tuple(offered)
    with pytest.raises(ConfigurationError, match="reserved"):
        Agent("c", model="test", tools=[Tool(READ_RESULT, "", {"type": "object"}, kind="client")])
