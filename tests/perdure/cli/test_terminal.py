"""Rows of a terminal. What a person sees of it is tested with the chat, in a terminal of its own."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from perdure.cli.terminal import split_row


@given(st.text(st.sampled_from("ab 漢🙂é"), min_size=1, max_size=60), st.integers(2, 20))
def test_a_full_row_is_cut_between_words_and_loses_nothing(text: str, width: int) -> None:
    """A row fits; a word is cut only if it fills a row by itself; the blank at the cut is all that goes."""
    if cell_len(text) <= width:
        text += "x" * (width + 1)
    row, rest = split_row(Text(text), width)
    assert 0 < cell_len(row.plain) <= width
    assert text in (row.plain + rest.plain, f"{row.plain} {rest.plain}")
    if text == row.plain + rest.plain:
        assert " " not in row.plain[1:], "it was not cut at a blank though there was one"


def test_styles_survive_the_cut() -> None:
    """Each half keeps the style of its words."""
    text = Text("dim ", style="").append("words here", "dim")
    row, rest = split_row(text, 10)
    assert (row.plain, rest.plain) == ("dim words", "here")
    assert [(span.start, span.end, span.style) for span in row.spans] == [(4, 9, "dim")]
    assert [span.style for span in rest.spans] == ["dim"]


@given(st.text(st.sampled_from("a 漢🙂"), min_size=2, max_size=20))
def test_a_window_of_one_column_ends_nothing(text: str) -> None:
    """Each row takes at least a letter, also one that is too wide for it, so that a row is ended at some time."""
    rows, rest = 0, Text(text)
    while cell_len(rest.plain) > 1:
        row, rest = split_row(rest, 1)
        assert row.plain
        rows += 1
    assert rows <= len(text)
