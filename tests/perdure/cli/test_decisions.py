"""Calls that somebody has to approve, in a terminal."""

import pytest

from perdure.approval import ApprovalOption, ApprovalQuestion, ApprovalRequest, Decision
from perdure.cli.approval_words import Said
from perdure.cli.decisions import Decisions
from perdure.errors import UsageError
from perdure.messages import Status, ToolCallPart, ToolResultPart
from perdure.records import Path, Snapshot
from tests.perdure.cli.reader import ANSWER, CALL, QUESTION, THREAD, Reader

PAUSED = Status(state="requires_action")
CALLED = 'get_weather(city="Paris", days=2)'


class Gate(Reader):
    """A reader of a turn whose calls wait for approval, who forgets what was read before."""

    def __init__(self, *requests: ApprovalRequest) -> None:
        self.calls = [CALL.with_(call_id=f"c{number}", approval=one) for number, one in enumerate(requests, 1)]
        self.message = ANSWER.with_(parts=tuple(self.calls), status=PAUSED)
        super().__init__(QUESTION, self.message)
        self.decisions = Decisions(self.conversation, self.paper)

    def read(self) -> list[str]:
        """What is new on the screen."""
        self.decisions.show()
        lines, self.paper.text = self.lines, ""
        return lines

    def decide(self, number: int, decision: Decision) -> None:
        """Somebody decides."""
        call = self.calls[number - 1].with_(decision=decision)
        self.tell(message_id="a1", position=number - 1, part=call)


def test_calls_are_asked_about_one_after_the_other() -> None:
    """Once each, and what another person has decided makes the question go, with who it was."""
    gate = Gate(ApprovalRequest(prompt="May I?"), ApprovalRequest())
    assert gate.read()[-3:] == [
        f"? {CALLED} waits for approval: May I?",
        "  Type y or n (`n WHY` tells the model why).",
        "  /say TEXT says something to the thread instead.",
    ]
    assert gate.read() == []
    gate.decide(1, Decision(approved=False, by="Ann\x1b", reason="too far"))
    lines = gate.read()
    assert lines[:2] == [f"✗ {CALLED} is denied by Ann�: too far", f"? {CALLED} waits for approval"]
    current = gate.decisions.current
    assert current is not None
    assert current.call_id == "c2"
    gate.decide(2, Decision(approved=True, remembered=True))
    assert gate.read() == [f"✓ {CALLED} is approved, as all such calls"]
    assert gate.decisions.current is None


def test_a_call_waits_for_approval_and_not_for_a_result() -> None:
    """Until it is approved nobody is asked for its result."""
    gate = Gate(ApprovalRequest())
    assert gate.conversation.unstarted == []
    gate.decide(1, Decision(approved=True))
    assert gate.conversation.unstarted == ["c1"]


@pytest.mark.parametrize(
    ("resolution", "said"), [("cancelled", "was not decided about"), ("expired", "was not decided about in time")]
)
def test_a_question_that_nobody_answered_goes(resolution: str, said: str) -> None:
    """The end of its turn or of its time says so."""
    gate = Gate(ApprovalRequest())
    gate.read()
    gate.decide(1, Decision.model_validate({"resolution": resolution}))
    gate.commit(
        ToolResultPart.model_validate({"call_id": "c1", "outcome": resolution, "content": "It did not run."}), at=1
    )
    assert gate.read() == [f"✗ {CALLED} {said}"]
    assert gate.decisions.current is None


def test_a_branch_that_is_shown_again_asks_again() -> None:
    """What was asked has scrolled away with it."""
    gate = Gate(ApprovalRequest())
    gate.read()
    for parts, asked in (((), False), (gate.message.parts, True)):
        gate.seq += 1
        path = Path(messages=(QUESTION, gate.message.with_(parts=parts)) if parts else (QUESTION,))
        gate.conversation.show(Snapshot(thread=THREAD, path=path, seq=gate.seq))
        assert any(line.startswith("?") for line in gate.read()) == asked


def test_several_questions_are_asked_one_by_one() -> None:
    """The last answer sends them all; Enter dismisses them where they can be."""
    questions = (ApprovalQuestion(id="a", prompt="First?"), ApprovalQuestion(id="b", prompt="Second?"))
    gate = Gate(ApprovalRequest(display="questions", questions=questions, dismissible=True))
    assert "  a: First?" in gate.read()
    assert gate.decisions.read("one") is None
    assert gate.read() == ["  b: Second?"]
    with pytest.raises(UsageError, match="no answer to 'b'"):
        Gate(ApprovalRequest(display="questions", questions=questions[1:])).decisions.read("")
    assert gate.decisions.read("two") == Said(answers={"a": {"text": "one"}, "b": {"text": "two"}})
    assert gate.decisions.read("") == Said(approved=False)


def test_an_option_that_wants_to_be_confirmed_is_typed_twice() -> None:
    """The same one: another one in between begins anew. One that does not is taken at once."""
    options = (
        ApprovalOption(id="all", label="All of it", confirm=True),
        ApprovalOption(id="some", label="Some", confirm=True),
        ApprovalOption(id="none", label="None", kind="reject_once"),
    )
    gate = Gate(ApprovalRequest(options=options))
    gate.read()
    assert gate.decisions.read("1") is None
    assert gate.read() == ["  1 once more confirms it."]
    assert gate.decisions.read("2") is None
    assert gate.decisions.read("1") is None
    assert gate.decisions.read("all of it") == Said(option_id="all")
    assert gate.decisions.read("3") == Said(option_id="none")


def test_a_decision_is_told_once() -> None:
    """Whether one was there or comes later; the call itself is not told again with it."""
    decided = CALL.with_(approval=ApprovalRequest(), decision=Decision(approved=True, by="Ann"))
    reader = Reader(QUESTION, ANSWER.with_(parts=(decided,)))
    reader.tell(message_id="a1", position=0, part=decided)
    assert reader.lines == [f"→ {CALLED}", f"✓ {CALLED} is approved by Ann"]
    assert isinstance(reader.conversation.view.messages[1].parts[0], ToolCallPart)
