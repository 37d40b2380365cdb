"""The fold by which every reader sees the same conversation."""

from collections.abc import Sequence
from contextlib import aclosing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approval import ApprovalRequest, Decision
from perdure.batch import SetDue
from perdure.errors import ContentConflict, ViewOutdated
from perdure.messages import Message, Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.reader import ThreadReader
from perdure.records import Change, Choice, OpenCall, Path, Snapshot, Step, Summary, ThreadRecord
from perdure.turn_buffer import Chunk
from perdure.watch import View, answer_text
from stores.memory import MemoryStore
from tests.perdure.tree_operations import PHASES
from tests.properties import settings
from tests.talk import THREAD, Talk


async def new_talk() -> Talk:
    """A thread in which nothing was said."""
    return await Talk.begin(MemoryStore())


async def read(store: Store, view: View, limit: int = 1000) -> None:
    """Let a reader catch up, by at most so many changes; one whose path has become another one reads afresh."""
    try:
        for change in await store.read_changes(THREAD, view.seq, limit):
            view.apply(change)
    except ViewOutdated:
        await join(store, view)


async def join(store: Store, view: View) -> None:
    """Let a reader begin with a snapshot, as `ThreadReader.watch` gives it: with what summaries stand for."""
    async with aclosing(ThreadReader(store).watch(THREAD)) as events:
        view.apply(await anext(events))


async def joined(store: Store) -> View:
    """A reader who joins now."""
    view = View()
    await join(store, view)
    return view


def state(view: View) -> object:
    """All that a view shows; not where it goes on from, since a summary has a number and changes nothing shown."""
    live = view.live and (view.live.turn, view.live.step, view.live.attempt, view.live.parts)
    choices, shown = list(view.choices.values()), list(view.shown.values())
    return view.messages, live, view.calls, choices, shown, view.running, view.paused, view.approvals


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda text: bool(text.strip()))


def chunk(index: int, delta: str, opens: bool, thought: bool) -> Chunk:
    """A chunk that goes on with a part, or opens one."""
    part = ReasoningPart(signature="s") if thought else TextPart()
    return Chunk(index=index, delta=delta, part=part if opens else None)


chunks = st.lists(st.builds(chunk, st.integers(0, 3), words, st.booleans(), st.booleans()), min_size=1, max_size=3)


ACTIONS = ["start", "stage", "settle", "stop", "due", "ask", "ask", "answer", "pause", "resume", "decide", "interim"]


async def act(data: st.DataObject, talk: Talk) -> None:
    """One action that is possible now."""
    if data.draw(st.integers(0, 5)) == 0:
        await talk.store.put_view(
            THREAD, data.draw(st.sampled_from("ab")), data.draw(st.sampled_from(["{}", "1", "2"]))
        )
        return
    if data.draw(st.integers(0, 3)) == 0:
        await rearrange(data, talk)
        return
    if data.draw(st.integers(0, 5)) == 0:
        await sum_up(data, talk)
        return
    if not talk.running:
        await talk.say(data.draw(words))
        return
    if talk.calls:
        action = data.draw(st.sampled_from(ACTIONS))
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
            case "pause" | "resume":
                await talk.pause(action == "pause")
            case "decide":
                await talk.decide(call_id, Decision(approved=data.draw(st.booleans()), reason=data.draw(words)))
            case "interim":
                await talk.show_interim(call_id, data.draw(words))
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
            asked = ApprovalRequest() if data.draw(st.booleans()) else None
            calls = (ToolCallPart(call_id=n, tool="look", approval=asked) for n in names)
            await talk.commit((TextPart(text="let me look"), *calls))
        case _:
            await talk.stop()


async def rearrange(data: st.DataObject, talk: Talk) -> None:
    """Something happens to the tree."""
    names = [one.message.id for one in (await talk.store.load_tree(THREAD, parts=False)).messages]
    name = data.draw(st.sampled_from(names)) if names else None
    match data.draw(st.sampled_from(["note", "switch", "switch", "delete", "edit", "late"])):
        case "note" if not await talk.is_shown():
            await talk.note(data.draw(words))
        case "switch" if name:
            await talk.switch(name)
        case "delete" if name:
            await talk.delete(name)
        case "edit" if name and name.startswith("u") and not talk.running:
            await talk.say(data.draw(words), beside=name)
        case "late" if name and talk.turn > 1:
            turn = data.draw(st.integers(1, talk.turn - 1))
            await talk.bring_late(f"a{turn}", f"c{turn}.0.0", data.draw(words))
        case _:
            pass


async def sum_up(data: st.DataObject, talk: Talk) -> None:
    """A compaction leaves a summary somewhere on the path: in the middle of a turn, or of all there is."""
    path = await talk.store.load_history_with_ancestors(THREAD, whole=True)
    message = data.draw(st.sampled_from(path.messages)) if path.messages else None
    if message is not None and message.parts:
        summary = Summary(
            id=f"s{data.draw(st.integers(0, 1_000_000))}",
            thread_id=THREAD,
            message_id=message.id,
            parts=data.draw(st.integers(1, len(message.parts))),
            text="so far",
        )
        with suppress(ContentConflict):
            await talk.store.add_summary(summary)


async def ask(data: st.DataObject, store: Store, call_id: str) -> None:
    """The call asks somebody something, unless it has its result already."""
    choice = Choice(id=data.draw(st.sampled_from("pq")), call_id=call_id, prompt=data.draw(words))
    if (await store.get_call(THREAD, call_id)).result is None:
        await store.put_choice(THREAD, choice)


@settings(max_examples=60, phases=PHASES)
@given(st.data())
async def test_every_reader_ends_with_the_same_state(data: st.DataObject) -> None:
    """Whoever joins late, leaves and comes back, or reads in any pages sees what an uninterrupted reader sees."""
    talk = await new_talk()
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two", beside="u1")
    await talk.switch(data.draw(st.sampled_from(["u1", "u2"])))
    steady = await joined(talk.store)
    wanderer = await joined(talk.store)
    for _ in range(data.draw(st.integers(1, 30))):
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


async def test_a_reader_from_the_first_change_on_needs_no_snapshot() -> None:
    """It sees the words that stream, as one does who began with a snapshot of the empty thread."""
    talk = await new_talk()
    view = View()
    await talk.say("hi")
    await talk.stream([Chunk(index=0, delta="Hel"), Chunk(index=0, delta="lo")])
    for change in await talk.store.read_changes(THREAD, 0):
        view.apply(change)
    assert list(view.parts(view.messages[-1])) == [TextPart(text="Hello")]
    assert state(view) == state(await joined(talk.store))


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
    view = view_of(*(Message(id=name, thread_id=THREAD, role="user") for name in ("u1", "a1", "u2")))
    view.apply(Change(seq=9, message=Message(id="edit", thread_id=THREAD, role="user", parent_id="a1", seq=9)))
    assert [message.id for message in view.messages] == ["u1", "a1", "edit"]


def test_a_path_that_goes_on_from_elsewhere_outdates_the_view() -> None:
    """A reader who holds only the newest part of a path is told to read again when it is changed further up."""
    view = view_of(Message(id="late", thread_id=THREAD, role="user"))
    edit = Message(id="edit", thread_id=THREAD, role="user", parent_id="covered by a summary", seq=9)
    with pytest.raises(ViewOutdated, match="take a new snapshot"):
        view.apply(Change(seq=9, message=edit))
    assert [message.id for message in view.messages] == ["late"], "what could not be folded has changed nothing"
    with pytest.raises(ViewOutdated):
        view.apply(Change(seq=9, tree=True))


def test_what_happens_on_other_branches_is_left_out() -> None:
    """Parts, calls, words that stream and the end of a turn that is not shown; the same of one that is are the control.

    The result of a call ends its questions all the same.
    """
    call = OpenCall(call_id="c", message_id="m", turn=1, step=0, index=0, tool="t", started=1)
    changes = [
        Change(seq=3, turn=1, step=0, attempt=1, chunk=Chunk(index=0, delta="x")),
        Change(seq=4, call=call),
        Change(seq=5, message_id="m", position=0, part=ToolCallPart(call_id="c", tool="t")),
        Change(seq=6, message_id="m", position=1, part=ToolResultPart(call_id="c")),
        Change(seq=7, message=Message(id="m", thread_id=THREAD, role="assistant", turn=1, seq=2)),
    ]
    hidden = view_of(Message(id="other", thread_id=THREAD, role="assistant", turn=2))
    hidden.apply(Change(seq=2, choice=Choice(id="q", call_id="c")))
    shown = view_of(Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running")))
    seen: list[object] = []
    for change in changes:
        hidden.apply(change)
        shown.apply(change)
        assert (hidden.live, hidden.calls, [message.id for message in hidden.messages]) == (None, {}, ["other"])
        seen.append((bool(shown.live), list(shown.calls), len(shown.messages[0].parts), shown.running))
    assert seen == [
        (True, [], 0, True),
        (True, ["c"], 0, True),
        (False, ["c"], 1, True),
        (False, [], 2, True),
        (False, [], 2, False),
    ]
    assert hidden.choices == {}
    late = View()
    path = Path(messages=tuple(hidden.messages))
    live = Step(turn=1, step=0, attempt=1)
    thread = ThreadRecord(thread_id=THREAD, agent="demo")
    late.apply(Snapshot(thread=thread, path=path, calls=(call,), live=live, chunks=(Chunk(index=0, delta="x"),), seq=4))
    assert (late.live, late.calls) == (None, {})


def test_a_call_is_told_again_when_it_is_decided_about() -> None:
    """It keeps its place; with its result it is no question any more. A reader who has a gap before it reads afresh."""
    asked = ToolCallPart(call_id="c1", tool="t", approval=ApprovalRequest(prompt="Sure?"))
    paused = Message(
        id="a",
        thread_id=THREAD,
        role="assistant",
        turn=1,
        status=Status(state="requires_action"),
        parts=(TextPart(text="x"), asked, asked.with_(call_id="c2")),
    )
    view = view_of(paused)
    assert (view.running, view.paused) == (False, True)
    due = OpenCall(call_id="c2", message_id="a", turn=1, step=0, index=1, tool="t", due=9.0)
    view.apply(Change(seq=2, call=due))
    assert [(one.call_id, one.request.prompt, one.due) for one in view.approvals] == [
        ("c1", "Sure?", None),
        ("c2", "Sure?", 9.0),
    ]
    approved = asked.with_(decision=Decision(approved=True))
    view.apply(Change(seq=3, message_id="a", position=1, part=approved))
    assert view.messages[0].parts == (TextPart(text="x"), approved, asked.with_(call_id="c2"))
    view.apply(Change(seq=4, call=due.with_(result=ToolResultPart(call_id="c2", outcome="expired"))))
    assert view.approvals == ()
    with pytest.raises(ViewOutdated):
        view.apply(Change(seq=5, message_id="a", position=4, part=TextPart(text="after a gap")))


def test_interim_results_are_shown_with_their_call() -> None:
    """Of a call that has not started either, to those who join later as well."""
    call = OpenCall(call_id="c", message_id="a", turn=1, step=0, index=0, tool="t")
    interim = call.with_(interim=ToolResultPart(call_id="c", content="half"))
    turn = Message(id="a", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running"))
    early = view_of(turn)
    early.apply(Change(seq=2, call=interim))
    thread = ThreadRecord(thread_id=THREAD, agent="demo")
    for calls in ((), (call,), (interim,)):
        late = View()
        late.apply(Snapshot(thread=thread, path=Path(messages=(turn,)), calls=calls, seq=2))
        assert late.calls == (early.calls if calls == (interim,) else {})


async def test_words_that_nobody_answers_leave_the_thread_at_rest() -> None:
    """Whether the reader was there or comes later; words with a turn are waited for until that is there."""
    talk = await new_talk()
    view = await joined(talk.store)
    await talk.note("just so you know")
    await read(talk.store, view)
    for reader in (view, await joined(talk.store)):
        assert (reader.running, reader.last_turn) == (False, None)
    await talk.say("hi")
    running: list[bool] = []
    for change in await talk.store.read_changes(THREAD, view.seq):
        view.apply(change)
        running.append(view.running)
    assert all(running)
    await talk.commit((TextPart(text="hello"),))
    await talk.note("thanks")
    await read(talk.store, view)
    assert not view.running
    assert view.last_turn is not None
    assert view.last_turn.id == "a1"
    await talk.say("and now?")
    view.apply((await talk.store.read_changes(THREAD, view.seq))[0])
    awaiting: list[tuple[bool, Message | None]] = [(view.running, view.last_turn)]
    assert awaiting == [(True, None)], "its turn is about to come"


async def test_after_its_answer_is_deleted_a_question_is_not_waiting() -> None:
    """Nobody answers it until somebody asks for that."""
    talk = await new_talk()
    await talk.say("hi")
    await talk.commit((TextPart(text="hello"),))
    view = await joined(talk.store)
    await talk.delete("a1")
    await read(talk.store, view)
    assert [message.id for message in view.messages] == ["u1"]
    assert not view.running


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
    assert [view.turn(of) for of in ("u1", "a1", "u3", "unknown")] == [messages[2], messages[2], None, None]


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
