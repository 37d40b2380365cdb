"""The control of the chaos tests: each fault that they look for is found where it is."""

import pytest

from perdure.messages import Message, Part, Status, TextPart, ToolCallPart, ToolResultPart
from tests.chaos.faults import faults

CALLS = (ToolCallPart(call_id="c1", tool="a"), ToolCallPart(call_id="c2", tool="b"))
RESULTS = (ToolResultPart(call_id="c1", content="1"), ToolResultPart(call_id="c2", content="2"))
DONE = TextPart(text="done", step=1)


def user(id: str = "u1") -> Message:
    """Words of the user."""
    return Message(id=id, thread_id="t", role="user", parts=(TextPart(text="hi"),), input_id="m1")


def answer(*parts: Part, status: Status | None = None) -> Message:
    """A turn."""
    return Message(id="a1", thread_id="t", role="assistant", turn=1, parts=parts, status=status or Status())


def test_a_sound_conversation_has_no_fault() -> None:
    """Calls, their results in order, and words."""
    assert faults([user(), answer(*CALLS, *RESULTS, DONE)]) == []


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([user(), user()], "message id u1 is there 2 times"),
        ([user(), user("u2")], "input m1 of t is there 2 times"),
        ([user(), answer(DONE, status=Status(state="running"))], "turn 1 is still running"),
        ([user(), answer(*CALLS, RESULTS[0], DONE)], "turn 1 has the calls"),
        ([user(), answer(*CALLS, *RESULTS, RESULTS[1], DONE)], "turn 1 has the calls"),
        ([user(), answer(*CALLS, *reversed(RESULTS), DONE)], "turn 1 has the calls"),
    ],
    ids=["message twice", "input twice", "running", "result lost", "result twice", "order of results"],
)
def test_a_fault_is_found(messages: list[Message], found: str) -> None:
    """In a sentence that names it."""
    assert any(fault.startswith(found) for fault in faults(messages))
