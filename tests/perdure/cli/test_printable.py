"""What others wrote is shown and never obeyed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.printable import one_line, printable

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "attack",
    [
        "\x1b[2J\x1b[H",  # clear the screen
        "\x1b]52;c;cm0gLXJmIC8=\x07",  # write to the clipboard
        "\x1b]8;;https://evil.example\x1b\\bank\x1b]8;;\x1b\\",  # a link that reads otherwise
        "\x1bP$q\x1b\\",  # make the terminal answer, as if typed
        "\x9b31m",  # the same as one character
        "safe\rEVIL",  # overwrite the line
        "a\x08\x08b",
        "user\u202etxt.exe",  # reverse the reading direction
        "\ud83d",  # half of a character
        "NUL \x00",
    ],
)
def test_nothing_is_left_that_a_terminal_obeys(attack: str) -> None:
    """Escape sequences, control characters and direction overrides become symbols."""
    assert OBEYED.search(attack), "the control: it is in there before"
    assert not OBEYED.search(printable(attack))
    printable(attack).encode()


@given(st.text(), st.text())
def test_a_stream_may_be_cut_anywhere(first: str, second: str) -> None:
    """Pieces are made safe one by one, with the same result as the whole."""
    assert printable(first) + printable(second) == printable(first + second)
    assert not OBEYED.search(printable(first))


def test_what_people_write_stays() -> None:
    """Letters of any script, emoji with joiners, line ends and tabs (as spaces) are shown as they are."""
    assert printable("Žluťoučký 🧑‍🚀 漢字\n\tx") == "Žluťoučký 🧑‍🚀 漢字\n    x"
    assert one_line("a\nb") == "a␊b"
