"""The view: what a model reads of a conversation."""

from itertools import pairwise

import pytest

from perdure.approval import ApprovalRequest, Decision
from perdure.messages import EventPart, FileRef, Part, ReasoningPart, Role, TextPart, ToolResultPart
from perdure.view import (
    EVENT_CHARS,
    ONLY_FILES,
    OPENING,
    UNANSWERED,
    Call,
    ModelText,
    Reasoning,
    Request,
    Response,
    Result,
    UserFile,
    UserText,
    clean,
    view,
)
from tests.perdure.view_paths import call, path, result, user
from tests.perdure.view_rules import items, violations


def test_b06_a_group_answered_in_part_is_closed_when_the_user_speaks() -> None:
    """B06: results in call order, the missing ones as cancelled, the user's words after them."""
    seen = view(
        path(
            user("go"),
            ("assistant", [call("c1", "a"), call("c2", "b"), call("c3", "c"), result("c2", "two")]),
            user("stop, do X"),
        )
    )
    assert seen[-1] == Request(
        (
            Result("c1", "a", UNANSWERED, "cancelled"),
            Result("c2", "b", "two"),
            Result("c3", "c", UNANSWERED, "cancelled"),
            UserText("stop, do X"),
        )
    )


@pytest.mark.parametrize(
    "decision", [None, Decision(approved=True), Decision(approved=False), Decision(resolution="cancelled")]
)
def test_b17_a_turn_that_was_left_while_it_waited_reads_as_cancelled(decision: Decision | None) -> None:
    """B17, R6: a paused message with later ones, or one from outside whose calls have no result, is a valid view."""
    asked = call("c1", "send").with_(approval=ApprovalRequest(prompt="secret"), decision=decision)
    seen = view(path(user("go"), ("assistant", [TextPart(text="I will"), asked]), user("actually wait")))
    assert violations(seen) == []
    assert seen[1:] == (
        Response((ModelText("I will"), Call("c1", "send", "{}"))),
        Request((Result("c1", "send", UNANSWERED, "cancelled"), UserText("actually wait"))),
    )


def test_b04_a_denied_call_reads_with_its_error() -> None:
    """B04: as its result, beside those of the calls that ran; without one it still says that it was denied."""
    denied = ToolResultPart(call_id="c2", outcome="denied", content='{"error":"no"}')
    turn: list[Part] = [call("c1", "send"), call("c2", "send"), call("c3", "send"), result("c1", "sent")]
    blank = denied.with_(call_id="c3", content="")
    assert view(path(user("go"), ("assistant", [*turn, denied, blank])))[-1] == Request(
        (
            Result("c1", "send", "sent"),
            Result("c2", "send", '{"error":"no"}', "denied"),
            Result("c3", "send", "The call was denied.", "denied"),
        )
    )


@pytest.mark.parametrize("ids", [("", ""), ("dup", "dup"), ("a", "a", ""), ("has space", "has space")])
def test_b10_blank_and_repeated_ids_become_distinct_and_results_pair_in_call_order(ids: tuple[str, ...]) -> None:
    """B10: every call has its own id and its own result; the ids are the same at every read."""
    turn: list[Part] = [call(call_id, "search", f'{{"q":{number}}}') for number, call_id in enumerate(ids)]
    turn += [result(call_id, str(number)) for number, call_id in enumerate(ids)]
    conversation = path(user("go"), ("assistant", turn), ("assistant", turn))
    seen = view(conversation)
    assert violations(seen) == []
    assert [item.text for item in items(seen) if isinstance(item, Result)] == [str(n) for n in range(len(ids))] * 2
    assert view(conversation) == seen


def test_b20_signed_thoughts_go_back_byte_for_byte_in_their_order() -> None:
    """B20 (c): thought, call, thought, call, as they came."""
    seen = view(
        path(
            user("go"),
            (
                "assistant",
                [
                    ReasoningPart(text="t1", signature="s1"),
                    call("c1"),
                    ReasoningPart(text="t2", signature="s2"),
                    call("c2"),
                    result("c1", "1"),
                    result("c2", "2"),
                ],
            ),
        )
    )
    assert seen[1] == Response(
        (Reasoning("t1", "s1"), Call("c1", "a", "{}"), Reasoning("t2", "s2"), Call("c2", "a", "{}"))
    )


def test_b20_no_response_ends_on_a_thought() -> None:
    """B20 (a), (b): a thought that nothing followed is left out, and a response of nothing else with it."""
    seen = view(path(user("go"), ("assistant", [ReasoningPart(text="abc")]), user("go on")))
    assert seen == (Request((UserText("go"), UserText("go on"))),)


def test_b31_a_call_that_must_not_run_is_answered_with_its_error() -> None:
    """B31: arguments that were cut off go back as an empty object; the error says so and quotes what came."""
    cut = call("c1", "write", '{"path":"a.txt"').with_(error="It was cut off.")
    seen = view(path(user("go"), ("assistant", [cut])))
    assert seen[1] == Response((Call("c1", "write", "{}"),))
    answer = seen[2].items[0]
    assert isinstance(answer, Result)
    assert answer.outcome == "error"
    assert answer.text.startswith("It was cut off.")
    assert '{"path":"a.txt"' in answer.text


def test_b32_argument_text_keeps_its_bytes() -> None:
    """B32: key order and number forms of the arguments are the model's."""
    written = '{"path": "a", "content":"z","b":1e2, "a":1.0}'
    seen = view(path(user("go"), ("assistant", [call("c1", "a", written)])))
    assert seen[1] == Response((Call("c1", "a", written),))


@pytest.mark.parametrize("place", range(4))
def test_b34_an_orphan_result_goes_and_the_words_beside_it_stay(place: int) -> None:
    """B34: wherever an orphan stands, only the orphan is left out."""
    rows: list[tuple[Role, list[Part]]] = [("assistant", [TextPart(text="hi")]), user("a"), user("b")]
    rows.insert(place, ("user", [result("zz", "stale"), TextPart(text="please continue")]))
    seen = view(path(*rows))
    assert violations(seen) == []
    assert UserText("please continue") in items(seen)
    assert not any(isinstance(item, Result) for item in items(seen))


def test_b34_repeated_and_foreign_results_beside_words() -> None:
    """B34: of two results for a call the first counts, a foreign one goes, the text stays."""
    seen = view(
        path(
            user("go"),
            ("assistant", [call("c1")]),
            ("user", [result("c1", "1"), result("c1", "dup"), result("zz", "x"), TextPart(text="t")]),
        )
    )
    assert seen[-1] == Request((Result("c1", "a", "1"), UserText("t")))


def test_b39_five_turns_extend_each_other() -> None:
    """B39: over five turns with 20 KB results no request changes what an earlier one said."""
    rows: list[tuple[Role, list[Part]]] = []
    requests: list[list[object]] = []
    for number in range(5):
        rows.append(user(f"q{number}"))
        requests.append(items(view(path(*rows))))
        called: list[Part] = [call(f"c{number}"), result(f"c{number}", "r" * 20_000)]
        requests.append(items(view(path(*rows, ("assistant", called)))))
        rows.append(("assistant", [*called, TextPart(text="done", step=1)]))
    for earlier, later in pairwise(requests):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("step", [0, 1])
def test_b45_a_turn_reads_in_the_order_in_which_it_happened(step: int) -> None:
    """B45: words, calls, results, words, whatever step the last words are counted under."""
    turn: list[Part] = [TextPart(text="let me look"), call("c1"), call("c2"), result("c1", "1"), result("c2", "2")]
    seen = view(path(user("go"), ("assistant", [*turn, TextPart(text="sum", step=step)])))
    assert items(seen[1:]) == [
        ModelText("let me look"),
        Call("c1", "a", "{}"),
        Call("c2", "a", "{}"),
        Result("c1", "a", "1"),
        Result("c2", "a", "2"),
        ModelText("sum"),
    ]


@pytest.mark.parametrize("length", range(1, 7))
def test_b47_a_thought_stays_with_what_it_led_to(length: int) -> None:
    """B47: wherever the conversation ends, a thought is there if and only if what follows it is."""
    turn: list[Part] = [
        ReasoningPart(text="r1", signature="s"),
        call("c1"),
        result("c1", "1"),
        ReasoningPart(text="r2", signature="s", step=1),
        TextPart(text="x", step=1),
    ]
    seen = items(view(path(user("go"), ("assistant", turn[: length - 1]))))
    assert (Reasoning("r1", "s") in seen) == (Call("c1", "a", "{}") in seen)
    assert (Reasoning("r2", "s") in seen) == (ModelText("x") in seen)


def test_b69_long_integers_keep_their_digits() -> None:
    """B69: 19 digits and 10**30 in arguments and results are not touched, even where strings had to be repaired."""
    number = 10**30 + 2512292042121000001
    odd = f'{{"id":{number},"text":"\\ud800"}}'
    seen = view(path(user("go"), ("assistant", [call("c1", "a", odd), result("c1", str(number))])))
    repaired = seen[1].items[0]
    assert isinstance(repaired, Call)
    assert str(number) in repaired.arguments
    assert seen[2].items[0] == Result("c1", "a", str(number))


def image(blob: str, size_bytes: int = 40) -> FileRef:
    """An image in a result."""
    return FileRef(media_type="image/png", blob=blob, size_bytes=size_bytes)


def test_files_of_a_result_follow_its_text() -> None:
    """In their order, with their type and size; a result of files alone says so."""
    shot = ToolResultPart(call_id="c1", content="a cat", files=(image("f1"), image("f2")))
    seen = view(path(user("go"), ("assistant", [call("c1"), shot])))
    shown = (UserFile("f1", "image/png", 40), UserFile("f2", "image/png", 40))
    assert seen[2] == Request((Result("c1", "a", "a cat", "ok", shown),))
    silent = view(path(user("go"), ("assistant", [call("c1"), shot.with_(content=" ")])))
    assert silent[2] == Request((Result("c1", "a", ONLY_FILES, "ok", shown),))


def test_large_events_and_results_say_how_large_they_are() -> None:
    """What the model does not see in full is marked with the full size."""
    event = EventPart(event_id="e1", origin_call_id="c1", content="é" * 40_000, blob="b")
    clipped = ToolResultPart(call_id="c1", content="begin", size_bytes=5_000_000, blob="b")
    texts = [
        item.text
        for item in items(view(path(user("go"), ("assistant", [call("c1"), clipped]), ("event", [event]))))
        if isinstance(item, Result)
    ]
    assert texts[0] == (
        'begin\n\n[Cut off here; the whole result has 5000000 bytes. Read on with read_result(call_id="c1", offset=5).]'
    )
    assert "[Cut off here; the whole event has 80000 bytes. Read on with read_result(call_id=" in texts[1]
    assert texts[1].endswith(f"offset={2 * EVENT_CHARS}).]")
    assert len(texts[1]) < EVENT_CHARS + 200


def test_a_summary_comes_first_as_words_of_the_user_side() -> None:
    """What was compacted is read as a message, and what follows after it."""
    seen = view(path(user("and now?"), summary="They spoke of tea."))
    assert seen == (
        Request((UserText("Summary of the conversation so far:\n\nThey spoke of tea."), UserText("and now?"))),
    )


def test_a_conversation_never_opens_with_the_model() -> None:
    """Providers want the user first, so a greeting of the model gets a line before it."""
    assert view(path(("assistant", [TextPart(text="hi")])))[0] == Request((UserText(OPENING),))


def test_a_text_that_was_not_loaded_is_a_bug_and_never_silence() -> None:
    """A text in a blob that nobody resolved raises instead of leaving the user's words out."""
    with pytest.raises(ValueError, match="bug"):
        view(path(("user", [TextPart(text="", blob="b")])))


def test_surrogates_are_joined_or_replaced() -> None:
    """Two halves become their character, a lone half a replacement character."""
    assert clean("\ud83d\ude00") == "😀"
    assert clean("a\ud800b") == "a\ufffdb"
