"""The fold by which every reader sees the same conversation."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.batch import AppendMessage, SetDue
from perdure.errors import ViewOutdated
from perdure.messages import Message, Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Change, Choice, Path, Snapshot, Store, ThreadRecord
from perdure.turn_buffer import Chunk
from perdure.watch import View, answer_text
from stores.memory import MemoryStore
from tests.talk import THREAD, Talk


async def new_talk() -> Talk:
    """A thread in which nothing was said."""
    return await Talk.begin(MemoryStore())


async def read(store: Store, view: View, limit: int = 1000) -> None:
    """Let a reader catch up, by at most so many changes."""
    for change in await store.read_changes(THREAD, view.seq, limit):
        view.apply(change)


async def joined(store: Store) -> View:
    """A reader who joins now."""
    view = View()
    view.apply(await store.snapshot(THREAD))
    return view


def state(view: View) -> object:
    """All that a view shows."""
    live = view.live and (view.live.turn, view.live.step, view.live.attempt, view.live.parts)
    return view.messages, live, view.calls, list(view.choices.values()), list(view.shown.values()), view.seq


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda text: bool(text.strip()))


def chunk(index: int, delta: str, opens: bool, thought: bool) -> Chunk:
    """A chunk that goes on with a part, or opens one."""
    part = ReasoningPart(signature="s") if thought else TextPart()
    return Chunk(index=index, delta=delta, part=part if opens else None)


chunks = st.lists(st.builds(chunk, st.integers(0, 3), words, st.booleans(), st.booleans()), min_size=1, max_size=3)


async def act(data: st.DataObject, talk: Talk) -> None:
    """One action that is possible now."""
    if data.draw(st.integers(0, 5)) == 0:
        await talk.store.put_view(
            THREAD, data.draw(st.sampled_from("ab")), data.draw(st.sampled_from(["{}", "1", "2"]))
        )
        return
    if not talk.running:
        await talk.say(data.draw(words))
        return
    if talk.calls:
        action = data.draw(st.sampled_from(["start", "stage", "settle", "stop", "due", "ask", "ask", "answer"]))
        call_id = data.draw(st.sampled_from(talk.calls))
        match action:
            case "start":
                await talk.store.start_call(THREAD, call_id)
            case "stage":
                await talk.store.stage_result(THREAD, ToolResultPart(call_id=call_id, content="early"))
            case "settle":
                await talk.settle_calls()
            case "due":
                await talk.sync(SetDue(call_id=call_id, due=data.draw(st.floats(1, 9))))
            case "ask":
                await ask(data, talk.store, call_id)
            case "answer":
                await talk.store.remove_choice(THREAD, data.draw(st.sampled_from("pq")))
            case _:
                await talk.stop()
        return
    match data.draw(st.sampled_from(["stream", "stream", "retry", "commit", "call", "stop"])):
        case "stream":
            await talk.stream(data.draw(chunks))
        case "retry":
            await talk.retry()
        case "commit":
            await talk.commit((TextPart(text=data.draw(words)),))
        case "call":
            names = [f"c{talk.turn}.{talk.step}.{n}" for n in range(data.draw(st.integers(1, 3)))]
            await talk.commit((TextPart(text="let me look"), *(ToolCallPart(call_id=n, tool="look") for n in names)))
        case _:
            await talk.stop()


async def ask(data: st.DataObject, store: Store, call_id: str) -> None:
    """The call asks somebody something, unless it has its result already."""
    choice = Choice(id=data.draw(st.sampled_from("pq")), call_id=call_id, prompt=data.draw(words))
    if (await store.get_call(THREAD, call_id)).result is None:
        await store.put_choice(THREAD, choice)


@settings(max_examples=60, deadline=None)
@given(st.data())
async def test_every_reader_ends_with_the_same_state(data: st.DataObject) -> None:
    """Whoever joins late, leaves and comes back, or reads in any pages sees what an uninterrupted reader sees."""
    talk = await new_talk()
    steady = await joined(talk.store)
    wanderer = await joined(talk.store)
    for _ in range(data.draw(st.integers(1, 25))):
        await act(data, talk)
        await read(talk.store, steady)
        match data.draw(st.sampled_from(["away", "away", "page", "read", "rejoin"])):
            case "page":
                await read(talk.store, wanderer, limit=data.draw(st.integers(1, 3)))
            case "read":
                await read(talk.store, wanderer)
            case "rejoin":
                wanderer = await joined(talk.store)
            case _:
                pass
    await read(talk.store, wanderer)
    assert state(wanderer) == state(steady)
    assert state(await joined(talk.store)) == state(steady)


async def test_committed_parts_replace_what_streamed() -> None:
    """The words of a committed step are there once, in the order of the step (case B45)."""
    talk = await new_talk()
    view = await joined(talk.store)
    await talk.say("hi")
    await talk.stream([Chunk(index=0, delta="let me "), Chunk(index=0, delta="look")])
    await read(talk.store, view)
    assert [part.text for part in view.parts(view.messages[-1]) if isinstance(part, TextPart)] == ["let me look"]
    await talk.commit((TextPart(text="let me look"), *(ToolCallPart(call_id=name, tool="look") for name in "ab")))
    await talk.settle_calls()
    await talk.commit((TextPart(text="sum"),))
    await read(talk.store, view)
    kinds = [getattr(part, "text", None) or getattr(part, "call_id", None) for part in view.parts(view.messages[-1])]
    assert kinds == ["let me look", "a", "b", "a", "b", "sum"]
    assert view.live is None
    assert not view.running


async def test_an_attempt_that_begins_again_voids_what_it_had_streamed() -> None:
    """A reader who saw the words of an attempt whose process lost track of it does not see them twice."""
    talk = await new_talk()
    await talk.say("hi")
    view = await joined(talk.store)
    for _ in range(2):
        await talk.store.begin_step(THREAD, 1, 0, 1)
        await talk.store.append_chunks(THREAD, 1, 0, 1, [Chunk(index=0, delta="words")])
        await read(talk.store, view)
    assert view.live is not None
    assert view.live.parts == (TextPart(text="words"),)


async def test_a_new_attempt_voids_what_streamed() -> None:
    """A retried model call starts from nothing for the reader too."""
    talk = await new_talk()
    view = await joined(talk.store)
    await talk.say("hi")
    await talk.stream([Chunk(index=0, delta="wrong")])
    await read(talk.store, view)
    await talk.retry()
    await read(talk.store, view)
    assert view.parts(view.messages[-1]) == ()
    await talk.stream([Chunk(index=0, delta="right")])
    await read(talk.store, view)
    assert answer_text(view.messages[-1].with_(parts=view.parts(view.messages[-1]))) == "right"


async def test_a_reader_who_joins_in_mid_stream_goes_on_by_the_indexes_of_the_chunks() -> None:
    """A blank part, which is not shown, still counts for the indexes of the chunks that follow a snapshot."""
    talk = await new_talk()
    await talk.say("hi")
    await talk.stream([Chunk(index=0, delta=" "), Chunk(index=1, delta="Hel")])
    view = await joined(talk.store)
    await talk.stream([Chunk(index=1, delta="lo")])
    await read(talk.store, view)
    assert list(view.parts(view.messages[-1])) == [TextPart(text="Hello")]


async def test_the_end_of_a_turn_is_told_after_its_parts() -> None:
    """Who reads a whole turn at once does not take it for ended while its words are still to come."""
    talk = await new_talk()
    view = await joined(talk.store)
    await talk.say("hi")
    await talk.commit((TextPart(text="one"), TextPart(text="two")))
    seen: list[tuple[bool, int]] = []
    for change in await talk.store.read_changes(THREAD, view.seq):
        view.apply(change)
        seen.append((view.running, len(view.messages[-1].parts)))
    assert seen[-2:] == [(True, 2), (False, 2)]
    assert all(running for running, _ in seen[:-1])


async def test_a_question_ends_with_the_result_of_its_call() -> None:
    """Nobody is told of its end by itself: a reader takes it away when the result is staged, or is there as a part."""
    talk = await new_talk()
    await talk.say("hi")
    await talk.commit(tuple(ToolCallPart(call_id=name, tool="look") for name in "abc"))
    for name in "abc":
        await talk.store.put_choice(THREAD, Choice(id=f"of {name}", call_id=name))
    view = await joined(talk.store)
    assert list(view.choices) == ["of a", "of b", "of c"]
    await talk.store.stage_result(THREAD, ToolResultPart(call_id="b", content="early"))
    await read(talk.store, view)
    assert list(view.choices) == ["of a", "of c"] == list((await joined(talk.store)).choices)
    await talk.settle_calls()
    await read(talk.store, view)
    assert view.choices == {}


async def test_a_change_that_is_told_twice_changes_nothing() -> None:
    """Readers may be told a change again: at least once is enough."""
    talk = await new_talk()
    view = await joined(talk.store)
    await talk.say("hi")
    await talk.stream([Chunk(index=0, delta="a")])
    changes = await talk.store.read_changes(THREAD, 0)
    for change in (*changes, *changes):
        view.apply(change)
    assert state(view) == state(await joined(talk.store))


async def test_a_message_after_an_earlier_one_cuts_the_path() -> None:
    """An edit hangs on an earlier message: what came after that is not on the path any more."""
    talk = await new_talk()
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two")
    await talk.commit((TextPart(text="second"),))
    view = await joined(talk.store)
    edit = Message(id="edit", thread_id=THREAD, role="user", parent_id="a1", parts=(TextPart(text="other"),))
    await talk.sync(AppendMessage(message=edit))
    await read(talk.store, view)
    assert [message.id for message in view.messages] == ["u1", "a1", "edit"]
    assert state(view) == state(await joined(talk.store))


def test_a_path_that_goes_on_from_elsewhere_outdates_the_view() -> None:
    """A reader who holds only the newest part of a path is told to read again when it is changed further up."""
    view = view_of(Message(id="late", thread_id=THREAD, role="user"))
    edit = Message(id="edit", thread_id=THREAD, role="user", parent_id="covered by a summary")
    with pytest.raises(ViewOutdated, match="take a new snapshot"):
        view.apply(Change(seq=9, message=edit))


def test_live_words_belong_to_the_turn_of_their_own_thread() -> None:
    """An inherited message with the same turn number does not get what streams in this thread."""
    view = view_of(
        Message(id="theirs", thread_id="parent", role="assistant", turn=1),
        Message(id="ours", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running")),
    )
    view.apply(Change(seq=2, turn=1, step=0, attempt=1, chunk=Chunk(index=0, delta="x")))
    assert [view.parts(message) for message in view.messages] == [(), (TextPart(text="x"),)]


def test_the_answer_is_the_first_assistant_message_after_the_question() -> None:
    """Words that were sent together are answered together; without an answer yet there is none."""
    messages = [
        Message(id="u1", thread_id=THREAD, role="user"),
        Message(id="u2", thread_id=THREAD, role="user"),
        Message(id="a1", thread_id=THREAD, role="assistant", turn=1),
        Message(id="u3", thread_id=THREAD, role="user"),
    ]
    view = view_of(*messages)
    assert [view.answer(of) for of in ("u1", "u2", "u3", "unknown")] == [messages[2], messages[2], None, None]
    assert view.running


def test_the_answer_text_leaves_out_what_led_to_it() -> None:
    """Words before the last tool result are narration."""
    parts: Sequence[Part] = (
        TextPart(text="let me look"),
        ToolCallPart(call_id="c", tool="look"),
        ToolResultPart(call_id="c", content="4"),
        ReasoningPart(text="so"),
        TextPart(text="It is "),
        TextPart(text="4."),
    )
    assert answer_text(Message(id="a", thread_id=THREAD, role="assistant", parts=tuple(parts))) == "It is 4."


def view_of(*messages: Message) -> View:
    """A view that starts with a path."""
    view = View()
    view.apply(Snapshot(thread=ThreadRecord(thread_id=THREAD, agent="demo"), path=Path(messages=messages), seq=1))
    return view
