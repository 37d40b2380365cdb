"""The commands for calls that somebody has to approve, over a real worker."""

import getpass
import json

import pytest

from perdure.approval import Decision
from perdure.messages import ToolCallPart
from tests.eventually import eventually
from tests.perdure.cli.desk import Desk

pytestmark = pytest.mark.slow  # each starts a stack


async def decided(desk: Desk) -> tuple[Decision | None, str]:
    """What became of the call, and what the model made of it."""
    answer = await desk.client.wait_settled(desk.thread)
    (call,) = [part for part in answer.parts if isinstance(part, ToolCallPart)]
    return call.decision, getattr(answer.parts[-1], "text", "")


async def test_a_call_is_shown_until_it_is_approved(desk: Desk) -> None:
    """By the list, the status and the history, with the command that answers; a beginning of its id is enough."""
    await desk.client.start(desk.thread)
    assert await desk.does("approvals") == "No call waits for approval.\n"
    assert await desk.lines("approvals") == []
    await desk.client.send(desk.thread, "pay")
    call_id = await desk.approval()
    shown = await desk.does("approvals")
    assert shown.startswith("? pay(amount=3) waits for approval")
    assert f"`perdure approve {desk.thread} {call_id}`" in shown
    assert shown in await desk.does("status")
    assert (await desk.does("history")).splitlines()[:2] == ["› pay", "→ pay(amount=3)"]
    assert (await desk.does("history")).endswith(shown)
    (listed,) = await desk.lines("approvals")
    assert (listed["call_id"], json.loads(listed["arguments"])) == (call_id, {"amount": 3})
    assert await desk.does("approve", call_id[:12]) == f"{call_id} is approved.\n"
    decision, heard = await decided(desk)
    assert heard == "heard paid 3"
    assert decision is not None
    assert (decision.approved, decision.by) == (True, getpass.getuser())
    assert await desk.does("approvals") == "No call waits for approval.\n"
    assert f"✓ pay(amount=3) is approved by {getpass.getuser()}" in await desk.does("history")
    assert "Nobody was asked about a call 'call_x'" in await desk.fails("approve", "call_x")
    assert await desk.fails("deny", call_id) != ""


async def test_a_call_is_denied_with_a_reason(desk: Desk) -> None:
    """The model reads it, and the record says who it was."""
    await desk.client.send(desk.thread, "pay")
    call_id = await desk.approval()
    assert await desk.does("deny", call_id, "--reason", "too much", "--by", "Ann") == f"{call_id} is denied.\n"
    decision, heard = await decided(desk)
    assert "too much" in heard
    assert decision is not None
    assert (decision.approved, decision.by, decision.reason) == (False, "Ann", "too much")


@pytest.mark.parametrize("typed", ["2", "all", "both, always"])
async def test_an_option_is_chosen_by_number_id_or_words(desk: Desk, typed: str) -> None:
    """What cannot be answered like this is said with what can; an option that says no is no approval."""
    await desk.client.send(desk.thread, "pick")
    call_id = await desk.approval()
    assert "  2 Both, always (from now on, whatever the arguments)\n" in await desk.does("approvals")
    assert await desk.does("approvals", "--lasting") == "Nothing was decided for calls to come.\n"
    assert "--option takes a number from 1 to 3" in await desk.fails("approve", call_id)
    assert "`perdure deny` chooses it" in await desk.fails("approve", call_id, "--option", "none")
    assert await desk.does("approve", call_id, "--option", typed) == f"{call_id} is approved.\n"
    decision, heard = await decided(desk)
    assert await desk.does("approve", call_id, "--option", typed) == f"{call_id} was approved already.\n"
    assert "the call was approved" in await desk.fails("approve", call_id, "--option", "red"), "the control"
    assert heard == "heard picked of two"
    assert decision is not None
    assert decision.option_id == "all"
    by = getpass.getuser()
    assert await desk.does("approvals", "--lasting") == f"1 pick is approved whatever the arguments, by {by}\n"
    assert await desk.lines("approvals", "--lasting") == [{"tool": "pick", "by": by}]
    assert "There is no decision 2" in await desk.fails("approvals", "--withdraw", "2")
    withdrawn = await desk.does("approvals", "--withdraw", "1")
    assert withdrawn == f"Withdrawn: pick is approved whatever the arguments, by {by}.\n"
    assert await desk.does("approvals", "--lasting") == "Nothing was decided for calls to come.\n"
    await desk.client.send(desk.thread, "pick")
    assert await desk.approval() != call_id, "people are asked again"


async def test_questions_are_answered_one_by_one(desk: Desk) -> None:
    """All of them with one command; one that is not there, or is left out, is said."""
    await desk.client.send(desk.thread, "quiz")
    call_id = await desk.approval()
    assert "  size: How big?\n  1 small\n  2 l\n  name: Whose name?\n" in await desk.does("approvals")
    assert "(size, name)" in await desk.fails("approve", call_id, "--answer", "colour=red")
    assert "a number from 1 to 2" in await desk.fails("approve", call_id, "--answer", "size=3")
    assert "Not answered: name. Give --answer" in await desk.fails("approve", call_id, "--answer", "size=1")
    assert await desk.does("approve", call_id, "--answer", "size=small", "--answer", "name=Ann = Bob") != ""
    decision, _ = await decided(desk)
    assert decision is not None
    assert decision.answers == {"size": {"option_ids": ["s"]}, "name": {"text": "Ann = Bob"}}


async def test_a_result_is_any_json_value_and_may_come_in_parts(desk: Desk) -> None:
    """What is preliminary leaves the call open; nothing else than JSON is taken for it where that is asked for."""
    await desk.client.send(desk.thread, "ask")
    (call,) = await eventually(lambda: desk.client.open_calls(desk.thread))
    taken = await desk.does("result", call.call_id[:12], "blu", "--preliminary")
    assert taken == f"The thread has the preliminary result of {call.call_id}.\n"
    assert '⋯ ask(question="Which colour?"): blu' in await desk.does("history")
    assert "'blue' is no JSON value" in await desk.fails("result", call.call_id, "blue", "--json")
    taken = await desk.does("result", call.call_id, '{"colour": 1e2}', "--json")
    assert taken == f"The thread has the result (ok) of {call.call_id}.\n"
    answer = await desk.client.wait_settled(desk.thread)
    assert getattr(answer.parts[-1], "text", "") == 'heard {"colour":100.0}'


async def test_a_late_result_is_stored_with_its_message(desk: Desk) -> None:
    """Nothing runs for it; without its message, nobody waits for it."""
    await desk.client.send(desk.thread, "ask")
    (call,) = await eventually(lambda: desk.client.open_calls(desk.thread))
    await desk.client.ask(desk.thread, "hi")
    _, message_id, *_ = before = await desk.ids()
    assert (await desk.fails("result", call.call_id, "blue")).startswith(f"The call '{call.call_id}' is not open")
    for _ in range(2):
        taken = await desk.does("result", call.call_id[:12], "blue", "--message", message_id[:8])
        assert taken == f"The thread has the result (ok) of {call.call_id}.\n"
    told = await desk.fails("result", call.call_id, "red", "--message", message_id)
    assert told == (f"The result did not count: the call '{call.call_id}' has one already (ok: blue), which stays.\n")
    assert await desk.ids() == before
    part = (await desk.client.history(desk.thread))[1].parts[-1]
    assert (part.kind, getattr(part, "content", "")) == ("tool_result", "blue")


async def test_a_call_that_rests_on_another_branch_takes_its_result(desk: Desk) -> None:
    """It is found by its message, and its turn goes on when its branch is shown again."""
    await desk.client.send(desk.thread, "ask")
    (call,) = await eventually(lambda: desk.client.open_calls(desk.thread))
    words, turn = await desk.ids()
    edited = (await desk.does("edit", words, "hi")).split()[1]
    await desk.client.wait_settled(desk.thread, edited)
    await desk.does("result", call.call_id, "blue")
    await desk.does("switch", turn)
    answer = await desk.client.wait_settled(desk.thread, turn)
    assert getattr(answer.parts[-1], "text", "") == "heard blue"
