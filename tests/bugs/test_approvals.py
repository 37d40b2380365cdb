"""Approvals: several in one turn, what exactly is approved, and people who say something else instead."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalRequest
from perdure.client import PerdureClient
from perdure.errors import UsageError
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.records import Path
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.view import Call as ViewedCall
from perdure.view import Response, Result, view
from perdure.watch import answer_text
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


@dataclass
class Ran:
    """What the tools were run with, by tool."""

    with_: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def note(self, tool: str, given: Any) -> str:
        """It runs."""
        self.with_.setdefault(tool, []).append(given)
        return f"{tool} done"


def agent_of(model: ScriptedModel, ran: Ran) -> Agent:
    """An agent that reads freely, and sends, writes and drops only what somebody has approved."""
    agent = Agent("a", model=model)

    @agent.tool
    async def read() -> str:
        """Read."""
        return ran.note("read", None)

    @agent.tool(approval="always")
    async def send(n: int = 0) -> str:
        """Send."""
        return ran.note("send", n)

    @agent.tool(approval="always")
    async def write(msg: str) -> str:
        """Write."""
        return ran.note("write", msg)

    @agent.tool(approval="always")
    async def drop_table(msg: str = "") -> str:
        """Drop it all."""
        return ran.note("drop_table", msg)

    return agent


async def waiting(client: PerdureClient, thread: str, count: int = 1) -> list[str]:
    """The calls that wait for approval, as soon as there are so many and nothing else is at work."""

    async def found() -> list[str]:
        calls = [one.call_id for one in await client.approvals(thread)]
        paused = (await client.history(thread))[-1].status.state == "requires_action"
        return calls if len(calls) == count and paused else []

    return await eventually(found)


def results(message: Message) -> list[ToolResultPart]:
    """The results of a message, in order."""
    return [part for part in message.parts if isinstance(part, ToolResultPart)]


async def test_b04_several_calls_of_one_turn_are_decided_about_separately(
    start_stack: StackFactory, thread: str
) -> None:
    """B04: by different people and in different processes; nothing is asked again, nothing is made up."""
    calls = Reply(Call("read"), Call("send", {"n": 1}), Call("send", {"n": 2}))
    ran, model = Ran(), ScriptedModel([calls, "ok"])
    stack = await start_stack(agent_of(model, ran))
    accepted = await stack.client.send(thread, "go")
    second, third = await waiting(stack.client, thread, 2)
    await eventually(lambda: ran.with_ == {"read": [None]})
    await stack.client.approve(thread, second, by="ann")
    assert await eventually(lambda: ran.with_.get("send")) == [1]
    assert await waiting(stack.client, thread) == [third]
    assert len(model.requests) == 1

    await stack.restart_worker()
    other = PerdureClient(stack.temporal, stack.store, task_queue=stack.settings.task_queue)
    assert [one.call_id for one in await other.approvals(thread)] == [third]
    assert (await other.deny(thread, third, "no", by="bob")).pending == ()
    turn = await other.wait_settled(thread, accepted.message_id)
    assert ran.with_ == {"read": [None], "send": [1]}
    assert len(model.requests) == 2
    assert [part.outcome for part in results(turn)] == ["ok", "ok", "denied"]
    assert "no" in results(turn)[2].content
    assert answer_text(turn) == "ok"
    assert model.requests[-1].results[:2] == ("read done", "send done")
    assert "no" in model.requests[-1].results[2]
    assert faults(await other.history(thread)) == []


async def test_b16a_what_was_approved_is_what_runs(start_stack: StackFactory, thread: str) -> None:
    """B16 (a): the model, which would say something else by now, is not asked in between; nor after a restart."""

    def script(asked: Asked) -> Reply:
        return Reply("done") if asked.results else Reply(Call("write", {"msg": "reviewed" if first else "changed"}))

    first = True
    ran, model = Ran(), ScriptedModel(script)
    stack = await start_stack(agent_of(model, ran))
    await stack.client.send(thread, "go")
    (call_id,) = await waiting(stack.client, thread)
    first = False
    await stack.restart_worker()
    await stack.client.approve(thread, call_id)
    assert await eventually(lambda: ran.with_) == {"write": ["reviewed"]}
    turn = await stack.client.wait_settled(thread)
    assert [part.content for part in results(turn)] == ["write done"]
    assert len(model.requests) == 2
    assert ran.with_ == {"write": ["reviewed"]}


@pytest.mark.parametrize(
    "edited", [{"arguments": {"msg": "edited"}}, {"arguments": '{"msg": 1}'}, {"tool": "drop_table"}, {"n": 3}]
)
async def test_b16bc_an_approval_cannot_be_of_something_else(
    edited: dict[str, Any], start_stack: StackFactory, thread: str
) -> None:
    """B16 (b), (c): one that brings other arguments, or another tool, is refused, and nothing runs.

    People who want something else deny the call, and say what.
    """
    ran = Ran()
    stack = await start_stack(agent_of(ScriptedModel([Reply(Call("write", {"msg": "reviewed"})), "done"]), ran))
    await stack.client.send(thread, "go")
    (call_id,) = await waiting(stack.client, thread)
    approval = {"call_id": call_id, "approved": True, **edited}
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await stack.handle(thread).execute_update("decide", approval)  # pyright: ignore[reportUnknownMemberType]  # the SDK's `args` has no type
    assert next(iter(edited)) in str(refused.value.__cause__)
    assert ran.with_ == {}
    assert await waiting(stack.client, thread) == [call_id]
    await stack.client.approve(thread, call_id)
    turn = await stack.client.wait_settled(thread)
    assert ran.with_ == {"write": ["reviewed"]}
    (call,) = [part for part in turn.parts if isinstance(part, ToolCallPart)]
    assert call.arguments == '{"msg": "reviewed"}'


async def test_b16_a_remembered_approval_is_of_the_same_call_alone(start_stack: StackFactory, thread: str) -> None:
    """B16: what was approved for good with its arguments runs again; with others, or of another tool, it is asked."""

    def asking(arguments: Mapping[str, Any]) -> ApprovalRequest:
        same = ApprovalOption(id="same", kind="allow_always", grants="arguments")
        return ApprovalRequest(options=(same, ApprovalOption(id="no", kind="reject_once")))

    ran = Ran()
    again = Reply(Call("write", {"msg": "one"}), Call("write", {"msg": "two"}), Call("drop_table", {"msg": "one"}))
    model = ScriptedModel([Reply(Call("write", {"msg": "one"})), "done", again, "done"])
    agent = Agent("a", model=model)
    for tool in ("write", "drop_table"):
        agent.tool(name=tool, approval=asking)(_noting(ran, tool))
    stack = await start_stack(agent)
    await stack.client.send(thread, "go")
    (call_id,) = await waiting(stack.client, thread)
    await stack.client.decide(thread, call_id, option_id="same")
    await stack.client.wait_settled(thread)
    await stack.client.send(thread, "again")
    pending = await waiting(stack.client, thread, 2)
    assert await eventually(lambda: ran.with_.get("write") == ["one", "one"])
    assert "drop_table" not in ran.with_
    for call_id in pending:
        await stack.client.decide(thread, call_id, option_id="no")
    turn = await stack.client.wait_settled(thread)
    assert [part.outcome for part in results(turn)] == ["ok", "denied", "denied"]
    assert ran.with_ == {"write": ["one", "one"]}


def _noting(ran: Ran, tool: str) -> Callable[[str], str]:
    def run(msg: str) -> str:
        return ran.note(tool, msg)

    run.__doc__ = tool
    return run


async def answered_calls(stack: Stack, thread: str) -> bool:
    """Whether every call that a model would read is answered, at once and not with nothing."""
    shown = view(Path(messages=tuple(await stack.client.history(thread))))
    for at, message in enumerate(shown):
        calls = [item.call_id for item in message.items if isinstance(item, ViewedCall)]
        if isinstance(message, Response) and calls:
            answers = [item for item in shown[at + 1].items if isinstance(item, Result)]
            if [item.call_id for item in answers] != calls or not all(item.text.strip() for item in answers):
                return False
    return True


async def test_b17_words_over_a_pending_approval_deny_it(start_stack: StackFactory, thread: str) -> None:
    """B17: the model reads of a call that did not run; who approves it late is told that nobody waits any more."""
    ran, model = Ran(), ScriptedModel([Reply(Call("send")), "I wait"])
    stack = await start_stack(agent_of(model, ran))
    await stack.client.send(thread, "go")
    (call_id,) = await waiting(stack.client, thread)
    assert await stack.client.ask(thread, "actually wait") == "I wait"
    with pytest.raises(UsageError):
        await stack.client.approve(thread, call_id)
    messages = await stack.client.history(thread)
    (result,) = results(messages[1])
    assert (result.call_id, result.outcome) == (call_id, "cancelled")
    assert result.content.strip()
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
    assert ran.with_ == {}
    assert len(model.requests) == 2
    assert await answered_calls(stack, thread)
    assert faults(messages) == []


async def test_b17_words_that_queue_leave_a_pending_approval_alone(start_stack: StackFactory, thread: str) -> None:
    """B17, the other policy: in mode `queue` they wait for the decision, and follow the result."""
    ran, model = Ran(), ScriptedModel([Reply(Call("send")), "sent", "I wait"])
    stack = await start_stack(agent_of(model, ran))
    await stack.client.send(thread, "go")
    (call_id,) = await waiting(stack.client, thread)
    accepted = await stack.client.send(thread, "actually wait", mode="queue")
    assert accepted.disposition == "queued"
    assert await waiting(stack.client, thread) == [call_id]
    assert len(model.requests) == 1
    assert await answered_calls(stack, thread)
    await stack.client.approve(thread, call_id)
    await stack.client.wait_settled(thread, accepted.message_id)
    messages = await stack.client.history(thread)
    assert [answer_text(message) for message in messages[1::2]] == ["sent", "I wait"]
    assert [part.outcome for part in results(messages[1])] == ["ok"]
    assert ran.with_ == {"send": [0]}
    assert faults(messages) == []
