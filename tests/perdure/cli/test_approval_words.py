"""What is asked before a call runs, in a terminal, and what is typed there."""

from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approval import ApprovalOption, ApprovalQuestion, ApprovalRequest, decision_of
from perdure.cli.approval_words import (
    ARGUMENT_CHARS,
    Said,
    call_line,
    check_command,
    read_answer,
    read_question,
    request_lines,
    ways,
)
from perdure.errors import UsageError
from perdure.inputs import Approval
from perdure.waiting import PendingApproval
from tests.properties import hostile_text

PLAIN = ApprovalRequest()
OPTIONS = (
    ApprovalOption(id="once", label="This once"),
    ApprovalOption(id="always", label="Always", kind="allow_always", grants="arguments"),
    ApprovalOption(id="never", kind="reject_always", description="and nothing like it"),
    ApprovalOption(id="odd", label="Elsewhere", kind="our_own"),
)
OFFERED = ApprovalRequest(options=OPTIONS, allow_freeform=True)
SELECT = ApprovalRequest(display="select", options=OPTIONS[:2], dismissible=True)
FREE = ApprovalRequest(display="select", options=OPTIONS[:2], allow_freeform=True)
TEXT = ApprovalRequest(display="text")
ASKED = ApprovalRequest(
    display="questions",
    questions=(ApprovalQuestion(id="size", options=(ApprovalOption(id="s"),)), ApprovalQuestion(id="name")),
)


@pytest.mark.parametrize(
    ("request_", "typed", "said"),
    [
        (PLAIN, "y", Said(approved=True)),
        (PLAIN, " YES ", Said(approved=True)),
        (PLAIN, "n", Said(approved=False)),
        (PLAIN, "n too much", Said(approved=False, reason="too much")),
        (OFFERED, "1", Said(option_id="once")),
        (OFFERED, "this ONCE", Said(option_id="once")),
        (OFFERED, "never", Said(option_id="never")),
        (OFFERED, "4 y", Said(option_id="odd", approved=True)),
        (OFFERED, "elsewhere", None),
        (OFFERED, "4 no", Said(option_id="odd", approved=False)),
        (OFFERED, "y be quick", Said(approved=True, text="be quick")),
        (SELECT, "2", Said(option_id="always")),
        (SELECT, "", Said(approved=False)),
        (FREE, "the blue one", Said(text="the blue one")),
        (TEXT, "yes", Said(text="yes")),
    ],
)
def test_what_is_typed_is_an_answer(request_: ApprovalRequest, typed: str, said: Said | None) -> None:
    """In the way in which the request can be answered, and the thread takes it as one."""
    if said is None:
        with pytest.raises(UsageError, match="Say yes or no with it: `elsewhere y` or `elsewhere n`"):
            read_answer(typed, request_)
        return
    assert read_answer(typed, request_) == said
    decision_of(request_, Approval(call_id="c", **said.fields), 0.0)


@pytest.mark.parametrize(
    ("request_", "typed"),
    [
        (PLAIN, "sure"),
        (PLAIN, "y please"),
        (PLAIN, "no!"),
        (PLAIN, ""),
        (PLAIN, "1"),
        (OFFERED, "5"),
        (OFFERED, "be quick"),
        (SELECT, "3"),
        (SELECT, "y"),
        (SELECT, "the blue one"),
        (FREE, "3"),
        (FREE, "alway"),
        (FREE, ""),
        (TEXT, " "),
    ],
)
def test_what_is_no_answer_is_told_how_to_answer(request_: ApprovalRequest, typed: str) -> None:
    """A slip, or words where none are asked for, must neither let a call run nor end its turn."""
    with pytest.raises(UsageError) as caught:
        read_answer(typed, request_)
    assert str(caught.value) == f"That is no answer. {ways(request_)}"


def test_the_ways_to_answer_are_those_there_are() -> None:
    """For each kind of request."""
    assert ways(PLAIN) == "Type y or n (`n WHY` tells the model why)."
    assert ways(OFFERED) == "Type y or n (`n WHY` tells the model why), or a number from 1 to 4, or `y WORDS`."
    assert ways(SELECT) == "Type a number from 1 to 2. Enter or Escape alone dismisses it."
    assert ways(FREE) == "Type a number from 1 to 2, or words of your own."
    assert ways(TEXT) == "Type words of your own."


def test_a_question_of_several_takes_options_or_words() -> None:
    """Several options only where several are asked for; the thread takes what is read."""
    one = ApprovalQuestion(id="q", options=OPTIONS[:2])
    many = one.model_copy(update={"multiple": True})
    free = ApprovalQuestion(id="q")
    assert read_question("2", one) == {"option_ids": ["always"]}
    assert read_question("2, this once,2", many) == {"option_ids": ["always", "once"]}
    assert read_question("Ann, or Bob", free) == {"text": "Ann, or Bob"}
    for typed, question in (("1,2", one), ("1,3", many), ("", many), (" ", free), ("words", one)):
        with pytest.raises(UsageError, match="That is no answer to 'q'"):
            read_question(typed, question)


def test_a_call_is_shown_whole() -> None:
    """Whoever approves it sees all its arguments, on one line, and of very long ones how much is left out."""
    until = datetime(2096, 12, 1, 9, tzinfo=UTC).timestamp()
    arguments = '{"cmd": "' + "x " * 300 + '; rm\\u001b"}'
    asked = PendingApproval(call_id="c", message_id="m", tool="run", arguments=arguments, due=until)
    line = call_line(asked.with_(request=ApprovalRequest(prompt="Run\nit?")), UTC)
    assert line.startswith('run(cmd="x x x ')
    assert line.endswith('; rm\\u001b") waits for approval until 2096-12-01 09:00 UTC: Run␊it?')
    long = call_line(asked.with_(arguments='{"a": "' + "x" * (ARGUMENT_CHARS + 100) + '"}'), UTC)
    assert "… (109 more characters) waits" in long


def test_options_and_questions_are_numbered() -> None:
    """What is remembered says for what."""
    assert request_lines(OFFERED) == [
        "  1 This once",
        "  2 Always (from now on, with these arguments)",
        "  3 never (from now on, whatever the arguments): and nothing like it",
        "  4 Elsewhere",
    ]
    asked = ApprovalQuestion(id="q", header="Size", prompt="How big?", options=OPTIONS[:1])
    assert request_lines(ApprovalRequest(display="questions", questions=(asked,))) == [
        "  q: Size: How big?",
        "  1 This once",
    ]


@given(hostile_text, st.sampled_from([PLAIN, OFFERED, SELECT, FREE, TEXT]))
def test_whatever_is_typed_is_an_answer_or_is_refused(typed: str, request_: ApprovalRequest) -> None:
    """What is read as an answer is one that the thread takes."""
    try:
        said = read_answer(typed, request_)
    except UsageError:
        return
    decision_of(request_, Approval(call_id="c", **said.fields), 0.0)


@pytest.mark.parametrize(
    ("request_", "said", "reason"),
    [
        (PLAIN, Said(True, text="words"), "No words of your own are asked for; say why with --reason"),
        (OFFERED, Said(True, option_id="9"), "There is no option '9': --option takes a number from 1 to 4"),
        (OFFERED, Said(True, option_id="never"), "The option 'never' says the opposite: `perdure deny` chooses it"),
        (OFFERED, Said(False, option_id="once"), "says the opposite: `perdure approve` chooses it"),
        (SELECT, Said(True), "More is asked than yes or no: --option takes a number from 1 to 2, or the words"),
        (FREE, Said(False), "This has to be answered: --option takes .*; --text takes words"),
        (TEXT, Said(True), "More is asked than yes or no: --text takes words of your own"),
        (ASKED, Said(True), "Not answered: size, name. Give --answer QUESTION=ANSWER for each question"),
        (ASKED, Said(answers={"size": {"text": "s"}}), "Not answered: name"),
        (ASKED, Said(answers={"size": {}, "name": {}}, text="x"), "leave --option and --text out"),
        (ASKED, Said(False), "has to be answered, with `perdure approve` and --answer"),
    ],
)
def test_a_command_that_answers_nothing_is_told_in_its_own_words(
    request_: ApprovalRequest, said: Said, reason: str
) -> None:
    """Options of the command instead of fields of an interface that nobody at a terminal has seen."""
    with pytest.raises(UsageError, match=reason) as raised:
        check_command(request_, said, tuple(said.answers or ()))
    for field in ("`approved", "`reason", "`text", "`answers"):
        assert field not in str(raised.value)


@pytest.mark.parametrize("dismissible", [False, True])
def test_what_a_command_may_say_is_an_answer(dismissible: bool) -> None:
    """Whatever passes the check of the command decides; what does not would not have."""
    answers = {"size": {"option_ids": ["s"]}, "name": {"text": "Ann"}}
    passed = 0
    for request in (PLAIN, OFFERED, SELECT, FREE, TEXT, ASKED):
        asked = request.with_(dismissible=dismissible)
        for approved, option_id, text, answered in product(
            (True, False), (None, "once", "never", "odd", "?"), (None, "words"), (None, answers)
        ):
            said = Said(None if answered else approved, option_id, text, answered)
            if answered and request is not ASKED:
                continue  # of a call that asks no questions none is found that could be answered
            decides = True
            try:
                decision_of(asked, Approval(call_id="c", **said.fields), 0.0)
            except UsageError:
                decides = False
            with nullcontext() if decides else pytest.raises(UsageError):
                check_command(asked, said, tuple(answered or ()))
            passed += decides
    assert passed > 20, "the control: some of them are answers"
