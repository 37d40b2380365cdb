"""Approvals: what an answer decides, and for which calls it is remembered."""

from typing import Any

import pytest
from pydantic import ValidationError

from perdure.approval import (
    REASON_CHARS,
    SHAPE_CHARS,
    ApprovalOption,
    ApprovalQuestion,
    ApprovalRequest,
    Decision,
    Grant,
    RememberedDecision,
    arguments_digest,
    check_request,
    decision_of,
    matches,
    remembered_of,
)
from perdure.codec import dumps, loads_object
from perdure.errors import UsageError
from perdure.inputs import Approval

OPTIONS = (
    ApprovalOption(id="once", kind="allow_once"),
    ApprovalOption(id="always", kind="allow_always"),
    ApprovalOption(id="no", kind="reject_once"),
    ApprovalOption(id="never", kind="reject_always"),
    ApprovalOption(id="edit", kind="_modify"),
)
GATE = ApprovalRequest(options=OPTIONS)
NOTED = GATE.with_(allow_freeform=True)
SELECT = ApprovalRequest(display="select", options=OPTIONS)
TEXT = ApprovalRequest(display="text")
QUESTIONS = ApprovalRequest(
    display="questions",
    questions=(
        ApprovalQuestion(id="scope", options=(ApprovalOption(id="src"), ApprovalOption(id="tests")), multiple=True),
        ApprovalQuestion(id="style", options=(ApprovalOption(id="terse"),), allow_freeform=True),
        ApprovalQuestion(id="note"),
    ),
)
ANSWERS: dict[str, Any] = {
    "scope": {"option_ids": ["src", "tests"]},
    "style": {"text": "as before"},
    "note": {"text": "short"},
}


def decided(request: ApprovalRequest, **said: Any) -> Decision:
    """What becomes of the request when a person says this."""
    return decision_of(request, Approval(call_id="c", by="ann", **said), 7.0)


@pytest.mark.parametrize(
    ("request_", "said", "approved"),
    [
        (GATE, {"approved": True}, True),
        (GATE, {"approved": False, "reason": "not now"}, False),
        (ApprovalRequest(), {"approved": False}, False),
        (GATE, {"option_id": "once"}, True),
        (GATE, {"option_id": "always"}, True),
        (GATE, {"option_id": "no", "reason": "not now"}, False),
        (GATE, {"option_id": "never"}, False),
        (GATE, {"option_id": "always", "approved": True}, True),
        (GATE, {"option_id": "edit", "approved": True}, True),
        (GATE, {"option_id": "edit", "approved": False}, False),
        (NOTED, {"approved": False, "text": "not this one"}, False),
        (TEXT, {"text": "staging"}, True),
        (TEXT.with_(dismissible=True), {"approved": False}, False),
        (TEXT, {"text": "none of these", "approved": False}, False),
        (SELECT, {"option_id": "once"}, True),
        (SELECT.with_(allow_freeform=True), {"text": "elsewhere"}, True),
        (SELECT.with_(allow_freeform=True), {"option_id": "edit", "approved": True, "text": "elsewhere"}, True),
        (SELECT.with_(dismissible=True), {"approved": False}, False),
        (QUESTIONS, {"answers": ANSWERS}, True),
        (QUESTIONS.with_(dismissible=True), {"approved": False, "reason": "later"}, False),
    ],
)
def test_an_answer_that_fits_decides(request_: ApprovalRequest, said: dict[str, Any], approved: bool) -> None:
    """Outright, by an option of a known kind, or by an answer where one was asked for; what was said is kept."""
    expected = Decision(approved=approved, by="ann", at=7.0).with_(**{**said, "approved": approved})
    assert decided(request_, **said) == expected


@pytest.mark.parametrize(
    ("request_", "said", "sentence"),
    [
        (GATE, {}, "Nothing was decided: say `approved`, true or false, or choose one of the options 'once', 'always'"),
        (GATE, {"reason": "because"}, "Nothing was decided"),
        (TEXT, {"text": " \n"}, "Nothing was decided: answer with a `text`"),
        (GATE, {"option_id": "missing"}, "There is no option 'missing'"),
        (ApprovalRequest(), {"option_id": "once"}, "There is no option 'once'; say `approved`, true or false."),
        (GATE, {"option_id": "edit"}, "does not say yes or no by itself"),
        (GATE.with_(options=(ApprovalOption(id="x", kind="__class__"),)), {"option_id": "x"}, "by itself"),
        (GATE, {"option_id": "no", "approved": True}, "'no' denies the call, and `approved` says the opposite"),
        (GATE, {"option_id": "always", "approved": False}, "'always' approves the call"),
        (GATE, {"text": "go on"}, "takes no text"),
        (GATE, {"approved": True, "text": "go on"}, "takes no text"),
        (SELECT, {"option_id": "once", "text": "go on"}, "takes no text"),
        (NOTED, {"text": "not this one"}, "A text alone does not decide"),
        (GATE, {"approved": True, "answers": {"a": "b"}}, "asks no questions"),
        (SELECT, {"approved": True}, "asks for more than yes: choose one of the options"),
        (SELECT, {"approved": False}, "cannot be dismissed: choose one of the options"),
        (TEXT, {"approved": False}, "cannot be dismissed: answer with a `text`"),
        (QUESTIONS, {}, "asks questions; answer all of these: 'scope', 'style', 'note'"),
        (QUESTIONS, {"approved": True}, "asks questions"),
        (QUESTIONS, {"approved": False}, "cannot be dismissed"),
        (QUESTIONS.with_(dismissible=True), {"approved": False, "text": "no"}, "or say `approved: false`"),
        (QUESTIONS, {"approved": True, "answers": ANSWERS}, "stand alone"),
        (QUESTIONS, {"text": "x", "answers": ANSWERS}, "stand alone"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_a_sentence(
    request_: ApprovalRequest, said: dict[str, Any], sentence: str
) -> None:
    """Nothing is guessed: a note must not authorise a call, and what contradicts itself decides nothing."""
    with pytest.raises(UsageError) as refused:
        decided(request_, **said)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"other": "x"}, "no question 'other'"),
        ({"note": None}, "'note' is not answered"),
        ({"note": {"text": " "}}, "'note' is not answered"),
        ({"scope": []}, "'scope' is not answered"),
        ({"style": {"option_ids": ["terse", "src"]}}, "takes one option, not 2"),
        ({"scope": ["src", "docs"]}, "no option 'docs'"),
        ({"scope": ["src", "src"]}, "must be different texts"),
        ({"scope": [1]}, "must be different texts"),
        ({"scope": {"option_ids": "src"}}, "with `option_ids`, a list of texts"),
        ({"scope": {"optionIds": ["src"]}}, "with `option_ids`, a list of texts"),
        ({"note": 7}, "with `option_ids`, a list of texts"),
        ({"note": {"text": 7}}, "with `option_ids`, a list of texts"),
        ({"scope": {"text": "all"}}, "takes one of its options, and no text"),
        ({"note": {"option_ids": ["src"]}}, "no option 'src'"),
        ({"note": "x" * (REASON_CHARS + 1)}, "longer than 2,000 characters"),
    ],
)
def test_each_question_is_answered_in_its_way(changed: dict[str, Any], sentence: str) -> None:
    """All of them, by options that they have, as many as they take, or in words where they take words."""
    with pytest.raises(UsageError) as refused:
        decided(QUESTIONS, answers={**ANSWERS, **changed})
    assert sentence in str(refused.value)


def test_answers_may_be_written_shortly_and_are_kept_in_one_form() -> None:
    """A text is an option if there is one of that id; a list is of options."""
    short = {"scope": ["src", "tests"], "style": "as before", "note": "short"}
    assert decided(QUESTIONS, answers=short) == decided(QUESTIONS, answers=ANSWERS)
    assert (decided(QUESTIONS, answers={**short, "style": "terse"}).answers or {})["style"] == {"option_ids": ["terse"]}


@pytest.mark.parametrize(
    ("chosen", "grants", "remembered"),
    [
        ("always", "tool", RememberedDecision(tool="send", by="ann")),
        ("always", "arguments", RememberedDecision(tool="send", arguments="d", by="ann")),
        ("never", "tool", RememberedDecision(tool="send", approved=False, by="ann")),
        ("once", "tool", None),
        ("no", "tool", None),
        ("edit", "tool", None),
        (None, "tool", None),
    ],
)
def test_only_an_option_for_always_is_remembered(
    chosen: str | None, grants: Grant, remembered: RememberedDecision | None
) -> None:
    """For what it grants, and whichever way it went; yes or no alone are for the one call."""
    request = GATE.with_(options=tuple(option.with_(grants=grants) for option in OPTIONS))
    decision = decided(request, option_id=chosen, approved=True if chosen in (None, "edit") else None)
    assert remembered_of(decision, request, "send", "d") == remembered


def test_what_is_granted_for_the_arguments_is_never_remembered_for_the_whole_tool() -> None:
    """Whose arguments are not known grants nothing: no digest would mean all calls of the tool."""
    request = GATE.with_(options=(ApprovalOption(id="always", kind="allow_always", grants="arguments"),))
    decision = decided(request, option_id="always")
    assert remembered_of(decision, request, "send", None) is None
    assert remembered_of(decision, request, "send", "d") is not None


def test_only_so_much_of_a_name_is_remembered() -> None:
    """A thread is loaded with all that it remembers."""
    decision = decided(GATE, option_id="always").with_(by="x" * REASON_CHARS)
    remembered = remembered_of(decision, GATE, "send", None)
    assert remembered is not None
    assert len(remembered.by or "") == 200


def test_an_end_without_a_decision_is_not_remembered() -> None:
    """Nobody has said anything."""
    assert remembered_of(Decision(resolution="expired", option_id="always"), GATE, "send", "d") is None


def test_a_remembered_decision_is_for_its_tool_and_arguments_alone() -> None:
    """All calls of the tool if no arguments are named; a call whose arguments are not known is not among named ones."""
    for_tool, for_arguments = RememberedDecision(tool="send"), RememberedDecision(tool="send", arguments="d")
    assert matches(for_tool, "send", "d")
    assert matches(for_tool, "send", None)
    assert not matches(for_tool, "drop_table", "d")
    assert matches(for_arguments, "send", "d")
    assert not matches(for_arguments, "send", "e")
    assert not matches(for_arguments, "send", None)
    assert not matches(for_arguments, "drop_table", "d")


def test_arguments_are_the_same_in_whatever_order_they_are_written() -> None:
    """Keys on every level; lists have an order, and what is equal in Python alone is not the same."""
    one = arguments_digest(loads_object('{"a": {"x": [1, {"c": 2, "d": 3}], "y": null}, "b": "z"}'))
    assert one == arguments_digest(loads_object('{"b":"z","a":{"y":null,"x":[1,{"d":3,"c":2}]}}'))
    assert one != arguments_digest(loads_object('{"b":"z","a":{"y":null,"x":[{"d":3,"c":2},1]}}'))
    assert len({arguments_digest({"n": value}) for value in (1, 1.0, True, "1")}) == 4
    assert arguments_digest({"id": 2512292042121000001}) != arguments_digest({"id": 2512292042121000000})
    assert arguments_digest({"\ud800": "\udfff\x00"}) == arguments_digest({"\ud800": "\udfff\x00"})


def test_what_travels_has_no_words() -> None:
    """Ids, kinds and what is accepted are enough to decide; the words stay in the store."""
    words: dict[str, Any] = {"label": "secret", "description": "secret"}
    request = ApprovalRequest(
        prompt="secret",
        options=(ApprovalOption(id="once", **words),),
        questions=(
            ApprovalQuestion(id="q", prompt="secret", header="secret", options=(ApprovalOption(id="o", **words),)),
        ),
    )
    assert "secret" not in dumps(request.without_words())
    decision = decided(NOTED, approved=False, text="secret", reason="secret")
    assert "secret" not in dumps(decision.without_words())
    assert decision.without_words() == Decision(approved=False, by="ann", at=7.0)


def test_a_decision_is_known_again_by_its_digest() -> None:
    """By whom and when is not part of it; every word is."""
    decision = decided(NOTED, approved=False, text="no", reason="late")
    again = decision.with_(by="bob", at=8.0)
    assert decision.digest == again.digest
    for other in (decision.with_(text="yes"), decision.with_(approved=True), decision.without_words()):
        assert decision.digest != other.digest


@pytest.mark.parametrize("expires_s", [0, -1, float("inf"), float("nan"), 1e12])
def test_an_expiry_lies_ahead_and_within_what_a_timer_can_wait(expires_s: float) -> None:
    """A timer for anything else would end at once, or the workflow that sets it."""
    with pytest.raises(ValidationError):
        ApprovalRequest(expires_s=expires_s)
    assert ApprovalRequest(expires_s=0.5).expires_s == 0.5


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ApprovalRequest(display="questions"), "needs questions"),
        (QUESTIONS.with_(display="decision"), "Only a request of display `questions`"),
        (ApprovalRequest(display="select"), "needs options"),
        (ApprovalRequest(options=(OPTIONS[0], OPTIONS[0])), "The options of a request need ids, each its own; 'once'"),
        (ApprovalRequest(options=(ApprovalOption(id=" "),)), "need ids"),
        (QUESTIONS.with_(questions=QUESTIONS.questions * 2), "The questions of a request need ids, each its own"),
        (
            QUESTIONS.with_(questions=(QUESTIONS.questions[0].with_(options=OPTIONS * 2),)),
            "The options of question 'scope'",
        ),
        (ApprovalRequest(options=(ApprovalOption(id="x" * SHAPE_CHARS),)), "at most 8,000 characters"),
    ],
)
def test_a_request_that_nobody_can_answer_is_refused(request_: ApprovalRequest, sentence: str) -> None:
    """So is one that could not travel with its call."""
    with pytest.raises(UsageError) as refused:
        check_request(request_)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("request_", [ApprovalRequest(), GATE, NOTED, SELECT, TEXT, QUESTIONS])
def test_what_can_be_answered_is_taken(request_: ApprovalRequest) -> None:
    """The control, with words however long."""
    check_request(request_.with_(prompt="x" * 10 * SHAPE_CHARS))
