"""Ids by their beginnings."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.prefixes import SHORT_CHARS, named, short_ids
from perdure.errors import UsageError

KNOWN = ("abcdef", "abcxyz", "abc", "zebra")


@pytest.mark.parametrize(("typed", "found"), [("abcd", "abcdef"), ("z", "zebra"), ("abc", "abc"), ("abcxyz", "abcxyz")])
def test_a_beginning_is_enough_if_no_other_has_it(typed: str, found: str) -> None:
    """An id that is the beginning of another one is meant by itself."""
    assert named(typed, KNOWN, "message") == found


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("ab", "3 messages begin with 'ab': abc, abcdef, abcxyz. Give more of the id."),
        ("q\x1b", "No message of this thread has the id 'q�', or one that begins so."),
        ("", "No message of this thread has the id '', or one that begins so."),
        ("abcdefg", "No message of this thread has the id 'abcdefg', or one that begins so."),
    ],
)
def test_what_is_not_clear_is_said(typed: str, said: str) -> None:
    """Nothing is guessed: it could be deleted."""
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        named(typed, KNOWN, "message")


def test_of_many_only_some_are_named() -> None:
    """The line stays readable."""
    with pytest.raises(UsageError, match=r"^9 calls begin with 'c': c0, c1, c2, c3, c4 and others\. Give"):
        named("c", [f"c{number}" for number in range(9)], "call")


@given(st.sets(st.text("abc", min_size=1, max_size=12), max_size=30))
def test_a_short_id_means_its_own(ids: set[str]) -> None:
    """Whatever is shown can be typed, and is as short as that allows, but for the least length."""
    short = short_ids(ids)
    assert short.keys() == ids
    for id, name in short.items():
        assert named(name, ids, "message") == id
        if SHORT_CHARS < len(name) < len(id):
            with pytest.raises(UsageError, match="begin with"):
                named(name[:-1], ids, "message")
