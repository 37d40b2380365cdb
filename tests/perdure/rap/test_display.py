"""What people are shown of a result and of a call."""

import json

import pytest
from hypothesis import given

from perdure.rap.display import call_text, display_json, shown
from tests.properties import hostile_text, json_values

TEXT = {"type": "text", "content": "Changed one line."}
DIFF = {"type": "diff", "content": {"path": "a.txt", "patch": "-1\n+2\n"}}
IMAGE = {"type": "image", "content": {"data": "aGk=", "mediaType": "image/png"}}
HOLOGRAM = {"type": "hologram", "content": {"depth": 3}}


def test_the_words_of_the_result_come_last() -> None:
    """All segments are kept in their order, also those that only other readers know."""
    kept = display_json([HOLOGRAM, DIFF], "ok")
    assert kept is not None
    assert json.loads(kept) == [HOLOGRAM, DIFF, {"type": "text", "content": "ok"}]


def test_words_that_are_there_already_are_not_added_again() -> None:
    """Servers put them last themselves."""
    kept = display_json([IMAGE, TEXT], "Changed one line.")
    assert kept is not None
    assert json.loads(kept) == [IMAGE, TEXT]


@pytest.mark.parametrize("display_as", [None, [], "text", {}, 7, ["text"], [{"content": "x"}], [{"type": "text"}]])
def test_without_segments_there_is_nothing_to_keep(display_as: object) -> None:
    """Absent, null, empty, or of a shape that says nothing: the result is not refused for what only people see."""
    assert display_json(display_as, "ok") is None


@pytest.mark.parametrize(
    ("segments", "seen"),
    [
        ([DIFF, TEXT], "a.txt\n-1\n+2\n"),
        ([HOLOGRAM, IMAGE, TEXT], "Changed one line."),
        ([HOLOGRAM], "ok"),
        ([{"type": "diff", "content": "no object"}, TEXT], "Changed one line."),
        ([{"type": "text", "content": {"a": 1}}], "ok"),
    ],
)
def test_the_first_segment_that_can_be_shown_is(segments: list[object], seen: str) -> None:
    """A terminal shows texts and diffs; what it does not know, or cannot read, it skips."""
    assert shown(display_json(segments, "ok"), "ok") == seen


def test_who_can_show_images_gets_them() -> None:
    """What is best depends on who looks."""
    kept = display_json([IMAGE, TEXT], "ok")
    assert shown(kept, "ok", types={"image", "text"}) == "[image: image/png]"


@pytest.mark.parametrize("display", [None, "", "{", "7", '{"type":"text"}'])
def test_what_is_no_display_falls_back_to_the_words(display: str | None) -> None:
    """None was offered, or what is kept cannot be read."""
    assert shown(display, "ok") == "ok"


@given(json_values, hostile_text)
def test_whatever_a_server_offers_something_is_shown(display_as: object, words: str) -> None:
    """Nothing that is meant for people alone can make a result fail."""
    for offered in (display_as, [{"type": "text", "content": display_as}], [{"type": display_as, "content": 1}]):
        assert isinstance(shown(display_json(offered, words), words), str)


def test_a_call_reads_like_one() -> None:
    """Names and values as JSON has them, on one line, not longer than a line or two."""
    assert (
        call_text("get_time", '{"timezone": "Europe/London", "n": [1]}') == 'get_time(timezone="Europe/London", n=[1])'
    )
    assert call_text("get_time", "{}") == "get_time()"
    assert call_text("get_time", "{broken") == "get_time({broken)"
    assert len(call_text("get_time", json.dumps({"text": "x\n" * 9_999}))) <= 200
