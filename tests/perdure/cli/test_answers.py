"""Calls that wait for the person at the terminal."""

import pytest

from perdure.cli.answers import Answers
from perdure.contract import CallStatus, ThreadStatus
from perdure.errors import UsageError
from perdure.messages import ToolResultPart
from tests.perdure.cli.reader import ANSWER, CALL, QUESTION, Reader, open_call


class Waiter(Reader):
    """A reader of a step with calls of each kind, and what the thread says of them."""

    def __init__(self, **kinds: str | None) -> None:
        parts = [CALL.with_(call_id=call_id, tool=f"tool_{call_id}", arguments="{}") for call_id in kinds]
        super().__init__(QUESTION, ANSWER.with_(parts=tuple(parts)))
        self.paper.text = ""
        self.asked = 0
        self.calls = tuple(
            CallStatus.model_validate({"call_id": call_id, "tool": f"tool_{call_id}", "kind": kind})
            for call_id, kind in kinds.items()
        )
        self.answers = Answers(self.conversation, self.paper, self.status)

    async def status(self) -> ThreadStatus:
        """What the thread says."""
        self.asked += 1
        return ThreadStatus(thread_id="t1", agent="demo", state="waiting", open_calls=self.calls)


async def test_calls_of_the_person_are_told_from_others() -> None:
    """Those that a worker is about to start are not said; what is known is not asked for again."""
    reader = Waiter(a="client", b="function", c="workflow", d="activity")
    assert reader.answers.unknown
    assert reader.answers.waiting == []
    await reader.answers.look()
    assert reader.lines == [
        "? tool_a() waits for you: /result TEXT is its result",
        "☾ tool_c() sleeps until something happens",
    ]
    assert not reader.answers.unknown
    assert reader.answers.waiting == ["a"]


async def test_a_thread_that_hibernates_does_not_know_whose_calls_they_are() -> None:
    """Whatever waits then may be answered here."""
    reader = Waiter(a=None)
    await reader.answers.look()
    assert reader.answers.waiting == ["a"]


async def test_an_answered_call_waits_no_more() -> None:
    """Its result ends it, whoever gave it; a call that was started meanwhile is not the person's."""
    reader = Waiter(a="client", b="client")
    await reader.answers.look()
    reader.tell(call=open_call("b", result=ToolResultPart(call_id="b", content="x")))
    assert reader.answers.waiting == ["a"]
    reader.commit(ToolResultPart(call_id="a"), at=2)
    assert reader.answers.waiting == []
    started = Waiter(a="function")
    started.tell(call=open_call("a", started=1))
    assert not started.answers.unknown


async def test_a_result_goes_to_the_only_call_or_to_the_one_that_is_named() -> None:
    """The words are not taken for an id, and an id alone is no result for another call."""
    one = Waiter(a="client")
    await one.answers.look()
    assert one.answers.read(" blue and  red ") == ("a", "blue and  red")
    assert one.answers.read("a blue") == ("a", "blue")
    assert one.answers.read("a") == ("a", "a")
    two = Waiter(a="client", b="client")
    await two.answers.look()
    assert two.answers.read("b blue") == ("b", "blue")
    with pytest.raises(UsageError, match="2 calls wait; say which: /result a TEXT"):
        two.answers.read("blue")
    with pytest.raises(UsageError, match="No call waits for your result"):
        Waiter(a="function").answers.read("blue")
