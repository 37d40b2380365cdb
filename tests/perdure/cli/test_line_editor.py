"""The line that a person types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.line_editor import Dismissed, EndOfInput, LineEditor, Submitted

LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = b"\x1b[D", b"\x1b[C", b"\x1b[A", b"\x1b[B", b"\x1b[H", b"\x1b[F", b"\x1b[3~"
PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (b"helo" + LEFT + b"l", "hello"),
        (b"ello" + HOME + b"h", "hello"),
        (b"ello\x01h\x05!", "hello!"),
        (b"hello!!\x7f\x08" + END, "hello"),
        (b"xhello" + HOME + DELETE, "hello"),
        (b"xhello\x01\x04", "hello"),
        (b"one two\x17three", "one three"),
        (b"one two\x15three", "three"),
        (b"one two" + LEFT * 4 + b"\x0b", "one"),
        (b"a" + RIGHT * 3 + b"b" + LEFT * 9 + b"c", "cab"),
        (b"\x7f" + DELETE + b"a", "a"),
        ("žluť 漢字".encode(), "žluť 漢字"),
        (b"a\x1bOHb\x1b[1;5Cc", "bac"),  # other spellings of keys
        (b"a\x1b[15~b\x1b[\x00c", "abc"),  # F5, and what is no sequence at all
        (b"a\x1bxb\x0c\x00c", "abc"),  # Alt-x, Ctrl-L and Ctrl-Space mean nothing
        (b"\xff!", "\ufffd!"),
    ],
)
def test_keys_edit_the_line(keys: bytes, text: str) -> None:
    """The keys that everybody's fingers know do what they do elsewhere."""
    editor = LineEditor()
    assert editor.feed(keys) == []
    assert editor.text == text


@pytest.mark.parametrize("enter", [b"\r", b"\n"])
def test_enter_submits_the_line_and_starts_an_empty_one(enter: bytes) -> None:
    """A line is submitted whole, wherever the cursor is; an empty one is not."""
    editor = LineEditor()
    assert editor.feed(b"hello" + LEFT + enter) == [Submitted("hello")]
    assert (editor.text, editor.cursor) == ("", 0)
    assert editor.feed(b"  " + enter) == []


def test_ctrl_d_ends_the_input_only_on_an_empty_line() -> None:
    """In a line it deletes, as in a shell."""
    editor = LineEditor()
    assert editor.feed(b"a\x04") == []
    assert editor.feed(b"\x7f\x04") == [EndOfInput()]


def test_a_paste_is_one_message_whatever_is_in_it() -> None:
    """Line ends in pasted text do not submit half of it, and keys in it are not obeyed."""
    editor = LineEditor()
    assert editor.feed(PASTE + b"one\rtwo\r\nthree\x1b[A\x04" + PASTED) == []
    assert editor.feed(b"!\r") == [Submitted("one\ntwo\nthree\x1b[A\x04!")]


def test_earlier_lines_come_back() -> None:
    """Up and down go through what was submitted; a repeated line is there once."""
    editor = LineEditor()
    editor.feed(b"one\rtwo\rtwo\r")
    shown: list[str] = []
    for key in (UP, UP, UP, DOWN, DOWN, DOWN):
        editor.feed(key)
        shown.append(editor.text)
    assert shown == ["two", "one", "one", "two", "", ""]


@pytest.mark.parametrize("key", [b"\x1b", b"\r"])
def test_a_key_on_an_empty_line_dismisses(key: bytes) -> None:
    """Enter or Escape answers whatever asks, but only if nothing at all is typed: a blank is something."""
    editor = LineEditor()
    assert editor.feed(key) == [Dismissed()]
    assert editor.feed(b" " + key) == []
    assert editor.feed(b"\x15ab\x1b") == []
    assert editor.text == "ab"


def test_a_lone_escape_takes_nothing_with_it() -> None:
    """The Escape key by itself does nothing, and the next key is not part of it."""
    editor = LineEditor()
    editor.feed(b"a\x1b")
    editor.feed(b"b")
    assert editor.text == "ab"


@given(st.data())
def test_input_may_be_cut_anywhere(data: st.DataObject) -> None:
    """However the terminal's bytes are cut, the line is the same; only a lone Escape at the cut is a key itself."""
    pieces = [b"h\xc3\xa9", LEFT, HOME, DELETE, PASTE + b"p\x1b[20 q\r" + PASTED, "漢".encode(), b"\x17", b"x\r"]
    keys = b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=8)))
    cut = data.draw(st.integers(0, len(keys)).filter(lambda at: keys[:at][-1:] != b"\x1b"))
    whole, parts = LineEditor(), LineEditor()
    assert whole.feed(keys) == parts.feed(keys[:cut]) + parts.feed(keys[cut:])
    assert (whole.text, whole.cursor) == (parts.text, parts.cursor)
