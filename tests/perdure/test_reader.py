"""Threads as they are read, when their conversations branch."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.batch import RememberDecision, SetDue
from perdure.errors import StoreUnavailable, ThreadNotFound, UnknownMessage
from perdure.messages import Message, TextPart, ToolCallPart, Usage
from perdure.reader import ThreadReader
from perdure.records import Change, Path, Snapshot, StoredTree, Summary
from perdure.turn_buffer import Chunk
from perdure.watch import View, WatchEvent, is_settled
from stores.memory import MemoryStore
from tests.talk import THREAD, Talk

LARGE = "word " * 20_000


async def two_answers() -> Talk:
    """A question that was asked twice: u1 a1, and beside it u2 a2, which is shown."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two", beside="u1")
    await talk.commit((TextPart(text="second"),))
    return talk


async def caught_up(events: AsyncGenerator[WatchEvent, None], talk: Talk) -> list[WatchEvent]:
    """What a watcher is told until it knows all."""
    newest = (await talk.store.get_thread(THREAD)).seq
    seen: list[WatchEvent] = []
    while not seen or seen[-1].seq < newest:
        seen.append(await asyncio.wait_for(anext(events), 10))
    return seen


def path(events: list[WatchEvent]) -> list[str]:
    """What the events come to."""
    view = View()
    for event in events:
        view.apply(event)
    return [message.id for message in view.messages]


async def test_another_branch_is_told_as_a_snapshot() -> None:
    """It stands for all changes up to it; what happens then follows one by one."""
    talk = await two_answers()
    async with aclosing(ThreadReader(talk.store).watch(THREAD)) as events:
        seen = await caught_up(events, talk)
        await talk.note("before it")
        await talk.switch("u1")
        await talk.say("three")
        switched = await caught_up(events, talk)
        assert [type(event) for event in switched] == [Snapshot]
        await talk.commit((TextPart(text="third"),))
        followed = await caught_up(events, talk)
    assert all(isinstance(event, Change) for event in followed)
    assert path(seen) == ["u2", "a2"]
    assert path(seen + switched + followed) == ["u1", "a1", "u3", "a3"]


async def test_a_reader_who_comes_back_to_another_branch_gets_a_snapshot() -> None:
    """With `after`, what was missed is told as it happened only while the path is the same."""
    talk = await two_answers()
    known = (await talk.store.get_thread(THREAD)).seq
    reader = ThreadReader(talk.store)
    await talk.note("one more")
    async with aclosing(reader.watch(THREAD, known)) as events:
        assert all(isinstance(event, Change) for event in await caught_up(events, talk))
    await talk.switch("u1")
    await talk.note("on the other")
    async with aclosing(reader.watch(THREAD, known)) as events:
        assert [type(event) for event in await caught_up(events, talk)] == [Snapshot]
    async with aclosing(reader.watch(THREAD, (await talk.store.get_thread(THREAD)).seq)) as events:
        await talk.note("and more")
        assert all(isinstance(event, Change) for event in await caught_up(events, talk)), "it is told once"


class AwaySnapshots(MemoryStore):
    """A store whose second snapshot cannot be read, nor the one after."""

    reads = 0

    async def snapshot(self, thread_id: str) -> Snapshot:
        """Fails twice after the first."""
        self.reads += 1
        if self.reads in (2, 3):
            raise StoreUnavailable("away")
        return await super().snapshot(thread_id)


async def test_a_database_that_goes_away_over_a_new_snapshot_is_waited_for() -> None:
    """The change of the path is not lost."""
    talk = await Talk.begin(AwaySnapshots())
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    async with aclosing(ThreadReader(talk.store).watch(THREAD)) as events:
        seen = await caught_up(events, talk)
        await talk.delete("a1")
        assert path(seen + await caught_up(events, talk)) == ["u1"]


async def test_branches_are_told_with_what_they_begin_with() -> None:
    """In order, with the one that is shown; a large text by its beginning, and none of a turn that has said nothing."""
    talk = await two_answers()
    await talk.say(LARGE, beside="u1")
    reader = ThreadReader(talk.store)
    branches = await reader.branches(THREAD, "u2")
    assert [(one.message_id, one.role, one.selected) for one in branches] == [
        ("u1", "user", False),
        ("u2", "user", False),
        ("u3", "user", True),
    ]
    assert [one.text for one in branches] == ["one", "two", ("word " * 40)[:199] + "…"]
    assert [(one.text, one.status.state) for one in await reader.branches(THREAD, "a3")] == [("", "running")]
    await talk.switch("u1")
    assert [one.selected for one in await reader.branches(THREAD, "u3")] == [True, False, False]
    assert [one.selected for one in await reader.branches(THREAD, "a2")] == [True], "it would be shown with its parent"
    with pytest.raises(UnknownMessage):
        await reader.branches(THREAD, "nope")
    with pytest.raises(ThreadNotFound):
        await reader.branches("nope", "u1")


class RacingStore(MemoryStore):
    """A store in which something happens whenever its tree has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], Awaitable[None]]] = []

    async def load_tree(self, thread_id: str, *, parts: bool = True) -> StoredTree:
        """The tree as it was before."""
        tree = await super().load_tree(thread_id, parts=parts)
        if self.races:
            await self.races.pop()()
        return tree


async def test_branches_are_told_as_they_are_while_messages_are_deleted() -> None:
    """One that has gone is not among them; only if the message itself has, there is nothing to tell."""
    store = RacingStore()
    talk = await Talk.begin(store)
    for words in ("one", "two", "three"):
        await talk.say(words, beside="u1" if talk.turn else None)
        await talk.commit((TextPart(text="x"),))
    store.races.append(lambda: talk.delete("u2"))
    reader = ThreadReader(store)
    assert [one.text for one in await reader.branches(THREAD, "u1")] == ["one", "three", "x"]
    store.races.append(lambda: talk.delete("u1"))
    with pytest.raises(UnknownMessage, match="'u1'"):
        await reader.branches(THREAD, "u1")


async def test_a_hidden_turn_is_found_while_messages_below_it_are_deleted() -> None:
    """What was deleted between two reads is nothing to fail over."""
    store = RacingStore()
    talk = await Talk.begin(store)
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.note("below it")
    below = (await store.get_thread(THREAD)).head_id
    assert below is not None
    await talk.say("two", beside="u1")
    store.races.append(lambda: talk.delete(below))
    turn = await ThreadReader(store)._turn(THREAD, "u1", lambda view: view.turn("u1"), is_settled)
    assert (turn.id, turn.parts) == ("a1", (TextPart(text="first"),))
    assert store.races == []


async def test_the_tree_holds_every_branch_with_its_words_in_full() -> None:
    """Or the messages alone, for whoever draws branch pickers."""
    store = MemoryStore()
    talk = await Talk.begin(store)
    await talk.say("one")
    await talk.commit((TextPart(blob=await store.put_blob(THREAD, LARGE.encode())),))
    await talk.say("two", beside="u1")
    reader = ThreadReader(store)
    tree = await reader.tree(THREAD)
    parts = {one.message.id: one.message.parts for one in tree.messages}
    assert tree.head_id == "a2"
    assert parts.keys() == {"u1", "a1", "u2", "a2"}
    assert [part.text for part in parts["a1"] if isinstance(part, TextPart)] == [LARGE]
    assert [one.message.parts for one in (await reader.tree(THREAD, parts=False)).messages] == [()] * 4


async def test_history_is_the_shown_path() -> None:
    """The other branch comes back when it is shown."""
    talk = await two_answers()
    reader = ThreadReader(talk.store)
    assert [message.id for message in await reader.history(THREAD)] == ["u2", "a2"]
    await talk.switch("u1")
    assert [message.id for message in await reader.history(THREAD)] == ["u1", "a1"]


async def test_approvals_are_those_of_the_shown_branch_that_wait() -> None:
    """With the whole arguments, the question and when it ends; not those that were decided, nor those elsewhere."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("hi")
    asked = ApprovalRequest(prompt="Send it?")
    arguments = '{"text": "' + "x" * 5_000 + '"}'
    calls = [
        ToolCallPart(call_id=name, tool="send", arguments=arguments, approval=asked) for name in ("c1", "c2", "c3")
    ]
    await talk.commit((*calls, ToolCallPart(call_id="c4", tool="read")))
    await talk.decide("c2", Decision(approved=True))
    await talk.sync(SetDue(call_id="c3", due=99.0))
    await talk.pause()
    reader = ThreadReader(talk.store)
    waiting = await reader.approvals(THREAD)
    assert [(one.call_id, one.message_id, one.tool, one.due) for one in waiting] == [
        ("c1", "a1", "send", None),
        ("c3", "a1", "send", 99.0),
    ]
    assert {(one.arguments, one.request) for one in waiting} == {(arguments, asked)}
    talk.running, talk.calls = False, []
    await talk.say("elsewhere", beside="u1")
    assert await reader.approvals(THREAD) == ()
    await talk.switch("u1")
    assert await reader.approvals(THREAD) == waiting
    with pytest.raises(ThreadNotFound):
        await reader.approvals("nope")


async def test_a_turn_on_a_hidden_branch_is_not_shown() -> None:
    """It streams on, and when its branch is shown again so are its words."""
    talk = await two_answers()
    await talk.say("three")
    await talk.stream([Chunk(index=0, delta="hel")])
    await talk.switch("u1")
    view = View()
    async with aclosing(ThreadReader(talk.store).watch(THREAD)) as events:
        for event in await caught_up(events, talk):
            view.apply(event)
        await talk.stream([Chunk(index=0, delta="lo")])
        for event in await caught_up(events, talk):
            view.apply(event)
        hidden: list[tuple[object, bool]] = [(view.live, view.running)]
        await talk.switch("u2")
        for event in await caught_up(events, talk):
            view.apply(event)
    assert hidden == [(None, False)]
    head = view.head
    assert isinstance(head, Message)
    assert (view.parts(head), view.running) == ((TextPart(text="hello"),), True)


async def summed_up() -> Talk:
    """Three turns, the second with calls; a summary stands for all up to its calls, whose results are not in it."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two")
    await talk.commit((TextPart(text="let me look"), ToolCallPart(call_id="c", tool="look")))
    await talk.settle_calls()
    await talk.commit((TextPart(text="second"),))
    await talk.say("three")
    summary = Summary(id="s", thread_id=THREAD, message_id="a2", parts=3, text="So far.", covered=3)
    assert await talk.store.add_summary(summary)
    return talk


async def test_people_read_what_a_summary_stands_for() -> None:
    """History, transcript and snapshots are whole; only whoever asks for it gets what the model reads besides."""
    talk = await summed_up()
    reader = ThreadReader(talk.store)
    whole = await reader.history(THREAD)
    assert [(message.id, len(message.parts)) for message in whole] == [
        ("u1", 1),
        ("a1", 1),
        ("u2", 1),
        ("a2", 4),
        ("u3", 1),
        ("a3", 0),
    ]
    assert "first" in await reader.transcript(THREAD)
    rest = await reader.history(THREAD, whole=False)
    assert [(message.id, len(message.parts)) for message in rest] == [("a2", 1), ("u3", 1), ("a3", 0)]
    view = await reader.view(THREAD)
    assert view.messages == whole
    assert view.summary is not None
    assert (view.summary.text, view.summary.parts) == ("So far.", 3)
    counts = await reader.counts(THREAD)
    assert (counts.total, counts.user, counts.assistant, counts.event, counts.visible) == (6, 3, 3, 0, 3)


class CompactedStore(MemoryStore):
    """A store in which something happens whenever its snapshot has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], Awaitable[None]]] = []

    async def snapshot(self, thread_id: str) -> Snapshot:
        """The snapshot as it was before."""
        snapshot = await super().snapshot(thread_id)
        if self.races:
            await self.races.pop()()
        return snapshot


async def test_what_a_summary_stands_for_belongs_to_the_snapshot() -> None:
    """A turn of which all is summed up may go on, or a branch be switched, between the two reads: it is read again."""
    store = CompactedStore()
    talk = await Talk.begin(store)
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two")
    await talk.commit((ToolCallPart(call_id="c", tool="look"),))
    assert await store.add_summary(Summary(id="s", thread_id=THREAD, message_id="a2", parts=1, text="So far."))
    reader = ThreadReader(store)
    store.races.append(talk.settle_calls)
    view = await reader.view(THREAD)
    assert [(message.id, len(message.parts)) for message in view.messages][-1] == ("a2", 2)
    store.races.append(lambda: talk.say("elsewhere", beside="u1"))
    assert [message.id for message in (await reader.view(THREAD)).messages] == ["u3", "a3"]
    assert store.races == []


class Vanishing(MemoryStore):
    """A store whose messages are deleted whenever one looks for them, as far as a reader can tell."""

    reads = 0

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """There is none. Whoever asks very often does so without a pause."""
        self.reads += 1
        assert self.reads < 50, "asked again and again without a pause"
        raise UnknownMessage("gone")


@pytest.mark.parametrize("hidden", [False, True])
async def test_what_changes_all_the_time_is_read_with_pauses(hidden: bool) -> None:
    """A reader that never gets a whole view does not keep the database busy with that."""
    talk = await Talk.begin(Vanishing())
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two", beside="u1")
    reader = ThreadReader(talk.store)
    turn = reader._turn(THREAD, "u1", lambda view: view.turn("u1"), is_settled)
    reading: Awaitable[object] = turn if hidden else reader.branches(THREAD, "u1")
    if not hidden:
        turn.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reading, 0.3)


async def test_decisions_for_calls_to_come_are_told() -> None:
    """The oldest first; none of a thread in which none was made."""
    talk = await Talk.begin(MemoryStore())
    reader = ThreadReader(talk.store)
    assert await reader.lasting_decisions(THREAD) == ()
    kept = [RememberedDecision(tool="pay", by="Ann"), RememberedDecision(tool="pay", arguments="d", approved=False)]
    for one in kept:
        await talk.sync(RememberDecision(remembered=one))
    assert await reader.lasting_decisions(THREAD) == tuple(kept)
    with pytest.raises(ThreadNotFound):
        await reader.lasting_decisions("nope")


async def test_what_was_spent_is_told() -> None:
    """By the thread, and by a turn if one is named; nothing runs for it."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("one")
    usage = Usage(requests=1, input_tokens=7)
    await talk.store.add_usage(THREAD, 1, 0, 1, usage)
    reader = ThreadReader(talk.store)
    spending = await reader.usage(THREAD)
    assert (spending.thread.usage, spending.tree.usage, spending.turn.usage) == (usage, usage, Usage())
    assert (await reader.usage(THREAD, 1)).turn.usage == usage
    for read in (reader.usage, reader.counts):
        with pytest.raises(ThreadNotFound):
            await read("nope")
