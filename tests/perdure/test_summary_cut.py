"""Where a conversation may be cut, and where it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.compaction import Compaction
from perdure.messages import EventPart, Message, Part, Status, Usage
from perdure.path_size import chars_per_token, path_chars
from perdure.records import Path, Summary
from perdure.summary_cut import choose, cut, hidden_parts, opening, places, up_to
from perdure.summary_plan import plan
from perdure.view import Response, Result
from tests.compaction.paths import (
    RUNNING,
    THREAD,
    all_cuts,
    answer,
    call,
    chars_after,
    message,
    path,
    positions,
    request,
    result,
    seen,
    summarised,
    text,
    thought,
    user,
)
from tests.perdure.view_paths import thoughts_of
from tests.perdure.view_rules import violations
from tests.properties import settings

TALK = path(
    user("U1", "one"),
    answer("A1", call("c1"), call("c2"), result("c1"), result("c2"), text("mid", 1)),
    user("U2", "two"),
    answer("A2", call("c3"), result("c3"), text("end", 1)),
)


def points(given: Path) -> list[tuple[str, int]]:
    """Where the path may be cut."""
    return [(place.message_id, place.parts) for place in places(given, THREAD)]


def test_b13_no_place_is_inside_a_tool_group() -> None:
    """Between a call and its results, and between two results, nothing is cut; before the next step it may be."""
    assert points(TALK) == [("U1", 1), ("A1", 4), ("A1", 5), ("U2", 1), ("A2", 2), ("A2", 3)]


@pytest.mark.parametrize("kept", range(10))
def test_b13_every_budget_gives_a_valid_view(kept: int) -> None:
    """Whatever is to be kept: the view is valid, what stays is a suffix, and nothing is lost or there twice."""
    total = path_chars(TALK)
    place = choose(places(TALK, THREAD), keep=total * kept / 10, room=total)
    assert place is not None
    made = cut(TALK, place)
    assert positions(made.covered.messages) + positions(made.kept) == positions(TALK.messages)
    assert violations(seen(summarised(made)), thoughts_of(TALK)) == []


def test_b13_a_result_in_a_row_of_the_user_stays_with_its_call_and_the_words() -> None:
    """A row of the user that holds a result and words is on the same side as the call, whole."""
    talk = path(
        user("U1", "one"),
        answer("A1", call("c3")),
        user("U2", result("c3"), "also do Z"),
        answer("A2", "end"),
    )
    assert points(talk) == [("U1", 1), ("U2", 2), ("A2", 1)]


def test_b13_a_call_without_a_result_is_never_left_out() -> None:
    """A last call that may still get its result stays, with its whole step, and no result is made up for it."""
    talk = path(*TALK.messages, user("U3", "three"), answer("A3", text("let me see"), call("c4"), status=RUNNING))
    assert points(talk) == points(TALK)
    settled = path(*TALK.messages, answer("A3", text("let me see"), call("c4")))
    assert points(settled) == points(TALK)


def test_a_paused_turn_is_not_left_out_with_its_open_call() -> None:
    """Somebody may still decide about the call of a turn that waits, though words follow it."""
    paused = Status(state="requires_action")
    talk = path(user("U1", "x"), answer("A1", call("c"), status=paused), user("U2", "y"), answer("A2", "z"))
    assert points(talk) == [("U1", 1), ("U2", 1), ("A2", 1)]
    stopped = Status(state="incomplete", reason="cancelled")
    left = path(user("U1", "x"), answer("A1", call("c"), status=stopped), user("U2", "y"), answer("A2", "z"))
    assert ("A1", 1) in points(left), "control: a turn that was left gets no result any more"


def test_a_thought_stays_with_what_it_led_to() -> None:
    """No cut stands between a thought and the call or the words after it, and none inside a step."""
    talk = path(
        user("U1", "x"),
        answer("A1", thought("r1"), call("c"), result("c"), thought("r2", 1), text("so", 1), text("and so", 1)),
    )
    assert points(talk) == [("U1", 1), ("A1", 3), ("A1", 6)]


def test_steps_without_numbers_are_told_by_their_results() -> None:
    """Messages from outside may have one number for all steps; what follows a result is another step."""
    talk = path(user("U1", "x"), answer("A1", call("c"), result("c"), call("d"), result("d"), text("so")))
    assert points(talk) == [("U1", 1), ("A1", 2), ("A1", 4), ("A1", 5)]


def test_words_that_wait_for_an_answer_stay() -> None:
    """Words after the last answer, and those whose answer has not begun, are not left out."""
    asked = path(*TALK.messages, user("U3", "three"), user("U4", "four"))
    assert points(asked) == points(TALK)
    begun = path(*TALK.messages, user("U3", "three"), answer("A3", status=RUNNING))
    assert points(begun) == points(TALK)


def test_a_long_turn_is_cut_between_two_of_its_steps() -> None:
    """In the middle of a turn that runs a cut may follow a step; the words that it answers are named then."""
    talk = path(
        *TALK.messages,
        user("U3", "three"),
        answer("A3", call("c5"), result("c5"), call("c6", 1), result("c6", step=1), status=RUNNING),
    )
    assert points(talk) == [*points(TALK), ("A3", 2), ("A3", 4)]
    within = all_cuts(talk)[-2][1]
    assert within.words == "three"
    assert within.messages == 5, "the turn itself is not over, so its message is not counted yet"
    assert [one.words for _, one in all_cuts(talk)[:-2]] == [""] * len(points(TALK))


def test_an_event_that_is_being_handled_counts_as_words() -> None:
    """A report that a turn is about is named as words of the user are."""
    event = message("E", "event", (EventPart(event_id="e", origin_call_id="c", content="the child is done"),))
    talk = path(user("U1", "x"), answer("A1", "y"), event, answer("A2", call("c"), result("c"), status=RUNNING))
    assert all_cuts(talk)[-1][1].words == "the child is done"


def test_positions_go_on_from_an_earlier_summary() -> None:
    """B27: of a message that a summary cuts short, positions are counted with the parts that are hidden."""
    earlier = Summary(id="s1", thread_id=THREAD, message_id="A1", parts=4, text="before")
    talk = path(answer("A1", text("mid", 1)), *TALK.messages[2:], summary=earlier)
    assert points(talk) == [("A1", 5), ("U2", 1), ("A2", 2), ("A2", 3)]
    assert hidden_parts(talk, talk.messages[0]) == 4


def test_a_child_is_cut_in_its_own_messages_only() -> None:
    """What a child inherits is left out at a point of the child, where no path of its parent comes along."""
    inherited = (user("P1", "x", thread="p"), answer("P2", "y", thread="p"))
    talk = path(*inherited, message("seed", "event", (call("spawn"), result("spawn"))), answer("A1", "done"))
    assert points(talk) == [("seed", 0), ("seed", 2), ("A1", 1)]
    before_seed = all_cuts(talk)[0][1]
    assert [one.id for one in before_seed.kept] == ["seed", "A1"]
    assert [one.id for one in before_seed.covered.messages] == ["P1", "P2"]


def test_the_point_bounds_what_is_looked_at() -> None:
    """Parts after the point do not exist for the compaction; one that is behind a summary leaves nothing."""
    assert positions(up_to(TALK, "A2", 2).messages) == positions(TALK.messages)[:-1]
    assert up_to(TALK, "A2", None) == TALK
    assert up_to(TALK, "other", 1).messages == ()
    earlier = Summary(id="s", thread_id=THREAD, message_id="A2", parts=2, text="before")
    assert up_to(path(answer("A2", "end"), summary=earlier), "A2", 1).messages == ()


def test_the_oldest_place_is_chosen_after_which_no_more_stays_than_is_to_be_kept() -> None:
    """As much as fits stays. A last group that is larger than that stays if there is room; with keep=0 nothing does."""
    found = places(TALK, THREAD)
    kept = [place.kept for place in found]
    assert kept == sorted(kept, reverse=True)
    assert kept == [chars_after(TALK, place) for place in found]
    assert choose(found, keep=kept[2], room=10_000) == found[2]
    assert choose(found, keep=kept[2] - 1, room=10_000) == found[3]
    assert choose(found, keep=1, room=10_000) == found[-2]
    assert choose(found, keep=1, room=1) == found[-1]
    assert choose(found, keep=0, room=10_000) == found[-1]
    assert choose([], keep=10, room=10) is None


def test_opening_words_are_the_first_that_the_user_has_said() -> None:
    """Blank words do not count, nor do those of the model."""
    assert opening(path(answer("A", "hi"), user("U1", " "), user("U2", "go"), user("U3", "on"))) == "go"
    assert opening(path(answer("A", "hi"))) == ""


def test_tokens_are_estimated_by_what_the_provider_counted() -> None:
    """The characters before each step over the input tokens of the turn: here two characters make a token."""
    talk = path(user("U1", "x" * 380), answer("A1", "y" * 100))
    assert chars_per_token(talk) == 4.0
    used = talk.messages[1].with_(usage=Usage(requests=1, input_tokens=200))
    assert chars_per_token(path(talk.messages[0], used)) == 2.0
    absurd = talk.messages[1].with_(usage=Usage(requests=1, input_tokens=100_000))
    assert chars_per_token(path(talk.messages[0], absurd)) == 1.0
    two = answer("A1", call("c"), result("c", "r" * 344), text("so", 1)).with_(
        usage=Usage(requests=2, input_tokens=100 + 200)
    )
    assert chars_per_token(path(talk.messages[0], two)) == pytest.approx(4.0)


def test_a_short_conversation_is_only_compacted_when_that_is_asked_for() -> None:
    """Nothing is done where it gains nothing, but what a person asks for is done."""
    compaction = Compaction(context_window=10_000)
    assert plan(TALK, request(TALK, forced=False), compaction, 10_000) is None
    assert plan(TALK, request(TALK, forced=True), compaction, 10_000) is not None
    long = path(user("U", "x" * 30_000), answer("A", "y" * 100), user("U2", "z"), answer("A2", "w"))
    made = plan(long, request(long, forced=False), compaction, 10_000)
    assert made is not None
    assert made.cut.message_id == "U"


def test_what_is_quoted_leaves_room_in_a_small_window() -> None:
    """Long first words, long words that wait, a long task: quoted in full where there is room, cut off where not."""
    seed = message("seed", "event", (call("spawn"), result("spawn", "t" * 6_000))).with_(input_id="seed")
    steps = [part for step in range(30) for part in (call(f"c{step}", step), result(f"c{step}", "r" * 900, step))]
    talk = path(
        user("U0", "o" * 900), answer("A0", "x"), seed, user("U", "w" * 3_000), answer("A", *steps, status=RUNNING)
    )
    for window, whole in ((2_000, False), (200_000, True)):
        made = plan(talk, request(talk), Compaction(keep=0.05), window)
        assert made is not None
        quoted = (made.facts.opening, made.facts.words, made.facts.task)
        assert (sum(map(len, quoted)) == 9_900) is whole
        assert all(quoted)
        assert sum(map(len, quoted)) + made.limit < window * 4


# -- properties -------------------------------------------------------------------------------------------------


@st.composite
def talks(draw: st.DrawFn) -> Path:
    """A conversation as the runtime stores it: words, turns of steps with groups of calls, thoughts, a turn that runs.

    Call ids are distinct, as stored ones are.
    """
    number = 0
    messages: list[Message] = []
    sizes = st.integers(1, 60)
    for turn in range(draw(st.integers(1, 6))):
        for extra in range(draw(st.integers(1, 2))):
            messages.append(user(f"u{turn}-{extra}", f"words {turn} " + "x" * draw(sizes)))
        parts: list[Part] = []
        steps = draw(st.integers(0, 4))
        for step in range(steps):
            if draw(st.booleans()):
                parts.append(thought(f"thought {turn} {step}", step))
            if draw(st.booleans()):
                parts.append(text(f"saying {turn} {step} " + "y" * draw(sizes), step))
            group = [f"c{number + index}" for index in range(draw(st.integers(1, 3)))]
            number += len(group)
            parts += [call(name, step) for name in group]
            parts += [result(name, "r" * draw(sizes), step) for name in group]
        last = turn == 5 or draw(st.booleans())
        if last and parts and draw(st.booleans()):
            open_step = draw(st.integers(0, 2))
            parts = parts[: len(parts) - open_step] if open_step else parts
            messages.append(answer(f"a{turn}", *parts, status=RUNNING))
            break
        messages.append(answer(f"a{turn}", *parts, text(f"so {turn}", steps)))
    return Path(messages=tuple(messages))


@given(talks(), st.floats(0, 1), st.floats(0, 0.5))
@settings(max_examples=150)
def test_any_cut_of_any_conversation_is_valid_and_keeps_the_rest(talk: Path, share: float, keep: float) -> None:
    """B13: for every path and budget the view after the cut is valid, and what is after the cut is in it byte-equal."""
    total = path_chars(talk)
    place = choose(places(talk, THREAD), keep * share * total, share * total)
    for at, made in ([(place, cut(talk, place))] if place else []) + all_cuts(talk):
        assert positions(made.covered.messages) + positions(made.kept) == positions(talk.messages)
        after = summarised(made)
        viewed = seen(after)
        assert violations(viewed, thoughts_of(talk)) == []
        assert violations(seen(made.covered), thoughts_of(talk)) == []
        whole = [item for one in seen(talk) for item in one.items]
        rest = [item for one in viewed for item in one.items][1:]
        if made.kept:
            assert rest == whole[len(whole) - len(rest) :], at
            # Nothing but a thought at the very end is not shown: it led to nothing yet.
            assert len(rest) >= sum(any(part.kind != "reasoning" for part in one.parts) for one in made.kept)
        else:
            assert rest == []


@given(talks())
def test_a_cut_never_ends_a_path_on_a_result_without_its_call(talk: Path) -> None:
    """What stays begins with words or with a step of the model, never with a result."""
    for _, made in all_cuts(talk):
        after = seen(summarised(made))
        results = [item for one in after[:1] for item in one.items if isinstance(item, Result)]
        assert results == []
        assert not isinstance(after[0], Response)
