"""The rules of an import: what of a file is a tree, and where its turns stand."""

import pytest
from hypothesis import given

from perdure.approval import Decision
from perdure.codec import dumps
from perdure.errors import UsageError
from perdure.interchange import ImportResult, read_import
from perdure.messages import Message, Status, TextPart, ToolCallPart, ToolResultPart
from tests.perdure.client_files import (
    APPROVED,
    CANCELLED,
    DONE,
    INTERRUPTED,
    PAUSED,
    PAYLOAD,
    PENDING,
    RUNNING,
    STOPPED,
    Json,
    assistant,
    call,
    call_of,
    client_files,
    message_of,
    read,
    results_of,
    text,
    user,
)
from tests.perdure.exported_trees import again, encoded, imported
from tests.properties import settings

DETAILS = {
    "followed": "Another message followed before this turn could go on.",
    "unfinished": "The turn had not ended when it was exported.",
}


def parents(result: ImportResult) -> dict[str, str | None]:
    """The parent of each message, in their order."""
    return {one.message.id: one.message.parent_id for one in result.messages}


# -- the tree --------------------------------------------------------------------------------------------------


def test_case_13_children_may_be_listed_before_their_parents() -> None:
    """They come right behind the parent; without a head the leaf that is listed last is open."""
    result = read(user("c", "b"), user("b", "a"), user("a"), user("d", "a"))
    assert list(parents(result)) == ["a", "b", "c", "d"]
    assert result.head_id == "d"
    assert result.warnings == ()


def test_case_16_a_placeholder_as_the_head_is_left_out() -> None:
    """A client's placeholder is not a message: the head is the kept leaf below what stays above it."""
    placeholder = assistant("p", "u", metadata={"isOptimistic": True, "custom": {}})
    result = read(user("u"), user("other"), placeholder, head="p")
    assert list(parents(result)) == ["u", "other"]
    assert result.head_id == "u"
    assert result.warnings[0].endswith("until the real message comes were left out: p.")


def test_case_17_what_is_below_a_placeholder_goes_to_the_next_message_above() -> None:
    """Its child hangs on the placeholder's parent, through several of them."""
    optimistic: Json = {"isOptimistic": True, "custom": {}}
    result = read(
        user("u"),
        user("p", "u", metadata=optimistic),
        user("q", "p", metadata=optimistic),
        user("kept", "q"),
        head="kept",
    )
    assert parents(result) == {"u": None, "kept": "u"}
    assert result.head_id == "kept"


def test_case_80_orphans_are_dropped_and_named() -> None:
    """With all that is below them; the rest is kept, and the head is the kept leaf that is listed last."""
    result = read(user("u"), assistant("a1", "u", text("1")), user("lost", "gone"), user("below", "lost"), head="below")
    assert parents(result) == {"u": None, "a1": "u"}
    assert result.head_id == "a1"
    assert result.warnings[0].endswith("all below them: lost, below.")
    assert result.warnings[1].endswith("another branch is open: below.")


@pytest.mark.parametrize("head", [None, "nobody"])
def test_case_80_without_a_head_the_last_listed_leaf_is_open(head: str | None) -> None:
    """Listed last in the file, whatever the order of the tree."""
    result = read(user("a"), user("late", "b"), user("b", "a"), user("c", "a"), user("d", "c"), head=head)
    assert result.head_id == "d"
    assert bool(result.warnings) == (head is not None)
    assert read(user("a"), user("x", "a"), user("y", "a"), user("z", "x"), head=head).head_id == "z"


def test_case_81_a_flag_to_resume_is_left_aside() -> None:
    """Turns are resumed by the thread that has them, so a file cannot ask for it."""
    file = {"headId": None, "messages": [user("u")], "unstable_resume": True}
    assert read_import(dumps(file).encode()) == read(user("u"))


def test_many_orphans_are_counted() -> None:
    """A warning names some of very many and counts the others, so that it can be read."""
    result = read(user("kept"), *(user(f"lost{number}", "gone") for number in range(1_000)))
    assert len(result.warnings) == 1
    assert "and 980 more" in result.warnings[0]


def test_a_message_that_is_listed_twice_is_as_it_is_listed_last() -> None:
    """As an append-only history tells it (F6): one message, in its place, or where it has moved to."""
    pause = assistant("a", "u", call(), status=PAUSED)
    result = read(user("u"), pause, user("v"), assistant("a", "u", call(result=1), status=STOPPED), head="a")
    assert list(parents(result)) == ["u", "a", "v"]
    assert message_of(result, "a").status == Status()
    assert result.warnings == ("Messages that are in the file more than once are as they stand there last: a.",)
    assert list(parents(read(user("a"), user("x"), user("y"), user("x", "a")))) == ["a", "y", "x"]


def test_messages_below_each_other_are_refused() -> None:
    """Also when others hang on them; they are no orphans, since their parents are there."""
    with pytest.raises(UsageError, match=r"below each other: a, b, c\.$"):
        read(user("u"), user("a", "b"), user("b", "a"), user("c", "a"))
    with pytest.raises(UsageError, match=r"below each other: self\.$"):
        read(user("self", "self"))


def test_a_file_of_which_nothing_stays_is_refused() -> None:
    """It would empty the thread that it is imported into; a file without messages says that it wants that."""
    with pytest.raises(UsageError, match="none of them can be taken"):
        read(user("a", "gone"))
    assert read().messages == ()
    assert read().head_id is None


def test_system_messages_are_left_out() -> None:
    """What is below one goes to the message above it."""
    system = {"parentId": None, "message": {"id": "s", "role": "system", "content": [text("You are nice.")]}}
    result = read(system, user("u", "s"), head="s")
    assert parents(result) == {"u": None}
    assert result.head_id == "u"
    assert "agents have instructions of their own: s." in result.warnings[0]


def test_a_chain_of_30_000_needs_no_recursion() -> None:
    """Neither one that is listed from its end, nor one of placeholders, nor orphans."""
    count = 30_000
    chain = [user(f"m{number}", f"m{number - 1}" if number else None) for number in range(count)]
    result = read(*reversed(chain))
    assert result.head_id == f"m{count - 1}"
    assert len(result.messages) == count
    placeholders = [{**one, "message": {**one["message"], "metadata": {"isOptimistic": True}}} for one in chain[:-1]]
    assert parents(read(*placeholders, chain[-1])) == {f"m{count - 1}": None}
    assert len(read(user("kept"), *chain[1:]).messages) == 1


# -- turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [PAUSED, INTERRUPTED, RUNNING, None])
def test_case_77_a_followed_pause_is_cancelled(status: Json | None) -> None:
    """Its undecided approval is cancelled, its call gets a cancelled result, and what came in stays."""
    given: Json = {} if status is None else {"status": status}
    result = read(user("u"), assistant("a", "u", call(approval=PENDING), call("c2", result=7), **given), user("v", "a"))
    message = message_of(result, "a")
    assert message.status == Status(state="incomplete", reason="cancelled", detail=DETAILS["followed"])
    assert call_of(message).decision == Decision(resolution="cancelled")
    assert {name: outcome for name, (outcome, _) in results_of(message).items()} == {"c1": "cancelled", "c2": "ok"}


def test_case_77_a_decided_approval_of_a_followed_pause_stays() -> None:
    """Approved it was, though the call has no result and will not get one."""
    result = read(user("u"), assistant("a", "u", call(approval=APPROVED), status=PAUSED), user("v", "a"))
    message = message_of(result, "a")
    assert message.status.reason == "cancelled"
    assert call_of(message).decision == Decision(approved=True)
    assert results_of(message)["c1"][0] == "cancelled"


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (STOPPED, Status()),
        (DONE, Status(reason="unknown")),
        (CANCELLED, Status(state="incomplete", reason="cancelled")),
        ({"type": "incomplete", "reason": "length"}, Status(state="incomplete", reason="length")),
        ({"type": "incomplete", "reason": "content-filter"}, Status(state="incomplete", reason="content_filter")),
        ({"type": "incomplete", "reason": "tool-calls"}, Status(state="incomplete", reason="limit")),
        (
            {"type": "incomplete", "reason": "error", "error": {"code": "unknown", "message": "no"}},
            Status(state="incomplete", reason="error", detail="no"),
        ),
        (
            {"type": "incomplete", "reason": "error", "error": "no"},
            Status(state="incomplete", reason="error", detail="no"),
        ),
        ({"type": "incomplete", "reason": "new"}, Status(state="incomplete", reason="other")),
        ({"type": "complete"}, Status(reason="unknown")),
    ],
)
@pytest.mark.parametrize("followed", [True, False])
def test_settled_statuses_stay(status: Json, kept: Status, followed: bool) -> None:
    """Followed or not; and a call that was left without a result says so."""
    below = [user("v", "a")] if followed else []
    result = read(user("u"), assistant("a", "u", call(), status=status), *below)
    assert message_of(result, "a").status == kept
    assert results_of(message_of(result, "a"))["c1"][0] == "cancelled"


def test_case_59_a_snapshot_from_before_the_follow_up_pauses_again() -> None:
    """Whether a turn was followed is told by what the file holds below it, and by nothing else."""
    pause = assistant("a", "u", call(approval=PENDING), status=PAUSED)
    assert message_of(read(user("u"), pause, user("v", "a")), "a").status.state == "incomplete"
    message = message_of(read(user("u"), pause), "a")
    assert message.status == Status(state="requires_action")
    assert call_of(message).decision is None
    assert results_of(message) == {}


def test_case_78_a_pause_at_the_end_can_be_answered() -> None:
    """The approval is as it was asked, its id the call's; results that are in are there; the head is the pause."""
    result = read(user("u"), assistant("a", "u", call(approval=PENDING), call("c2", result=False), status=PAUSED))
    message = message_of(result, "a")
    assert result.head_id == "a"
    assert message.status == Status(state="requires_action")
    approval = call_of(message).approval
    assert approval is not None
    assert approval.prompt == "Really?"
    assert results_of(message) == {"c2": ("ok", "false")}


def test_case_78_an_approved_call_waits_to_be_run() -> None:
    """The decision is kept, and the call has no result."""
    message = message_of(read(user("u"), assistant("a", "u", call(approval=APPROVED), status=PAUSED)), "a")
    assert message.status == Status(state="requires_action")
    assert call_of(message).decision == Decision(approved=True)
    assert results_of(message) == {}


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ([text("hi")], Status(reason="unknown")),
        ([call(result=1)], Status(reason="unknown")),
        ([call(result=None, interrupt=PAYLOAD)], Status(reason="unknown")),
        ([call()], Status(state="requires_action")),
        ([call(), call("c2", result=1, interrupt=PAYLOAD)], Status(state="requires_action")),
        ([call(interrupt=PAYLOAD)], Status(state="requires_action", reason="interrupt")),
    ],
)
def test_case_79_an_interrupt_with_nothing_to_act_on_is_none(content: list[Json], status: Status) -> None:
    """It is complete, or waits for its calls; with a payload it is kept; and a second import gives the same."""
    result = read(user("u"), assistant("a", "u", *content, status=INTERRUPTED))
    message = message_of(result, "a")
    assert message.status == status
    export = imported(result).export()
    assert encoded(again(export)) == encoded(export)
    assert {part.call_id: part.interrupt for part in message.parts if isinstance(part, ToolCallPart)} == {
        one["toolCallId"]: one.get("interrupt") for one in content if one["type"] == "tool-call"
    }


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ([text("hi")], Status(reason="unknown")),
        ([call()], Status(state="requires_action")),
        ([call(approval=PENDING)], Status(state="requires_action")),
        ([call(interrupt=PAYLOAD)], Status(state="requires_action", reason="interrupt")),
        ([call(result="")], Status(reason="unknown")),
        ([call(result=1, isPreliminary=True)], Status(state="requires_action")),
    ],
)
def test_a_missing_status_follows_from_the_content(content: list[Json], status: Status) -> None:
    """Undecided calls and calls without a result wait, anything else is complete."""
    assert message_of(read(user("u"), assistant("a", "u", *content)), "a").status == status


def test_a_question_that_was_never_answered_ends_with_the_turn() -> None:
    """Without a status it counts as a pause although the call has a result: followed it is cancelled, else complete."""
    asked = assistant("a", "u", call(approval=PENDING, result=1))
    followed = message_of(read(user("u"), asked, user("v", "a")), "a")
    assert (followed.status.state, followed.status.reason) == ("incomplete", "cancelled")
    last = message_of(read(user("u"), asked), "a")
    assert last.status == Status(reason="unknown")
    for message in (followed, last):
        assert call_of(message).decision == Decision(resolution="cancelled")
        assert results_of(message) == {"c1": ("ok", "1")}


@pytest.mark.parametrize("status", [RUNNING, PAUSED])
def test_a_turn_that_nobody_can_go_on_with_is_settled(status: Json) -> None:
    """One that ran, or whose calls have all their results, would stand there as under way for ever."""
    message = message_of(read(user("u"), assistant("a", "u", text("so far"), call(result=1), status=status)), "a")
    assert message.status == Status(state="incomplete", reason="cancelled", detail=DETAILS["unfinished"])
    assert message.parts[0] == TextPart(text="so far")


def test_a_turn_that_ran_waits_for_its_open_calls() -> None:
    """It is paused: what it lacks can still come."""
    message = message_of(read(user("u"), assistant("a", "u", call(), status=RUNNING)), "a")
    assert message.status == Status(state="requires_action")


@pytest.mark.parametrize(
    ("fields", "outcome", "content"),
    [
        ({"approved": False, "reason": "Too dear"}, "denied", '{"error":"Too dear"}'),
        ({"approved": False}, "denied", '{"error":"The call was not approved."}'),
        ({"resolution": "expired"}, "expired", "The call did not run: nobody had approved it in time."),
        ({"resolution": "cancelled"}, "cancelled", "The call did not run: nobody had approved it when the turn ended."),
    ],
)
def test_a_decision_against_a_call_is_its_result(fields: Json, outcome: str, content: str) -> None:
    """Where the file has none; another call of the turn goes on waiting."""
    approval = {"id": "q1", **fields}
    message = message_of(read(user("u"), assistant("a", "u", call(approval=approval), call("c2"), status=PAUSED)), "a")
    assert message.status.state == "requires_action"
    assert results_of(message) == {"c1": (outcome, content)}


def test_a_call_that_must_not_run_is_answered_with_the_reason() -> None:
    """Also in a turn that waits for another call: nothing will ever come for it."""
    refused = call(perdure={"error": "There is no tool of this name."})
    message = message_of(read(user("u"), assistant("a", "u", refused, call("c2"), status=PAUSED)), "a")
    assert message.status.state == "requires_action"
    assert results_of(message) == {"c1": ("error", "There is no tool of this name.")}


def test_results_that_are_made_up_stand_in_call_order() -> None:
    """Behind the calls of their step and before the next one, as those of tools do."""
    content = [call("c1"), call("c2", result="x"), text("then")]
    message = message_of(read(user("u"), assistant("a", "u", *content, status=STOPPED)), "a")
    assert [getattr(part, "call_id", part.kind) for part in message.parts] == ["c1", "c2", "c1", "c2", "text"]
    assert [part.step for part in message.parts] == [0, 0, 0, 0, 1]


def test_open_calls_have_ids_of_their_own() -> None:
    """Providers use theirs again; results and decisions find a call by its id in the whole thread."""
    one = assistant("a1", "u", call(approval=PENDING, result=1, isPreliminary=True), status=PAUSED)
    result = read(user("u"), one, assistant("a2", "u", call(), status=PAUSED), assistant("a3", "u", call(result=1)))
    found = [call_of_any(message_of(result, name)) for name in ("a1", "a2", "a3")]
    assert len(set(found)) == 3
    assert found[2] == "c1"
    assert result.messages[1].interim[0].call_id == found[0]
    assert encoded(again(imported(result).export())) == encoded(imported(result).export())


def call_of_any(message: Message) -> str:
    """The id of the only call of a message."""
    (found,) = [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
    return found


@settings()
@given(items=client_files())
def test_rules_leave_alone_what_they_made(items: list[Json]) -> None:
    """An import that is exported is imported as it is; every turn in it is settled with all its calls, or waits."""
    result = read(*items)
    export = imported(result).export()
    assert encoded(again(export)) == encoded(export)
    for one in result.messages:
        calls = [part.call_id for part in one.message.parts if isinstance(part, ToolCallPart)]
        answered = [part.call_id for part in one.message.parts if isinstance(part, ToolResultPart)]
        state = one.message.status.state
        assert state != "running"
        assert (len(answered) < len(calls)) == (state == "requires_action")
