"""How an export shows what we hold, as clients know it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.approval import ApprovalOption, ApprovalQuestion, ApprovalRequest, Decision
from perdure.errors import BlobNotFound, StoreError
from perdure.interchange import export_tree, named_blobs, read_import
from perdure.messages import (
    EventPart,
    FilePart,
    FileRef,
    Message,
    Part,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.records import StoredTree, TreeMessage
from tests.perdure.client_files import (
    Json,
    call_of,
    results_of,
    text,
)
from tests.perdure.exported_trees import encoded, open_call, tree_of

PNG = b"\x89PNG"


def turn(*parts: Part, id: str = "a", **fields: Any) -> TreeMessage:
    """A stored answer at the root."""
    message = Message(id=id, thread_id="t", role="assistant", parts=parts, **fields)
    return TreeMessage(message=message, created_at=datetime(2026, 3, 1, 12, tzinfo=UTC))


def shown(one: TreeMessage, files: dict[str, bytes] | None = None) -> Json:
    """The message in the export of a tree of it alone."""
    message: Json = export_tree(tree_of([one], one.message.id), files or {})["messages"][0]["message"]
    return message


def test_a_turn_is_shown_as_the_client_knows_it() -> None:
    """Each call holds its result, the text of the next step follows; nothing of ours is told that can be inferred."""
    made = ToolCallPart(call_id="c1", tool="weather", arguments='{"city": "Paris"}')
    result = ToolResultPart(call_id="c1", content='{"celsius":21}', size_bytes=14)
    one = turn(TextPart(text="Let me see."), made, result, TextPart(text="21 degrees.", step=1), metadata={"k": 1})
    assert shown(one) == {
        "id": "a",
        "createdAt": "2026-03-01T12:00:00.000Z",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {
                "type": "tool-call",
                "toolCallId": "c1",
                "toolName": "weather",
                "args": {"city": "Paris"},
                "argsText": '{"city": "Paris"}',
                "result": {"celsius": 21},
                "isError": False,
            },
            {"type": "text", "text": "21 degrees."},
        ],
        "status": {"type": "complete", "reason": "stop"},
        "metadata": {
            "unstable_state": None,
            "unstable_annotations": [],
            "unstable_data": [],
            "steps": [],
            "custom": {"k": 1},
        },
    }


def test_words_of_the_user_are_shown_with_their_files() -> None:
    """Images as addresses that hold them, other files as base64, both with their names."""
    files = {"i": PNG, "f": b"pdf"}
    parts = (
        TextPart(text="look"),
        FilePart(media_type="image/png", blob="i", size_bytes=4, name="cat.png"),
        FilePart(media_type="application/pdf", blob="f", size_bytes=3),
    )
    message = Message(id="u", thread_id="t", role="user", parts=parts)
    assert shown(TreeMessage(message=message), files) == {
        "id": "u",
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image", "image": "data:image/png;base64,iVBORw==", "filename": "cat.png"},
            {"type": "file", "data": "cGRm", "mimeType": "application/pdf"},
        ],
        "metadata": {"custom": {}},
        "attachments": [],
    }


@pytest.mark.parametrize(
    ("status", "there", "exact"),
    [
        (Status(state="running"), {"type": "running"}, False),
        (Status(state="requires_action"), {"type": "requires-action", "reason": "tool-calls"}, False),
        (Status(reason="unknown"), {"type": "complete", "reason": "unknown"}, False),
        (Status(state="incomplete", reason="limit"), {"type": "incomplete", "reason": "tool-calls"}, False),
        (Status(state="incomplete", reason="steered"), {"type": "incomplete", "reason": "cancelled"}, True),
        (
            Status(state="incomplete", reason="error", detail="no"),
            {"type": "incomplete", "reason": "error", "error": {"code": "unknown", "message": "no"}},
            False,
        ),
        (
            Status(state="incomplete", reason="cancelled", detail="Stop."),
            {"type": "incomplete", "reason": "cancelled"},
            True,
        ),
    ],
)
def test_statuses_have_the_words_of_the_client(status: Status, there: Json, exact: bool) -> None:
    """What it has no word for is told in full beside it."""
    message = shown(turn(status=status))
    assert message["status"] == there
    assert ("perdure" in message) == exact


def test_an_approval_is_shown_at_its_call() -> None:
    """Under the call's id, with options, questions and decision; ours is told in full only where it says more."""
    option = ApprovalOption(id="yes", kind="allow_always", label="Always", grants="arguments", confirm=True)
    question = ApprovalQuestion(id="q", prompt="Which?", multiple=True)
    request = ApprovalRequest(
        prompt="Buy?", display="questions", options=(option,), questions=(question,), dismissible=True
    )
    decision = Decision(approved=True, option_id="yes", answers={"q": {"option_ids": ["x"]}}, remembered=True)
    made = ToolCallPart(call_id="c1", tool="buy", approval=request, decision=decision)
    entry = shown(turn(made))["content"][0]
    assert entry["approval"] == {
        "id": "c1",
        "prompt": "Buy?",
        "display": "questions",
        "dismissible": True,
        "options": [{"id": "yes", "kind": "allow-always", "label": "Always", "confirm": True}],
        "questions": [{"prompt": "Which?", "id": "q", "multiple": True}],
        "approved": True,
        "optionId": "yes",
        "answers": {"q": {"optionIds": ["x"]}},
        "isAutomatic": True,
    }
    assert "perdure" not in entry
    later = made.with_(decision=decision.with_(by="ann", at=5.0))
    assert shown(turn(later))["content"][0]["perdure"]["decision"]["by"] == "ann"


def test_open_calls_show_what_is_kept_beside_them() -> None:
    """A result that waits for the others is the call's result; a preliminary one is marked."""
    one = turn(
        *(ToolCallPart(call_id=name, tool="t") for name in ("c1", "c2", "c3")), status=Status(state="requires_action")
    )
    calls = [
        open_call(one.message, "c1", result=ToolResultPart(call_id="c1", content="1"), interim=None),
        open_call(one.message, "c2", interim=ToolResultPart(call_id="c2", content="half", outcome="ok")),
        open_call(one.message, "c3"),
    ]
    content = export_tree(tree_of([one], "a", calls), {})["messages"][0]["message"]["content"]
    assert [(entry.get("result"), entry.get("isPreliminary")) for entry in content] == [
        (1, None),
        ("half", True),
        (None, None),
    ]
    assert "result" not in content[2]
    result = read_import(encoded(export_tree(tree_of([one], "a", calls), {})))
    (imported,) = result.messages
    assert [part.content for part in imported.interim] == ["half"]
    assert results_of(imported.message) == {"c1": ("ok", "1")}
    assert imported.message.status.state == "requires_action"


def test_results_that_wait_stand_in_call_order() -> None:
    """However the calls are listed: nothing has to be said of their order."""
    calls = [ToolCallPart(call_id=name, tool="t") for name in ("c1", "c2", "c3")]
    one = turn(*calls, status=Status(state="requires_action"))
    staged = [open_call(one.message, name, result=ToolResultPart(call_id=name, content=name)) for name in ("c2", "c1")]
    export = export_tree(tree_of([one], "a", staged), {})
    assert "perdure" not in export["messages"][0]["message"]
    assert list(results_of(read_import(encoded(export)).messages[0].message)) == ["c1", "c2"]


def test_events_are_no_words_of_the_user() -> None:
    """Clients get them as system messages, which they do not draw, and read them back as events."""
    event = EventPart(event_id="e1", origin_call_id="c0", content="It rains.", origin_tool="watch")
    message = Message(id="e", thread_id="t", role="event", parts=(event,))
    there = shown(TreeMessage(message=message))
    assert (there["role"], there["content"]) == ("system", [text("It rains.")])
    result = read_import(encoded(export_tree(tree_of([TreeMessage(message=message)], "e"), {})))
    assert result.messages[0].message == message.with_(thread_id="")


def test_ids_are_those_that_the_messages_came_with() -> None:
    """Parents, head and sources too; but never two messages under one id."""
    first = turn(id="own1").with_(given_id="theirs")
    second = turn(id="own2", parent_id="own1", source_id="own1").with_(parent_id="own1", place=1, given_id="theirs")
    third = turn(id="own3").with_(place=2, given_id="own2")
    export = export_tree(tree_of([first, second, third], "own2"), {})
    assert export["headId"] == "own2"
    assert [(one["parentId"], one["message"]["id"]) for one in export["messages"]] == [
        (None, "theirs"),
        ("theirs", "own2"),
        (None, "own3"),
    ]
    assert export["messages"][1]["message"]["perdure"] == {"source_id": "theirs"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"value": "negative", "comment": "wrong"}, {"type": "negative", "comment": "wrong"}),
        ({"value": "positive"}, {"type": "positive"}),
        ({"value": 3}, None),
        ({"value": "positive", "by": "ann"}, None),
        ({"value": "positive", "comment": None}, None),
        ("positive", None),
    ],
)
def test_feedback_stands_where_the_client_puts_it(ours: object, theirs: Json | None) -> None:
    """What it knows of; anything else is metadata like other metadata, and both come back."""
    export = export_tree(tree_of([turn(metadata={"feedback": ours, "k": 1})], "a"), {})
    metadata = export["messages"][0]["message"]["metadata"]
    assert metadata.get("submittedFeedback") == theirs
    assert metadata["custom"] == ({"feedback": ours, "k": 1} if theirs is None else {"k": 1})
    assert read_import(encoded(export)).messages[0].message.metadata == {"feedback": ours, "k": 1}


def test_a_run_configuration_stands_beside_its_message() -> None:
    """It is metadata here, whoever brought it."""
    metadata = {"runConfig": {"custom": {"model": "x"}}, "k": 1}
    export = export_tree(tree_of([turn(metadata=metadata)], "a"), {})
    (item,) = export["messages"]
    assert item["runConfig"] == {"custom": {"model": "x"}}
    assert item["message"]["metadata"]["custom"] == {"k": 1}
    assert read_import(encoded(export)).messages[0].message.metadata == metadata


def test_an_export_needs_every_blob() -> None:
    """A file that is not there is an error, never an empty one; what is needed can be asked."""
    refs = (FileRef(media_type="image/png", blob="3"),)
    parts = (
        TextPart(blob="1"),
        FilePart(media_type="text/plain", blob="2"),
        ToolResultPart(call_id="c", blob="4", files=refs),
    )
    tree = tree_of([turn(*parts)], "a")
    assert named_blobs(tree) == {"1", "2", "3", "4"}
    with pytest.raises(BlobNotFound, match="'4'"):
        export_tree(tree, {"1": b"", "2": b"", "3": b""})
    with pytest.raises(StoreError, match="should hold words"):
        export_tree(tree, dict.fromkeys("1234", b"\xff"))


def test_an_empty_thread_is_an_empty_export() -> None:
    """And that is read as one."""
    assert export_tree(StoredTree(), {}) == {"headId": None, "messages": []}
    assert read_import(b'{"headId": null, "messages": []}').messages == ()


def test_an_export_names_the_agent() -> None:
    """If there is one to name; whether anybody serves it is not known to who reads the file."""
    named = export_tree(StoredTree(), {}, "travel")
    assert named == {"headId": None, "messages": [], "perdure": {"agent": "travel"}}
    assert read_import(encoded(named)).agent == "travel"
    assert read_import(b'{"messages": [], "perdure": {"other": 1}}').agent is None
    assert read_import(b'{"messages": []}').agent is None


def test_whoever_changes_an_export_changes_what_is_read() -> None:
    """What we tell in full counts only as long as it agrees with what everybody can see."""
    made = ToolCallPart(call_id="c1", tool="t", approval=ApprovalRequest(prompt="Sure?", expires_s=60.0))
    result = ToolResultPart(call_id="c1", content='{"a": 1}', outcome="interrupted")
    export = export_tree(
        tree_of([turn(made, result, status=Status(state="incomplete", reason="cancelled", detail="d"))], "a"), {}
    )
    message = export["messages"][0]["message"]
    entry = message["content"][0]
    assert {"approval", "result"} <= set(entry["perdure"])
    entry |= {"result": {"a": 2}, "isError": False, "approval": {"id": "c1", "approved": True}}
    message["status"] = {"type": "complete", "reason": "stop"}
    read_back = read_import(encoded(export)).messages[0].message
    assert results_of(read_back) == {"c1": ("ok", '{"a":2}')}
    assert call_of(read_back).decision == Decision(approved=True)
    assert read_back.status == Status()
