"""Questions of tools in a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.questions import Questions, choice_lines, is_attempt, no_choice, selected
from perdure.messages import ToolResultPart
from perdure.records import Choice
from tests.perdure.cli.reader import ANSWER, CALL, QUESTION, Reader, open_call
from tests.properties import hostile_text

ASKED = Choice(id="q1", call_id="c1", prompt="May I?", choices=("once", "always", "no"), default=2)
LINES = [
    '? get_weather(city="Paris", days=2) asks: May I?',
    "  1 once",
    "  2 always",
    "  3 no (the default)",
    "  Type a number or its words; Enter or Escape alone takes the default.",
    "  Other words interrupt the turn; /say TEXT sends what looks like an answer.",
]


class Asked(Reader):
    """A reader who sees the questions as well, and forgets what it has read before."""

    def __init__(self, **snapshot: object) -> None:
        parts = (CALL, CALL.with_(call_id="c2", tool="other", arguments="{}"))
        calls = (open_call("c1", started=1), open_call("c2", started=1))
        super().__init__(QUESTION, ANSWER.with_(parts=parts), calls=calls, **snapshot)
        self.questions = Questions(self.conversation, self.paper)

    def read(self, **change: object) -> list[str]:
        """What a change adds to the screen."""
        self.paper.text = ""
        if change:
            self.tell(**change)
        self.questions.show()
        return self.lines


def test_a_question_is_asked_once_with_its_choices_numbered() -> None:
    """Whoever was there sees it when it comes, whoever comes later from the snapshot; then it is the current one."""
    for reader, change in ((Asked(), {"choice": ASKED}), (Asked(choices=(ASKED,)), {})):
        assert reader.read(**change) == LINES
        assert reader.questions.current == ASKED
        assert reader.read() == []
        assert reader.read(choice=ASKED.with_(seq=9)) == []


def test_questions_are_asked_one_after_the_other() -> None:
    """The oldest first, so that a number means one thing; an answered one makes room for the next."""
    reader = Asked()
    second = ASKED.with_(id="q2", call_id="c2", prompt="Me too?")
    reader.read(choice=ASKED)
    assert reader.read(choice=second) == []
    lines = reader.read(choice=ASKED.with_(answered=True))
    assert lines[:2] == ["✓ answered: May I?", "? other() asks: Me too?"]
    assert reader.questions.current == second


def test_a_question_in_other_words_is_asked_again() -> None:
    """A tool may replace its question under the same id."""
    reader = Asked()
    reader.read(choice=ASKED)
    assert reader.read(choice=ASKED.with_(prompt="Really?"))[0].endswith("asks: Really?")


def test_the_questions_of_a_call_end_with_its_result() -> None:
    """Nothing is said of them: the result says enough."""
    reader = Asked()
    reader.read(choice=ASKED)
    lines = reader.read(call=open_call("c1", result=ToolResultPart(call_id="c1", content="done")))
    assert lines == ['← get_weather(city="Paris", days=2): done']
    assert reader.questions.current is None


def test_a_link_is_shown_beside_a_question_and_takes_no_answer() -> None:
    """It is to be opened elsewhere, so it is never the current question."""
    link = Choice(id="l1", call_id="c2", kind="oauth", auth_url="https://login.example/?a=1")
    reader = Asked()
    reader.read(choice=ASKED)
    assert reader.read(choice=link) == [
        "? other() goes on as soon as you have signed in here:",
        "  https://login.example/?a=1",
    ]
    assert reader.questions.current == ASKED
    reader.read(choice=ASKED.with_(answered=True))
    assert reader.questions.current is None
    assert reader.read(call=open_call("c2", result=ToolResultPart(call_id="c2", content="in"))) == ["← other(): in"]


@pytest.mark.parametrize(
    ("typed", "choice"),
    [("1", 0), (" 3 ", 2), ("0", None), ("4", None), ("-1", None), ("1" * 5_000, None), ("²", None), ("", None)],
)
def test_a_choice_is_typed_by_its_number(typed: str, choice: int | None) -> None:
    """Numbers count from 1, as they are shown."""
    assert selected(typed, ASKED) == choice


@pytest.mark.parametrize(("typed", "choice"), [("ALWAYS", 1), ("no", 2), ("maybe", None), ("no!", None)])
def test_a_choice_is_typed_by_its_words(typed: str, choice: int | None) -> None:
    """Only as a whole: anything else is a message to the thread."""
    assert selected(typed, ASKED) == choice


@given(hostile_text, st.lists(hostile_text, max_size=3).map(tuple))
def test_whatever_is_typed_is_a_choice_or_none(typed: str, choices: tuple[str, ...]) -> None:
    """No text of the person or the tool breaks the chat, and an answer is always one of the choices."""
    choice = selected(typed, ASKED.with_(choices=choices))
    assert choice is None or 0 <= choice < len(choices)


def test_what_a_tool_asks_is_not_obeyed_by_the_terminal() -> None:
    """Prompt, choices and link are made safe, and each stays on its line."""
    evil = "\x1b[2J\nfake"
    reader = Asked()
    lines = reader.read(choice=Choice(id="q", call_id="c1", prompt=evil, choices=(evil,)))
    assert lines[1] == choice_lines(Choice(id="q", call_id="c1", choices=(evil,)))[0] == "  1 ␛[2J␊fake (the default)"
    lines += reader.read(choice=Choice(id="l", call_id="c2", kind="oauth", auth_url=f"https://x/{evil}"))
    assert sum("␛[2J␊fake" in line for line in lines) == 3
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    "typed",
    ["0", "4", " 99 ", "-1", "+2", "2.", "#2", "1.5", "(1)", "1" * 5_000, "Alway", "allways", "no!", "n", "ONCE."],
)
def test_a_slip_of_the_finger_is_no_message(typed: str) -> None:
    """A number that is no choice, and nearly the words of one, are meant as an answer: neither taken nor sent."""
    assert selected(typed, ASKED) is None
    assert is_attempt(typed, ASKED)


@pytest.mark.parametrize(
    "typed", ["2x", "X2", "2\\", "1 2", "2 x", "3d", "1q!", "2nd", "option 2", "Answer: 7", "no. 2"]
)
def test_a_number_that_is_mistyped_is_no_message(typed: str) -> None:
    """A letter that slipped in beside it, or more than the number: it is not guessed which choice was meant."""
    assert selected(typed, ASKED) is None
    assert is_attempt(typed, ASKED)


@pytest.mark.parametrize(
    "typed", ["", "  ", "not now", "No, tell me why first", "ask me in 3 days", "²", "what?", "no" * 5_000]
)
def test_words_stay_words(typed: str) -> None:
    """What does not look like an answer is something to say."""
    assert not is_attempt(typed, ASKED)


@pytest.mark.parametrize(
    "typed", ["2 days", "30 s each", "use 2 of 3", "it is 2xl", "B2B", "option 2 please", "🙂 2 go"]
)
def test_words_with_a_number_stay_words(typed: str) -> None:
    """More than one letter beside it makes a word of it."""
    assert not is_attempt(typed, ASKED)


def test_what_is_no_choice_is_told_what_is() -> None:
    """The sentence names what was typed, safe and clipped, and the choices there are."""
    assert no_choice("7", ASKED) == "There is no choice 7: give a number from 1 to 3, or the words of a choice."
    only = ASKED.with_(choices=("yes",))
    assert no_choice("\x1b2\n3", only) == "There is no choice �2 3: give 1, or the words of a choice."
    assert len(no_choice("9" * 5_000, ASKED)) < 160


@given(hostile_text, st.lists(hostile_text, max_size=3).map(tuple))
def test_no_text_breaks_the_look_for_slips(typed: str, choices: tuple[str, ...]) -> None:
    """Whatever is typed at whatever question, it is a slip or it is none, and a question without choices knows none."""
    question = ASKED.with_(choices=choices)
    assert is_attempt(typed, question) in (True, False)
    assert not is_attempt(typed, ASKED.with_(choices=()))
    assert "\n" not in no_choice(typed, question)
