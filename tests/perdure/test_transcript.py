"""A conversation as plain text."""

from perdure.approval import ApprovalRequest, Decision
from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    FileRef,
    Message,
    ReasoningPart,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.transcript import transcript


def test_a_transcript_holds_everything_but_thoughts() -> None:
    """Words, files, events, calls with their results and the reason of an early end, in the order of the path."""
    answer = (
        ReasoningPart(text="secret"),
        TextPart(text="Let me look."),
        ToolCallPart(call_id="c1", tool="get_weather", arguments='{"city":"Paris"}'),
        ToolResultPart(call_id="c1", content="sunny", files=(FileRef(media_type="image/png", blob="y"),)),
        ToolResultPart(call_id="c2", outcome="error", content="no network"),
        TextPart(text="It is"),
    )
    path = [
        Message(id="u", thread_id="t", role="user", parts=(TextPart(text="hi"), FilePart(media_type="a/b", blob="x"))),
        Message(
            id="a",
            thread_id="t",
            role="assistant",
            parts=answer,
            status=Status(state="incomplete", reason="cancelled"),
        ),
        Message(id="e", thread_id="t", role="event", parts=(EventPart(event_id="e", origin_call_id="c", content="5"),)),
        Message(
            id="b",
            thread_id="t",
            role="assistant",
            status=Status(state="incomplete", reason="error", detail="no key"),
        ),
    ]
    assert transcript(path) == (
        "User: hi\n  [file, a/b]\n\n"
        'Assistant: Let me look.\n  get_weather({"city":"Paris"})\n'
        "  ok: sunny\n  [file, image/png]\n  error: no network\n"
        "It is\n(cancelled)\n\n"
        "Event: 5\n\n"
        "Assistant: (error: no key)"
    )


def test_a_transcript_says_what_became_of_approvals() -> None:
    """Who waits, who said yes or no and why; a refusal is told in its words and not as the JSON that models read."""
    asked = ApprovalRequest(prompt="Send it?")
    done = (
        ToolCallPart(call_id="c1", tool="send", approval=asked, decision=Decision(approved=True, by="Ann")),
        ToolCallPart(call_id="c2", tool="send", approval=asked, decision=Decision(approved=False, reason="too late")),
        ToolCallPart(call_id="c3", tool="send", approval=asked, decision=Decision(resolution="expired")),
        ToolCallPart(call_id="c4", tool="send", approval=asked, decision=Decision(approved=True, remembered=True)),
        ToolResultPart(call_id="c1", content="sent"),
        ToolResultPart(call_id="c2", outcome="denied", content='{"error": "too late"}'),
        ToolResultPart(call_id="c3", outcome="expired", content='{"error": 5}'),
        ToolResultPart(call_id="c4", outcome="error", content="[1]"),
    )
    waiting = (
        ToolCallPart(call_id="c5", tool="send", approval=asked),
        ToolCallPart(call_id="c6", tool="send", approval=ApprovalRequest()),
    )
    path = [
        Message(id="a", thread_id="t", role="assistant", parts=done),
        Message(id="b", thread_id="t", role="assistant", parts=waiting, status=Status(state="requires_action")),
    ]
    assert transcript(path) == (
        "Assistant:   send({})\n  approved by Ann\n"
        "  send({})\n  denied\n"
        "  send({})\n  expired\n"
        "  send({})\n  approved as all such calls\n"
        "  ok: sent\n  denied: too late\n"
        '  expired: {"error": 5}\n  error: [1]\n\n'
        "Assistant:   send({})\n  waits for approval: Send it?\n  send({})\n  waits for approval"
    )


def test_what_the_model_was_told_besides_is_left_out() -> None:
    """It is no word of the conversation; and an early end is told in words that people know."""
    answer = Message(
        id="a",
        thread_id="t",
        role="assistant",
        parts=(ContextPart(source="memory", text="likes tea"), TextPart(text="Tea?")),
        status=Status(state="incomplete", reason="steered"),
    )
    assert transcript([answer]) == "Assistant: Tea?\n(made room for what came)"
    assert transcript([answer.with_(status=Status(state="incomplete", reason="content_filter"))]).endswith(
        "(content filter)"
    )
