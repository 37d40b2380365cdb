"""A conversation as plain text."""

from perdure.messages import (
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
