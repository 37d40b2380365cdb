"""What cannot be imported is refused in one sentence, with its place."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import MAX_LEVELS, dumps, is_json
from perdure.errors import UsageError
from perdure.interchange import FILE_BYTES, MESSAGES, read_import
from perdure.messages import (
    TextPart,
)
from tests.perdure.client_files import (
    RUNNING,
    Json,
    assistant,
    call,
    call_of,
    message_of,
    read,
    text,
    user,
)
from tests.properties import json_values, settings


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"[]", "what it holds must be an object"),
        (b"{}", "messages is missing"),
        (b'{"messages": 3}', "messages must be a list"),
        (b'{"messages": [3]}', r"messages\[0\] must be an object"),
        (b'{"messages": [{}]}', r"messages\[0\]\.message must be an object"),
        (b'{"messages": [], "headId": 3}', "headId must be 1 to 200 characters"),
        (b'{"messages": [], "perdure": 3}', "perdure must be an object"),
        (b'{"messages": [], "perdure": {"agent": ""}}', r"perdure\.agent must be 1 to 200 characters"),
        (b'{"messages": NaN}', "NaN is not JSON"),
        (b'{"messages": [1e999]}', "too large"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}", r"messages\[0\] must be an object"),
        (b'{"messages": ' + b"9" * 5_000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_export_is_refused(data: bytes, reason: str) -> None:
    """In one sentence that says what is wrong with it, whatever it is."""
    with pytest.raises(UsageError, match=reason) as caught:
        read_import(data)
    assert str(caught.value).startswith("The file ")
    assert str(caught.value).endswith(".")


def nested(levels: int) -> object:
    """A list in a list, and so on."""
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


DEEP: Any = nested(101)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"id": ""}, r"messages\[1\]\.message\.id must be 1 to 200 characters without control characters"),
        ({"id": "x" * 201}, r"message\.id must be"),
        ({"id": "a\x1fb"}, r"message\.id must be"),
        ({"id": "a\ud800"}, r"message\.id must be"),
        ({"id": 3}, r"message\.id must be"),
        ({"role": "tool"}, r"message\.role must be user, assistant or system"),
        ({"role": ["user"]}, r"message\.role must be"),
        ({"content": 3}, r"message\.content must be a list"),
        ({"content": ["hi"]}, r"message\.content\[0\] must be an object"),
        ({"content": [{"text": "hi"}]}, r"message\.content\[0\]\.type must be text"),
        ({"content": [text("hi"), {"type": "text", "text": 3}]}, r"message\.content\[1\]\.text must be text"),
        (
            {"content": [{"type": "text", "text": "x", "perdure": {"step": -1}}]},
            r"content\[0\]\.perdure\.step must be a",
        ),
        ({"content": [{"type": "text", "text": "x", "perdure": {"step": True}}]}, r"perdure\.step must be a number"),
        (
            {"content": [{"type": "text", "text": "x", "perdure": {"provider": 3}}]},
            r"content\[0\] is not a part of ours",
        ),
        (
            {"content": [{"type": "file", "data": "%", "mimeType": "a/b"}]},
            r"content\[0\]\.data must hold bytes in base64",
        ),
        (
            {"content": [{"type": "data", "name": "perdure", "data": {"kind": "x"}}]},
            r"content\[0\]\.data is not a part",
        ),
        ({"content": [{"type": "data", "name": "perdure", "data": 3}]}, r"content\[0\]\.data must be an object"),
        ({"createdAt": "soon"}, r"message\.createdAt must be a time"),
        ({"createdAt": "0001-01-01T00:00:00+23:00"}, r"message\.createdAt must be a time"),
        ({"createdAt": 3}, r"message\.createdAt must be text"),
        ({"metadata": []}, r"message\.metadata must be an object"),
        ({"metadata": {"custom": [3]}}, r"message\.metadata\.custom must be an object"),
        ({"metadata": {"custom": {"k": DEEP}}}, r"message\.metadata\.custom is nested too deeply"),
        ({"perdure": {"source_id": "\x00"}}, r"message\.perdure\.source_id must be"),
        ({"attachments": [{"content": [text("x"), 3]}]}, r"message\.attachments\[0\]\.content\[1\] must be an object"),
        ({"content": [text("x")] * 10_001}, r"message\.content has 10,001 entries, and at most 10,000 are taken"),
    ],
)
def test_a_fault_is_told_with_its_place(message: Json, reason: str) -> None:
    """As whoever has the file open finds it."""
    with pytest.raises(UsageError, match=reason):
        read(user("first"), user("u", **message) if "id" not in message else {"message": {"role": "user", **message}})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"toolName": None}, r"content\[0\]\.toolName must be text"),
        ({"toolCallId": "\x00"}, r"content\[0\]\.toolCallId must be"),
        ({"args": []}, r"content\[0\]\.args must be an object"),
        ({"args": {"k": DEEP}}, r"content\[0\]\.args is nested too deeply"),
        ({"result": DEEP}, r"content\[0\]\.result is nested too deeply"),
        ({"result": 1, "artifact": DEEP}, r"content\[0\]\.artifact is nested too deeply"),
        ({"result": 1, "modelContent": DEEP}, r"content\[0\]\.modelContent is nested too deeply"),
        ({"result": 1, "isError": "no"}, r"content\[0\]\.isError must be true or false"),
        ({"approval": 3}, r"content\[0\]\.approval must be an object"),
        ({"approval": {"id": "x", "approved": "yes"}}, r"content\[0\]\.approval\.approved must be true or false"),
        ({"approval": {"id": "x", "resolution": "gone"}}, r"approval\.resolution must be cancelled or expired"),
        ({"approval": {"id": "x", "options": [{"id": 3}]}}, r"content\[0\]\.approval\.options\[0\]\.id must be"),
        ({"perdure": {"approval": {"expires_s": -1}}}, r"content\[0\]\.approval is not one of ours"),
        ({"interrupt": "x"}, r"content\[0\]\.interrupt must be an object"),
        ({"result": 1, "perdure": {"result": {"blob": "abc"}}}, r"must be an object"),
        ({"result": 1, "perdure": {"result": {"files": [{"media_type": "a/b"}]}}}, r"files\[0\] must be an object"),
        ({"perdure": 3}, r"content\[0\]\.perdure must be an object"),
    ],
)
def test_a_fault_of_a_call_is_told_with_its_place(fields: Json, reason: str) -> None:
    """In whatever field it is."""
    with pytest.raises(UsageError, match=reason):
        read(user("u"), assistant("a", "u", call(**fields)))


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("running", r"message\.status must be an object"),
        ({"type": "failed"}, r"message\.status\.type must be one of running, requires-action, complete, incomplete"),
        ({"type": 3}, r"message\.status\.type must be text"),
        ({"type": "complete", "reason": 3}, r"message\.status\.reason must be text"),
    ],
)
def test_a_fault_of_a_status_is_told_with_its_place(status: object, reason: str) -> None:
    """An unknown state is refused; an unknown reason is not."""
    with pytest.raises(UsageError, match=reason):
        read(user("u"), assistant("a", "u", status=status))


def test_a_fault_beside_a_message_is_told_with_its_place() -> None:
    """Where it stands in the item."""
    with pytest.raises(UsageError, match=r"messages\[0\]\.runConfig must be an object"):
        read({**user("u"), "runConfig": 3})
    with pytest.raises(UsageError, match=r"messages\[0\]\.parentId must be 1 to 200 characters"):
        read({**user("u"), "parentId": ""})


@pytest.mark.parametrize(("levels", "refused"), [(MAX_LEVELS - 1, False), (MAX_LEVELS, True)])
def test_values_are_as_deep_as_they_can_be_stored(levels: int, refused: bool) -> None:
    """As deep as the codec takes, the object around them included, and not deeper."""
    entry = call(args={"k": nested(levels)})
    del entry["argsText"]
    assert is_json(entry["args"]) != refused
    if refused:
        with pytest.raises(UsageError, match="args is nested too deeply"):
            read(user("u"), assistant("a", "u", entry))
    else:
        assert call_of(message_of(read(user("u"), assistant("a", "u", entry)), "a")).arguments == dumps(entry["args"])


@pytest.mark.parametrize("order", [[0, 0], [1], [1, 2], [-1, 0], ["1", "0"], [True, False], "10", None])
def test_an_order_of_other_parts_says_nothing(order: object) -> None:
    """Only one that names each part once; else they stand as the entries do."""
    entries = [text("a"), text("b")]
    for told, words in ((order, "ab"), ([1, 0], "ba")):
        message = message_of(read(user("u"), assistant("x", "u", *entries, perdure={"order": told})), "x")
        assert "".join(part.text for part in message.parts if isinstance(part, TextPart)) == words


def test_a_file_has_limits() -> None:
    """In bytes and in messages."""
    with pytest.raises(UsageError, match=r"has 67,108,865 bytes, and at most 67,108,864 can be imported"):
        read_import(b" " * (FILE_BYTES + 1))
    with pytest.raises(UsageError, match=r"messages has 100,001 entries, and at most 100,000 are taken"):
        read_import(dumps({"messages": [0] * (MESSAGES + 1)}).encode())


def test_blobs_are_those_of_the_file() -> None:
    """A file cannot name a blob of the thread that it does not hold."""
    stolen = {"type": "text", "text": "x", "perdure": {"blob": "0" * 64}}
    part = message_of(read(user("u", content=[stolen])), "u").parts[0]
    assert isinstance(part, TextPart)
    assert part.blob is None
    named = {"type": "data", "name": "perdure", "data": {"kind": "text", "blob": "0" * 64}}
    with pytest.raises(UsageError, match="must be an object"):
        read(user("u", content=[named]))


FIELDS = (
    "id role content type text parentId message messages headId status reason metadata custom perdure name data kind "
    "toolCallId toolName args argsText result approval options attachments step parts createdAt"
)
WORDS = ["user", "assistant", "system", "text", "tool-call", "data", "perdure", "event", "m"]

_wild: st.SearchStrategy[Any] = st.recursive(
    json_values,
    lambda inner: (
        st.dictionaries(st.sampled_from(FIELDS.split()), inner | st.sampled_from(WORDS), max_size=6)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=20,
)


@settings()
@given(value=_wild, message=_wild, entry=_wild)
def test_nothing_but_a_sentence_comes_of_what_is_wild(value: object, message: object, entry: object) -> None:
    """Whatever JSON it is: messages, or an error for whoever gave it."""
    own: Json = {"role": "event", "parts": [entry]}
    for file in (
        value,
        {"messages": [{"message": message}]},
        {"messages": [user("u", content=[entry]), assistant("a", "u", status=RUNNING)]},
        {"messages": [{"message": {"id": "a", "role": "assistant", "content": [entry]}}]},
        {"messages": [{"message": {"id": "a", "role": "assistant", "content": [call(perdure=entry, result=1)]}}]},
        {"messages": [{"message": {"id": "a", "role": "assistant", "content": [call(approval=entry)]}}]},
        {"messages": [{"message": {"id": "s", "role": "system", "perdure": own}}]},
    ):
        # Any other error would be one of ours.
        with contextlib.suppress(UsageError):
            read_import(dumps(file).encode("ascii"))
