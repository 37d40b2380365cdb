"""Tokens of callback URLs: who may speak for which call."""

import string
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.rap.token import callback_token, callback_url, verify
from tests.properties import hostile_text

KEY = b"k" * 32


def test_a_token_is_the_same_in_every_process() -> None:
    """Nothing is stored, so what was handed out months ago must still be right; it is safe anywhere in a path."""
    token = callback_token(KEY, "t1", "call_1")
    assert token == "mHPUeeuJ9zviHdRUSFsTLulCoQar4xWRM8JGcjbcwZU"
    assert set(token) <= set(string.ascii_letters + string.digits + "-_")
    assert verify(KEY, "t1", "call_1", token)


@pytest.mark.parametrize(
    ("key", "thread_id", "call_id"),
    [
        (b"x" * 32, "t1", "call_1"),
        (KEY, "t2", "call_1"),
        (KEY, "t1", "call_2"),
        (KEY, "call_1", "t1"),
        (KEY, "t1c", "all_1"),
        (KEY, "t", "1call_1"),
        (KEY, "", "t1call_1"),
        (KEY, "t1call_1", ""),
    ],
)
def test_a_token_is_of_no_use_for_anything_else(key: bytes, thread_id: str, call_id: str) -> None:
    """Another installation, thread or call; also where the two ids are the same letters, divided elsewhere."""
    assert not verify(key, thread_id, call_id, callback_token(KEY, "t1", "call_1"))


def test_a_token_that_was_changed_is_refused() -> None:
    """Shortened, padded, longer, in other letters, or none at all."""
    token = callback_token(KEY, "t1", "call_1")
    for changed in (token.lower(), token[:-1], token + "=", token + "A", "A" + token[1:], ""):
        assert not verify(KEY, "t1", "call_1", changed)


@given(hostile_text, hostile_text, hostile_text)
def test_anything_can_be_offered_as_a_token(thread_id: str, call_id: str, token: str) -> None:
    """Also what is not ASCII, which the comparison in constant time refuses as text."""
    assert not verify(KEY, thread_id, call_id, token)
    assert verify(KEY, thread_id, call_id, callback_token(KEY, thread_id, call_id))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1))
def test_every_thread_has_an_address(thread_id: str) -> None:
    """Slashes, spaces and question marks of an id are quoted; call and token are the last pieces of the path."""
    url = callback_url("https://gate.example/base/", thread_id, "call_1", "token")
    place = urlsplit(url)
    assert (place.scheme, place.netloc, place.query, place.fragment) == ("https", "gate.example", "", "")
    *before, call_id, token = place.path.split("/")
    assert (before[:-1], call_id, token) == (["", "base", "callbacks"], "call_1", "token")
    assert unquote(before[-1]) == thread_id
