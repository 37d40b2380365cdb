"""What is made of the files that clients write."""

import base64

import pytest

from perdure.approval import ApprovalOption
from perdure.imported_part import BESIDE_NOTHING
from perdure.messages import (
    FilePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.perdure.client_files import (
    PAUSED,
    assistant,
    call,
    call_of,
    message_of,
    read,
    results_of,
    text,
    user,
)
from tests.perdure.exported_trees import imported

PNG = b"\x89PNG"


def test_content_may_be_text() -> None:
    """Of the user and of an answer, whose status then is complete."""
    result = read(user("u", content="hi \ud800"), {"parentId": "u", "message": user("a", content="ho")["message"]})
    assert message_of(result, "u").parts == (TextPart(text="hi \ud800"),)
    assert message_of(result, "a").parts == (TextPart(text="ho"),)


def test_files_are_taken_out_of_the_file() -> None:
    """Images, files and recordings, in the content and in attachments, with the names that they have anywhere."""
    encoded_png = base64.b64encode(PNG).decode()
    content = [
        {"type": "image", "image": f"data:image/png;base64,{encoded_png}", "filename": "a.png"},
        {"type": "file", "data": "cGRm", "mimeType": "application/pdf"},
        {"type": "file", "data": "data:text/csv,a%2Cb", "mimeType": "text/csv"},
        {"type": "audio", "audio": {"data": "bXAz", "format": "mp3"}},
    ]
    attachment = {
        "id": "x",
        "name": "b.png",
        "content": [{"type": "image", "image": f"data:image/png;base64,{encoded_png}"}],
    }
    result = read(user("u", content=content, attachments=[attachment]))
    parts = message_of(result, "u").parts
    assert [(part.media_type, part.size_bytes, part.name) for part in parts if isinstance(part, FilePart)] == [
        ("image/png", 4, "a.png"),
        ("application/pdf", 3, None),
        ("text/csv", 3, None),
        ("audio/mp3", 3, None),
        ("image/png", 4, "b.png"),
    ]
    assert sorted(result.files.values()) == [
        ("application/pdf", b"pdf"),
        ("audio/mp3", b"mp3"),
        ("image/png", PNG),
        ("text/csv", b"a,b"),
    ]
    assert set(result.files) == {part.blob for part in parts if isinstance(part, FilePart)}


def test_files_of_messages_that_are_left_out_are_too() -> None:
    """Nothing would ever name them."""
    content = [{"type": "file", "data": "cGRm", "mimeType": "application/pdf"}]
    assert read(user("u"), user("orphan", "gone", content=content)).files == {}
    assert len(read(user("u"), user("child", "u", content=content)).files) == 1


def test_files_elsewhere_stay_addresses() -> None:
    """Nothing is fetched: the address is in the words, and a warning says so."""
    content = [
        {"type": "image", "image": "https://example.org/a.png", "filename": "a.png"},
        {"type": "file", "data": "file-17", "mimeType": "text/plain", "sourceType": "id"},
    ]
    result = read(user("u", content=content))
    assert message_of(result, "u").parts == (
        TextPart(text="[image: a.png, https://example.org/a.png]"),
        TextPart(text="[file: file-17]"),
    )
    assert len(result.warnings) == 1
    assert result.files == {}


def test_parts_of_other_kinds_are_left_out() -> None:
    """With a warning that names kind and message; the rest of the message stays."""
    content = [text("see"), {"type": "source", "sourceType": "url", "id": "1", "url": "https://example.org"}]
    result = read(user("u", content=[text("hi"), call()]), assistant("a", "u", *content, {"type": "data", "name": "x"}))
    assert message_of(result, "u").parts == (TextPart(text="hi"),)
    assert message_of(result, "a").parts == (TextPart(text="see"),)
    assert result.warnings[0].endswith("kinds: tool-call in u, source in a, data in a.")


def test_steps_follow_from_the_calls() -> None:
    """What comes behind calls belongs to the next step; so results stand between the two."""
    content = [
        {"type": "reasoning", "text": "hm"},
        call("c1", result=1),
        call("c2", result=2),
        text("so"),
        call("c3", result=3),
    ]
    message = message_of(read(user("u"), assistant("a", "u", *content)), "a")
    assert [(part.kind, part.step) for part in message.parts] == [
        ("reasoning", 0),
        ("tool_call", 0),
        ("tool_call", 0),
        ("tool_result", 0),
        ("tool_result", 0),
        ("text", 1),
        ("tool_call", 1),
        ("tool_result", 1),
    ]


def test_a_result_may_come_later() -> None:
    """A call that is reported again while it is open takes the result, and keeps what it is; once settled it is new."""
    again = {**call(result="r2"), "toolName": "other"}
    message = message_of(read(user("u"), assistant("a", "u", call(), text("x"), call(result="r1"), again)), "a")
    assert [part.tool for part in message.parts if isinstance(part, ToolCallPart)] == ["buy", "other"]
    assert [part.content for part in message.parts if isinstance(part, ToolResultPart)] == ["r1", "r2"]
    twice = read(user("u"), assistant("a", "u", call(), call()))
    assert len([part for part in message_of(twice, "a").parts if isinstance(part, ToolCallPart)]) == 1
    assert "Calls that are there twice" in twice.warnings[0]


def test_what_clients_keep_beside_a_result_is_handed_on() -> None:
    """Of a final and a preliminary one, whatever value it is; a model reads the result. Without one it is left out."""
    beside: list[dict[str, object]] = [
        {"artifact": {"chart": [1, {"é": None}]}, "modelContent": [{"type": "text", "text": "\x00"}]},
        {"artifact": False, "modelContent": 0},
        {"artifact": ""},
        {"artifact": None},
    ]
    calls = [call(f"c{index}", result="r", **kept) for index, kept in enumerate(beside)]
    calls.append(call("c9", result="half", isPreliminary=True, artifact=[3]))
    file = read(user("u"), assistant("a", "u", *calls, status=PAUSED))
    assert file.warnings == ()
    finals = [part for part in message_of(file, "a").parts if isinstance(part, ToolResultPart)]
    results = [*finals, *(part for one in file.messages for part in one.interim)]
    assert [(one.artifact, one.model_content) for one in results] == [
        ({"chart": [1, {"é": None}]}, [{"type": "text", "text": "\x00"}]),
        (False, 0),
        ("", None),
        (None, None),
        ([3], None),
    ]
    entries = imported(file).export()["messages"][1]["message"]["content"]
    fields = ("artifact", "modelContent")
    told = [{name: entry[name] for name in fields if name in entry} for entry in entries]
    assert told == [*beside[:3], {}, {"artifact": [3]}]
    assert all("perdure" not in entry for entry in entries)
    left_out = read(user("u"), assistant("a", "u", call(artifact=1), status=PAUSED))
    assert left_out.warnings == (f"{BESIDE_NOTHING}: a.",)


@pytest.mark.parametrize(
    ("value", "content"),
    [(False, "false"), (0, "0"), ("", ""), (None, "null"), ("hi", "hi"), ("[1]", "[1]"), ({"a": [1.5]}, '{"a":[1.5]}')],
)
def test_case_37_every_value_is_a_result(value: object, content: str) -> None:
    """False, 0, nothing and null too: only a call without the field is open."""
    message = message_of(read(user("u"), assistant("a", "u", call(result=value), status=PAUSED)), "a")
    assert results_of(message) == {"c1": ("ok", content)}


def test_arguments_are_as_they_were_written() -> None:
    """The text, whatever the client made of it; or the values, if there is no text."""
    entries = [
        call("c1", argsText='{"n": 1.0}'),
        call("c2", argsText='{"n": ', args={"n": 1}),
        {"type": "tool-call", "toolCallId": "c3", "toolName": "t", "args": {"ü": [1]}},
        {"type": "tool-call", "toolCallId": "c4", "toolName": "t", "args": {"n": 2}, "argsText": ""},
        {"type": "tool-call", "toolName": "t"},
    ]
    message = message_of(read(user("u"), assistant("a", "u", *entries)), "a")
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.arguments for part in calls] == ['{"n": 1.0}', '{"n": ', '{"\\u00fc":[1]}', '{"n":2}', "{}"]
    assert calls[-1].call_id.startswith("call_")


def test_what_others_let_people_choose_is_for_these_arguments_only() -> None:
    """Their grants say nothing to us, so a lasting answer is for the least that it may be."""
    option = {"id": "o", "kind": "allow-always", "grants": ["*"], "confirm": {"title": "Sure?"}}
    message = message_of(read(user("u"), assistant("a", "u", call(approval={"id": "q", "options": [option]}))), "a")
    request = call_of(message).approval
    assert request is not None
    assert request.options == (ApprovalOption(id="o", kind="allow_always", grants="arguments", confirm=True),)


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("2026-03-01T12:00:00.000Z", "2026-03-01T12:00:00.000Z"),
        ("2026-03-01T14:00:00+02:00", "2026-03-01T12:00:00.000Z"),
        ("2026-03-01T12:00:00.000123", "2026-03-01T12:00:00.000123Z"),
        (None, None),
    ],
)
def test_times_are_read_as_times(given: str | None, read_as: str | None) -> None:
    """In UTC; a message need not have one."""
    assert read(user("u", createdAt=given)).messages[0].created_at == read_as
