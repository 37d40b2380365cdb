"""Calls that people are asked about, and what comes of them: decisions, interim results, results that come late."""

import pytest

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.batch import (
    AppendParts,
    CommitResults,
    Decide,
    Operation,
    RememberDecision,
    SetDue,
    ShowInterim,
    StoreLateResult,
    SyncBatch,
)
from perdure.codec import dumps
from perdure.errors import CallNotOpen, StaleWriter, StepSealed
from perdure.messages import Message, Outcome, Part, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import Change, OpenCall, StepOutcome
from perdure.turn import UNDECIDED
from stores.left_turn import LEFT, UNANSWERED
from tests.stores.builders import RUNNING, call, commit, result, settle, started, text, write
from tests.stores.trees import PAUSED, answer, delete, path, refused, said, switch, written

ASKED = ApprovalRequest(prompt="May it?\x00", expires_s=60.0)
YES = Decision(approved=True, by="ann", at=5.0, answers={"why": ["\ud800"]})


def guarded(call_id: str) -> ToolCallPart:
    """A call that waits for a decision."""
    return call(call_id, "wipe", '{"all":true}').with_(approval=ASKED)


async def asking(store: Store, *parts: Part) -> Store:
    """Turn 1 has made these calls, by default one that waits for a decision, and its message `a` says that it waits."""
    await started(store)
    await store.finish_step("t", 1, 0, 1, parts or (guarded("c1"),), StepOutcome(finish="tool_calls"), [])
    await write(store, 2, commit("a"), settle("a", PAUSED))
    return store


def decide(call_id: str, decision: Decision = YES) -> Decide:
    """A decision about a call."""
    return Decide(call_id=call_id, decision=decision)


def late(content: str = "late", outcome: Outcome = "ok", call_id: str = "c1", message_id: str = "a") -> StoreLateResult:
    """A result that comes after its call was closed."""
    part = ToolResultPart(call_id=call_id, content=content, outcome=outcome)
    return StoreLateResult(message_id=message_id, result=part)


async def message(store: Store, message_id: str = "a") -> Message:
    """A message with its parts, wherever it is."""
    return next(stored.message for stored in (await store.load_tree("t")).messages if stored.message.id == message_id)


async def told(store: Store, after: int) -> list[Change]:
    """What readers are told."""
    return list(await store.read_changes("t", after))


# -- decisions -------------------------------------------------------------------------------------------------


async def test_a_question_is_with_its_call(store: Store) -> None:
    """Wherever the call is read: with its part, among the open ones, in the tail."""
    await asking(store)
    (part,) = (await message(store)).parts
    assert part == guarded("c1")
    for found in (await store.get_call("t", "c1"), (await store.load_tail("t")).calls[0]):
        assert (found.approval, found.decision) == (ASKED, None)


async def test_a_decision_is_kept_with_its_call(store: Store) -> None:
    """Word for word, while the call is open and after it has its result."""
    await asking(store)
    await written(store, decide("c1"))
    decided = guarded("c1").with_(decision=YES)
    assert (await message(store)).parts == (decided,)
    assert (await store.load_history_with_ancestors("t")).messages[-1].parts == (decided,)
    assert (await store.snapshot("t")).calls[0].decision == YES
    assert (await store.get_call("t", "c1")).decision == YES
    assert (await store.start_call("t", "c1", "me")).decision == YES
    await written(store, CommitResults(message_id="a", start=1, call_ids=("c1",), results=(result("c1"),)))
    assert (await message(store)).parts == (decided, result("c1"))


async def test_the_first_decision_stays(store: Store) -> None:
    """Whoever comes later changes nothing, and readers are told nothing."""
    await asking(store)
    await written(store, decide("c1"))
    seq = (await store.get_thread("t")).seq
    await written(store, decide("c1", Decision(approved=False)), decide("nobody"))
    assert (await store.get_call("t", "c1")).decision == YES
    assert await told(store, seq) == []


async def test_readers_see_a_decision(store: Store) -> None:
    """The part is told again, in its place, and the call, which nothing ends by itself any more."""
    await asking(store)
    await written(store, SetDue(call_id="c1", due=60.0))
    seq = (await store.get_thread("t")).seq
    await written(store, decide("c1"))
    part, opened = await told(store, seq)
    assert (part.message_id, part.position, part.part) == ("a", 0, guarded("c1").with_(decision=YES))
    assert opened.call is not None
    assert (opened.call.decision, opened.call.due) == (YES, None)


async def test_decisions_for_calls_to_come(store: Store) -> None:
    """They are in the tail, oldest first; a newer one for the same calls takes the place of the older."""
    await asking(store)
    always = RememberedDecision(tool="wipe\ud800", by="ann")
    these = RememberedDecision(tool="wipe\ud800", arguments="d1", approved=False)
    await written(store, *(RememberDecision(remembered=one) for one in (always, these)))
    assert (await store.load_tail("t")).remembered == (always, these)
    await written(store, RememberDecision(remembered=always.with_(approved=False, by=None)))
    assert (await store.load_tail("t")).remembered == (these, always.with_(approved=False, by=None))


# -- interim results -------------------------------------------------------------------------------------------


async def test_an_interim_result_is_shown_and_the_call_goes_on(store: Store) -> None:
    """The newest one stays, and goes with the call."""
    await asking(store, call("c1"))
    seq = (await store.get_thread("t")).seq
    await written(store, ShowInterim(result=result("c1", "half\x00")), ShowInterim(result=result("nobody")))
    await written(store, ShowInterim(result=result("c1", "most")))
    found = await store.get_call("t", "c1")
    assert (found.interim, found.result) == (result("c1", "most"), None)
    assert [change.call.interim for change in await told(store, seq) if change.call] == [result("c1", "most")]
    await written(store, CommitResults(message_id="a", start=1, call_ids=("c1",), results=(result("c1", "all"),)))
    assert (await message(store)).parts[1:] == (result("c1", "all"),)
    with pytest.raises(CallNotOpen):
        await store.get_call("t", "c1")


# -- late results ----------------------------------------------------------------------------------------------


async def closed(store: Store, outcome: Outcome) -> Store:
    """The call of turn 1 was closed with something that was made up, in the step 3, and the turn has settled."""
    await started(store)
    made_up = ToolResultPart(call_id="c1", outcome=outcome, content="nobody waited", step=3)
    await written(store, answer("b", 2, call("c1").with_(step=3), made_up, text("so be it").with_(step=4)))
    return store


@pytest.mark.parametrize("outcome", ["interrupted", "cancelled", "expired"])
async def test_a_late_result_takes_the_place_of_one_that_was_made_up(store: Store, outcome: Outcome) -> None:
    """The step is that of the call; readers need a new snapshot, and what is kept of paths is void."""
    await closed(store, outcome)
    seq, before = (await store.get_thread("t")).seq, await store.load_history_with_ancestors("t")
    report = await written(store, late('"kind":"tool_result" \ud800', message_id="b"))
    assert report.tree is None
    expected = ToolResultPart(call_id="c1", content='"kind":"tool_result" \ud800', step=3)
    assert (await message(store, "b")).parts == (
        call("c1").with_(step=3),
        expected,
        text("so be it").with_(step=4),
    )
    assert await told(store, seq) == [Change(seq=seq + 1, tree=True)]
    assert (await store.load_history_with_ancestors("t")).shape == seq + 1 > before.shape


@pytest.mark.parametrize("outcome", ["ok", "error", "denied"])
async def test_what_a_tool_has_returned_is_never_replaced(store: Store, outcome: Outcome) -> None:
    """Also a late result is one: what comes after it is left alone."""
    await closed(store, outcome)
    before, seq = await message(store, "b"), (await store.get_thread("t")).seq
    await written(store, late(message_id="b"))
    assert (await message(store, "b"), (await store.get_thread("t")).seq) == (before, seq)


async def test_a_second_late_result_changes_nothing(store: Store) -> None:
    """The first one is what the tool has returned."""
    await closed(store, "cancelled")
    await written(store, late("first", message_id="b"))
    before = await store.snapshot("t")
    await written(store, late("second", message_id="b"))
    after = await store.snapshot("t")
    assert (after.path, after.seq) == (before.path, before.seq)


async def test_a_late_result_of_no_such_call_is_left_alone(store: Store) -> None:
    """Of a call of another message, of one that nobody made, of a message that is not there."""
    await closed(store, "cancelled")
    before, seq = await message(store, "b"), (await store.get_thread("t")).seq
    for operation in (late(message_id="u"), late(call_id="c2", message_id="b"), late(message_id="nobody")):
        await written(store, operation)
    assert (await message(store, "b"), (await store.get_thread("t")).seq) == (before, seq)


@pytest.mark.parametrize(
    ("message_id", "call_id"), [("u", "c1"), ("b", "c2"), ("nobody", "c1"), ("a", "c1"), ("no'\n", "c\u00e9")]
)
async def test_a_late_result_whose_message_was_named_wrongly_is_refused(
    store: Store, message_id: str, call_id: str
) -> None:
    """With the whole batch: of no such call, of one of another message, of no such message."""
    await closed(store, "cancelled")
    operation = late(call_id=call_id, message_id=message_id).with_(named=True)
    (why,) = await refused(store, said("w"), operation, settle("a"))
    assert (why.input_id, why.message_id) == (call_id, message_id)
    assert why.detail == f"There is no message {message_id!r} with a call {call_id!r} in this thread."
    (again,) = await refused(store, delete("u"), operation)
    assert again == why


async def test_a_late_result_whose_message_was_named_is_taken(store: Store) -> None:
    """Also if it changes nothing, since the tool has returned something; and of a call of the same batch."""
    await closed(store, "cancelled")
    for content in ("first", "second"):
        report = await written(store, late(content, message_id="b").with_(named=True))
        assert report.refused == ()
    assert (await message(store, "b")).parts[1] == ToolResultPart(call_id="c1", content="first", step=3)
    made_up = ToolResultPart(call_id="c2", outcome="cancelled")
    another = answer("d", 3, call("c2"), made_up)
    report = await written(store, another, late("whole", call_id="c2", message_id="d").with_(named=True))
    assert report.refused == ()
    assert (await message(store, "d")).parts[1] == ToolResultPart(call_id="c2", content="whole")


async def test_a_late_result_of_an_open_call_is_staged(store: Store) -> None:
    """Its turn rests on another branch; the first result stays there too."""
    await asking(store, call("c1"))
    await written(store, said("v", at_root=True))
    await written(store, late("first"))
    await written(store, late("second"))
    assert (await store.get_call("t", "c1")).result == ToolResultPart(call_id="c1", content="first")
    assert (await message(store)).parts == (call("c1"),)


async def test_words_that_look_like_a_result_are_none(store: Store) -> None:
    """A late result finds its part by what that is, not by what it says."""
    await started(store)
    fake = dumps(ToolResultPart(call_id="c1", outcome="cancelled", content="x"))
    parts = (
        text(fake),
        call("c1", arguments=fake),
        ToolResultPart(call_id="c1", content=fake),
        ToolResultPart(call_id="c0", outcome="cancelled", content=fake),
    )
    await written(store, answer("b", 2, *parts))
    await written(store, late(message_id="b"))
    assert (await message(store, "b")).parts == parts


# -- turns that wait for people --------------------------------------------------------------------------------


async def test_the_head_may_wait_for_people(store: Store) -> None:
    """The tail says so; its calls are those of the turn that waits."""
    await asking(store)
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.paused, tail.last, tail.hidden, tail.followers) == ("a", True, PAUSED, False, 0)
    assert [found.call_id for found in tail.calls] == ["c1"]
    assert tail.step == 0


async def test_a_turn_that_waits_on_another_branch_rests(store: Store) -> None:
    """The tail is of the branch that is shown; the tree has its calls, and when it is shown again the tail has."""
    await asking(store)
    await written(store, said("v", at_root=True))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.paused, tail.last, tail.calls) == ("v", False, None, ())
    assert (await store.snapshot("t")).calls == ()
    assert [found.call_id for found in (await store.load_tree("t")).calls] == ["c1"]
    report = await written(store, switch("a"))
    assert [found.call_id for found in (await store.snapshot("t")).calls] == ["c1"]
    assert report.tree is not None
    assert (report.tree.paused, report.tree.last) == (True, PAUSED)
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.paused) == ("a", True)
    assert [found.call_id for found in tail.calls] == ["c1"]


async def test_a_turn_that_waits_beside_one_that_runs(store: Store) -> None:
    """The tail is of the one that runs, and has none of the other's calls."""
    await asking(store)
    await written(store, answer("b", 2, call("c2"), status=RUNNING, answering="u"))
    await written(store, switch("a"))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.hidden, tail.paused, tail.last) == ("b", True, True, PAUSED)
    assert tail.calls == ()


async def test_a_turn_goes_on_after_newer_ones(store: Store) -> None:
    """It has waited while others came and went on other branches; its next step streams and is committed."""
    await asking(store)
    await written(store, said("v", at_root=True), answer("b", 2, status=RUNNING))
    await store.finish_step("t", 2, 0, 1, (text("done"),), StepOutcome(), [])
    await written(store, commit("b", turn=2), settle("b"))
    await written(store, switch("a"), decide("c1"), settle("a", RUNNING))
    await written(store, CommitResults(message_id="a", start=1, call_ids=("c1",), results=(result("c1"),)))
    assert (await store.load_tail("t")).step == 1
    await store.begin_step("t", 1, 1, 1)
    await store.finish_step("t", 1, 1, 1, (text("at last").with_(step=1),), StepOutcome(), [])
    await written(store, commit("a", start=2, turn=1, step=1), settle("a"))
    assert [part.kind for part in (await message(store)).parts] == ["tool_call", "tool_result", "text"]
    assert await path(store) == ["u", "a"]


@pytest.mark.parametrize("step", [0, 1])
async def test_what_a_newer_turn_has_done_says_nothing_of_an_older_one(store: Store, step: int) -> None:
    """Late writers are refused by the marks of their own turn: of a committed step, and of a turn that has settled."""
    await asking(store)
    await written(store, said("v", at_root=True), answer("b", 2, status=RUNNING))
    await store.finish_step("t", 2, 0, 1, (text("done"),), StepOutcome(), [])
    await written(store, commit("b", turn=2), settle("b"))
    await written(store, switch("a"), decide("c1"), settle("a", RUNNING) if step == 0 else settle("a"))
    with pytest.raises(StepSealed):
        await store.begin_step("t", 1, step, 9)


async def test_what_follows_a_turn_that_waits_settles_it(store: Store) -> None:
    """Open questions are resolved as cancelled, calls get what is staged or else that nobody waits; in call order."""
    await asking(store, text("let me"), guarded("c1"), guarded("c2"), call("c3"), call("c4"))
    await written(store, decide("c2"))
    await store.stage_result("t", result("c4", "early"))
    report = await written(store, said("u2", under="a"), answer("b", 2, status=RUNNING))
    found = await message(store)
    cancelled = Decision(resolution="cancelled")
    assert found.status == LEFT
    assert found.parts == (
        text("let me"),
        guarded("c1").with_(decision=cancelled),
        guarded("c2").with_(decision=YES),
        call("c3"),
        call("c4"),
        ToolResultPart(call_id="c1", outcome="cancelled", content=UNDECIDED),
        ToolResultPart(call_id="c2", outcome="cancelled", content=UNANSWERED),
        ToolResultPart(call_id="c3", outcome="cancelled", content=UNANSWERED),
        result("c4", "early"),
    )
    assert (await store.load_tree("t")).calls == ()
    assert await path(store) == ["u", "a", "u2", "b"]
    assert report.tree is not None
    assert (report.tree.head_id, report.tree.last) == ("b", RUNNING)


@pytest.mark.parametrize(
    ("operation", "settles"),
    [
        (said("v", under="a"), True),
        (answer("v", 2, answering="w"), True),
        (said("v", under="u"), False),
        (answer("v", 2, answering="a"), False),
        (said("v", at_root=True), False),
    ],
)
async def test_only_what_follows_a_turn_settles_it(store: Store, operation: Operation, settles: bool) -> None:
    """Another branch leaves it in peace: when it is shown again it still waits."""
    await asking(store)
    # Words that came before the turn waited hang below it, though on no branch that is shown.
    await written(store, settle("a", RUNNING), answer("w", 3, under="a"))
    await written(store, settle("a", PAUSED), switch("u"))
    await written(store, operation)
    assert (await message(store)).status == (LEFT if settles else PAUSED)
    assert ((await store.load_tree("t")).calls == ()) == settles


async def test_a_refused_batch_leaves_the_turn_that_waits(store: Store) -> None:
    """Nothing of the batch is done, and that it would have settled a turn neither."""
    await asking(store)
    assert await refused(store, said("v", under="a"), switch("nobody"))
    assert isinstance(await store.get_call("t", "c1"), OpenCall)


# -- turns that rest -------------------------------------------------------------------------------------------


async def resting(store: Store, *parts: Part) -> Store:
    """The turn of `asking` on a branch that is not shown; the head is the words `v`."""
    await asking(store, *parts)
    await written(store, said("v", at_root=True))
    return store


def brought(call_id: str, content: str = "late", *, interim: bool = False, subscribes: bool = False) -> StoreLateResult:
    """A result whose bringer knows no message, and is to be told if no such call is open."""
    part = ToolResultPart(call_id=call_id, content=content)
    return StoreLateResult(result=part, named=True, interim=interim, subscribes=subscribes)


async def test_a_result_finds_its_open_call_on_any_branch(store: Store) -> None:
    """It is staged, and the first one stays; a preliminary one is shown, and the call is open still."""
    await resting(store, call("c1"))
    await written(store, brought("c1", "half", interim=True))
    found = await store.get_call("t", "c1")
    assert (found.interim, found.result) == (ToolResultPart(call_id="c1", content="half"), None)
    for content in ("first", "second"):
        await written(store, brought("c1", content))
    assert (await store.get_call("t", "c1")).result == ToolResultPart(call_id="c1", content="first")


@pytest.mark.parametrize("interim", [False, True])
async def test_results_of_calls_that_are_not_open_are_refused(store: Store, interim: bool) -> None:
    """All of them at once, with the whole batch: of a call that is closed, and of ones that nobody made."""
    await closed(store, "cancelled")
    before = await store.snapshot("t")
    operations = [brought(name, interim=interim) for name in ("c\u00e9", "c1", "c9")]
    found = await refused(store, said("w"), *operations)
    assert [(one.input_id, one.message_id, one.detail) for one in found] == [
        ("c1", "", None),
        ("c9", "", None),
        ("c\u00e9", "", None),
    ]
    assert await store.snapshot("t") == before


async def test_nobody_is_told_of_a_call_that_is_gone_if_nobody_asked(store: Store) -> None:
    """A question that was to expire may have been answered, or deleted: nothing is written, nothing refused."""
    await closed(store, "cancelled")
    seq = (await store.get_thread("t")).seq
    report = await written(store, brought("c1").with_(named=False), brought("c9").with_(named=False))
    assert report.refused == ()
    assert (await store.get_thread("t")).seq == seq


async def test_a_batch_whose_answer_was_lost_is_not_refused_when_it_comes_again(store: Store) -> None:
    """What it does after it may have closed the call: it was written, and says so."""
    await resting(store, call("c1"))
    number = (await store.get_thread("t")).version + 1
    batch = SyncBatch(thread_id="t", number=number, sync_id="s", operations=(brought("c1"), delete("a")))
    for _ in range(2):
        assert (await store.append_messages(batch)).refused == ()
    (why,) = await refused(store, brought("c1"))
    assert why.input_id == "c1", "the control: it is not open any more"


async def test_a_batch_after_which_more_was_written_refuses_nothing(store: Store) -> None:
    """It is stale, whatever it lacks by now: its writer has to load the thread.

    Told of a refusal alone it would go on from what it knows, and never do what the batches after it have begun.
    """
    await resting(store, call("c1"))
    number = (await store.get_thread("t")).version + 1
    batch = SyncBatch(thread_id="t", number=number, sync_id="s", operations=(brought("c1"),))
    await store.append_messages(batch)
    await written(store, delete("a"))
    with pytest.raises(StaleWriter):
        await store.append_messages(batch)


async def test_what_opens_a_subscription_does_so_once(store: Store) -> None:
    """With the call's tool and arguments; a second result, which does not count, opens none."""
    arguments, long = '{"of":"\\"price\\" \x00"}', f'{{"of":"{"x" * 2000}"}}'
    await resting(store, call("c1", "watch", arguments), call("c2", "watch", long), call("c3"))
    await written(store, brought("c1", subscribes=True), brought("c2", subscribes=True))
    await written(store, brought("c3"))
    await written(store, brought("c3", subscribes=True))
    assert [(one.call_id, one.tool, one.arguments) for one in await store.get_active_subscriptions("t")] == [
        ("c1", "watch", arguments),
        ("c2", "watch", "{}"),
    ]


async def test_a_turn_that_lacks_nothing_more_is_the_one_to_go_on(store: Store) -> None:
    """Before what is shown, and not before all of its calls have their results; after a turn that runs."""
    await resting(store, call("c1"), call("c2"))
    await written(store, brought("c1"))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.answered) == ("v", False)
    await written(store, brought("c2"))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.hidden, tail.answered) == ("a", True, False)
    assert [one.call_id for one in tail.calls] == ["c1", "c2"]
    await written(store, answer("b", 2, status=PAUSED), AppendParts(message_id="b", start=1, parts=(call("c3"),)))
    await written(store, brought("c3"))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.answered) == ("a", True), "another one comes after it"
    await written(store, said("w", at_root=True), answer("d", 3, status=RUNNING))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.answered) == ("d", True)


async def test_the_first_deadline_of_turns_that_rest(store: Store) -> None:
    """Not of the turn that is loaded, nor of a call that has its result."""
    await resting(store, guarded("c1"), guarded("c2"), guarded("c3"))
    due = [SetDue(call_id=name, due=at) for name, at in (("c1", 30.0), ("c2", 20.0), ("c3", 10.0))]
    await written(store, *due, brought("c3"))
    deadline = (await store.load_tail("t")).deadline
    assert deadline is not None
    assert (deadline.call_id, deadline.due) == ("c2", 20.0)
    await written(store, switch("a"))
    assert (await store.load_tail("t")).deadline is None
