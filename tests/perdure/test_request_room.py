"""What gives way when a request would be larger than a provider takes (B54)."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.messages import FilePart, FileRef, Part, Role, TextPart, ToolResultPart
from perdure.request_room import ITEM_BYTES, LONG_CHARS, SHOWN_CHARS, Room, fitted
from perdure.view import ModelText, Request, Response, Result, UserFile, UserText, Viewed, view
from perdure.view_files import LEFT_OUT
from tests.perdure.view_paths import call, messages, path, user
from tests.perdure.view_rules import items, shown_files, violations

MB = 1_000_000


def shot(blob: str, size_bytes: int = 3 * MB) -> Part:
    """An image of the user."""
    return FilePart(media_type="image/png", blob=blob, size_bytes=size_bytes)


def image(blob: str, size_bytes: int = 3 * MB) -> FileRef:
    """An image in a result."""
    return FileRef(media_type="image/png", blob=blob, size_bytes=size_bytes)


def weight(seen: tuple[Viewed, ...]) -> int:
    """Bytes of all texts and files as JSON, by a way of its own; what an item does not have weighs nothing."""
    files = sum(4 * -(-file.size_bytes // 3) for file in shown_files(seen))
    texts = [getattr(item, name, None) for item in items(seen) for name in ("text", "arguments", "signature")]
    return files + sum(len(json.dumps(text)) for text in texts if text)


def test_b54_a_forty_images_in_results_give_way_and_the_question_is_read() -> None:
    """B54 (a): 42 results of 0.8 MB each, then a question: the oldest are notes, the newest stays, all is within."""
    rows: list[tuple[Role, list[Part]]] = [user("go")]
    for number in range(42):
        taken = ToolResultPart(call_id=f"c{number}", content="shot", files=(image(f"f{number}", 600_000),))
        rows.append(("assistant", [call(f"c{number}"), taken]))
    seen = view(path(*rows, user("status?")))
    assert violations(seen) == []
    shown = [file.blob for file in shown_files(seen)]
    assert shown == [f"f{number}" for number in range(42 - len(shown), 42)]
    assert len(shown) >= 12
    assert weight(seen) <= 20 * MB
    assert items(seen)[-1] == UserText("status?")
    notes = [item.text for item in items(seen) if isinstance(item, Result) and not item.files]
    assert set(notes) == {f"shot\n\n[file: image/png, 600000 bytes; {LEFT_OUT}]"}
    # The control: without a bound all of them would go along.
    assert weight(view(path(*rows), limit=1_000 * MB)) > 20 * MB


def test_b54_the_oldest_files_give_way_and_the_newest_stays() -> None:
    """B54 (a), (b): files over the limit become notes, oldest first; one that is too large by itself goes at once."""
    shots: list[tuple[Role, list[Part]]] = [("user", [shot(f"b{number}")]) for number in range(6)]
    seen = items(view(path(*shots), limit=10 * MB))
    assert [item.blob for item in seen if isinstance(item, UserFile)] == ["b4", "b5"]
    notes = [item.text for item in seen if isinstance(item, UserText)]
    assert len(notes) == 4
    assert all("left out" in note for note in notes)
    huge = path(("user", [shot("b", 8 * MB), TextPart(text="status?")]))
    assert [type(item) for item in items(view(huge, limit=10 * MB))] == [UserText, UserText]


def test_b54_files_of_results_give_way_with_those_of_the_user() -> None:
    """B54: one limit for both, the oldest go first, each leaves a note where it was and the text stays."""
    rows: list[tuple[Role, list[Part]]] = [user("go"), ("user", [shot("u")])]
    for n in range(3):
        taken = ToolResultPart(call_id=f"c{n}", content=f"shot {n}", files=(image(f"f{n}"),))
        rows.append(("assistant", [call(f"c{n}"), taken]))
    seen = view(path(*rows), limit=15 * MB)
    assert [file.blob for file in shown_files(seen)] == ["f2"]
    assert [file.blob for file in shown_files(view(path(*rows[:-1]), limit=15 * MB))] == ["u", "f0", "f1"]
    note = f"[file: image/png, {3 * MB} bytes; {LEFT_OUT}]"
    assert [item.text for item in items(seen) if isinstance(item, UserText)] == ["go", note]
    assert [item.text for item in items(seen) if isinstance(item, Result)] == [
        f"shot 0\n\n{note}",
        f"shot 1\n\n{note}",
        "shot 2",
    ]


def test_b54_a_file_too_large_by_itself_takes_no_other_along() -> None:
    """B54 (b): of one result the others stay, and the note says which one went."""
    mixed = ToolResultPart(call_id="c1", content="two", files=(image("huge", 9 * MB), image("small")))
    seen = view(path(user("go"), ("assistant", [call("c1"), mixed])), limit=10 * MB)
    assert [file.blob for file in shown_files(seen)] == ["small"]
    answer = seen[2].items[0]
    assert isinstance(answer, Result)
    assert answer.text == f"two\n\n[file: image/png, {9 * MB} bytes; {LEFT_OUT}]"


def test_b39_b54_the_beginning_stays_until_the_limit_is_crossed_again() -> None:
    """B39, B54: the beginning changes when files give way, and then not with every new one."""
    rows: list[tuple[Role, list[Part]]] = [user("go")]
    requests: list[list[object]] = []
    for number in range(16):
        taken = ToolResultPart(call_id=f"c{number}", content="shot", files=(image(f"f{number}"),))
        rows.append(("assistant", [call(f"c{number}"), taken]))
        requests.append(items(view(path(*rows), limit=25 * MB)))
    changed = [number for number, (a, b) in enumerate(pairwise(requests)) if b[: len(a)] != a]
    assert changed == [5, 9, 13]


def test_long_results_are_cut_when_there_is_no_file_left_to_give_way() -> None:
    """The oldest first, to their beginning and a note that says how the agent reads the rest; the newest is whole."""
    rows: list[tuple[Role, list[Part]]] = [user("go")]
    for number in range(6):
        rows.append(("assistant", [call(f"c{number}"), ToolResultPart(call_id=f"c{number}", content="é" * 20_000)]))
    seen = view(path(*rows), limit=500_000)
    results = [item for item in items(seen) if isinstance(item, Result)]
    assert [len(result.text) == 20_000 for result in results] == [False, False, False, False, True, True]
    go_on = f'Read on with read_result(call_id="c0", offset={2 * SHOWN_CHARS}).'
    note = f"[Cut off here to keep the request within its size limit. {go_on}]"
    assert results[0].text == f"{'é' * SHOWN_CHARS}\n\n{note}"
    assert weight(seen) <= 500_000


def test_files_give_way_before_words_and_short_words_never_do() -> None:
    """Words of people and of the model are cut only if they are long, and after all files but the newest."""
    long, short = "x" * 300_000, "y" * LONG_CHARS
    said: list[tuple[Role, list[Part]]] = [user(long), ("assistant", [TextPart(text=long)]), user(short)]
    roomy = items(view(path(*said, ("user", [shot("a", 150_000), shot("b", 150_000)])), limit=900_000))
    assert roomy[:3] == [UserText(long), ModelText(long), UserText(short)]
    assert [file.blob for file in roomy if isinstance(file, UserFile)] == ["b"]
    tight = items(view(path(*said, ("user", [shot("b", 150_000)])), limit=700_000))
    assert [len(item.text) for item in tight if isinstance(item, UserText | ModelText)][2] == LONG_CHARS
    assert isinstance(tight[0], UserText)
    assert tight[0].text.startswith("x" * SHOWN_CHARS + "\n\n[Cut off here")
    assert tight[-1] == UserFile("b", "image/png", 150_000)


@given(st.lists(messages, max_size=8), st.integers(3_000, 60_000))
@settings(max_examples=150)
def test_a_request_is_within_its_bound_or_known_to_be_beyond_it(
    given_messages: list[tuple[Role, list[Part]]], limit: int
) -> None:
    """Whatever is in it: what is shown weighs no more than the bound, unless the room says that nothing helps."""
    whole = view(path(*given_messages), limit=10**9)
    room = Room(limit)
    for message in whole:
        room.add(message)
    shown = fitted(whole, limit)
    assert weight(shown) <= room.used
    assert room.is_crossed or weight(shown) + ITEM_BYTES * len(items(shown)) <= limit
    assert [type(message) for message in shown] == [type(message) for message in whole]


def test_a_request_of_nothing_but_short_words_may_be_beyond_its_bound() -> None:
    """The control: then there is nothing to give way, which is said and not passed over."""
    room = Room(10_000)
    for number in range(40):
        room.add(Request((UserText(f"words {number}"),)) if number % 2 else Response((ModelText("so"),)))
    assert room.is_crossed
    assert not room.gone


@pytest.mark.parametrize("text", ["a", "é", "😀", "\x00", '"'])
def test_texts_weigh_what_they_take_in_the_most_wasteful_client(text: str) -> None:
    """Some write JSON in ASCII only, where a character takes up to twelve bytes."""
    room = Room()
    room.add(Request((UserText(text * 1_000),)))
    assert room.used == len(json.dumps(text * 1_000)) + ITEM_BYTES
