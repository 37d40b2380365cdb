"""Which calls people are asked about, and what they are asked."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from activities import approval_policy
from activities.model_calls import asking
from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalRequest, arguments_digest
from perdure.contract import CallOutline
from perdure.errors import StoreUnavailable
from perdure.messages import ToolCallPart
from perdure.records import Step
from perdure.testing import Call, Reply
from perdure.tools import ApprovalPolicy, ApprovalRule
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, failed, requests_of, scripted

PLAIN = ("allow_once", "allow_always", "reject_once")


def mailing(approval: ApprovalRule | None = None, policy: ApprovalPolicy = "never", *replies: Reply) -> Agent:
    """An agent that may send mail, and whose model does."""
    agent = scripted(list(replies or [Reply(Call("send", {"to": "ann"}))]), approval=policy)

    @agent.tool(approval=approval)
    async def send(to: str, copies: int = 1) -> str:
        return to * copies

    return agent


async def asked(agent: Agent) -> list[ToolCallPart]:
    """The calls of the model's first answer, as they are stored."""
    thread = await Conversation.start(agent)
    await thread.say("go")
    await thread.commit_step(await thread.complete())
    return [part for part in await thread.parts() if isinstance(part, ToolCallPart)]


async def request_of(agent: Agent) -> ApprovalRequest:
    """What people are asked about the only call of the first answer."""
    (call,) = await asked(agent)
    assert call.approval is not None
    return call.approval


async def later(arguments: Mapping[str, Any]) -> bool:
    """Take time to say yes."""
    await asyncio.sleep(0)
    return True


def about(who: str, arguments: Mapping[str, Any]) -> bool:
    """Ask about mail to somebody."""
    return bool(arguments["to"] == who)


def to_ann(arguments: Mapping[str, Any]) -> bool:
    """Ask about mail to Ann."""
    return about("ann", arguments)


def sent_to_ann(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Ask about mail to Ann, and nothing else."""
    return tool == "send" and to_ann(arguments)


def dropped(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Ask about another tool."""
    return tool == "drop"


@pytest.mark.parametrize(
    ("approval", "policy", "asks"),
    [
        (None, "never", False),
        (None, "always", True),
        ("always", "never", True),
        ("never", "always", False),
        (to_ann, "never", True),
        (functools.partial(about, "bob"), "always", False),
        (later, "never", True),
        (None, sent_to_ann, True),
        (None, dropped, False),
    ],
)
async def test_a_tool_decides_before_its_agent(approval: Any, policy: Any, asks: bool) -> None:
    """Always, never, or by what a function says, now or later; the agent only where the tool says nothing."""
    (call,) = await asked(mailing(approval, policy))
    assert (call.approval is not None) is asks


async def test_the_policy_sees_the_arguments_as_the_tool_gets_them() -> None:
    """With defaults, and as the types that were declared: what it has not seen cannot be what runs."""
    seen: list[Mapping[str, Any]] = []

    def policy(arguments: Mapping[str, Any]) -> bool:
        seen.append(arguments)
        return False

    await asked(
        mailing(policy, "never", Reply(Call("send", '{"to": "ann", "copies": "3"}'), Call("send", {"to": "b"})))
    )
    assert sorted(seen, key=lambda arguments: arguments["to"]) == [{"to": "ann", "copies": 3}, {"to": "b", "copies": 1}]


async def test_the_plain_question_names_the_call() -> None:
    """With its arguments, clipped; there is a way to say yes, yes for ever, and no."""
    request = await request_of(mailing("always", "never", Reply(Call("send", {"to": "x" * 9_999}))))
    assert request.prompt.startswith('Run send(to="xxx')
    assert request.prompt.endswith("…)?")
    assert len(request.prompt) < 600
    assert [(option.id, option.kind) for option in request.options] == [(name, name) for name in PLAIN]


@pytest.mark.parametrize(
    ("approval", "policy", "grants"),
    [
        ("always", "never", "tool"),
        (None, "always", "tool"),
        (to_ann, "never", "arguments"),
        (None, sent_to_ann, "arguments"),
    ],
)
async def test_what_was_asked_because_of_the_arguments_is_granted_for_these_alone(
    approval: Any, policy: Any, grants: str
) -> None:
    """A function has looked at them: yes for ever must not silence it about others."""
    request = await request_of(mailing(approval, policy))
    assert [option.grants for option in request.options if option.kind == "allow_always"] == [grants]


async def test_a_policy_may_say_what_to_ask() -> None:
    """Its words stay; where it has left out the prompt or the options of a decision, the usual ones are used."""
    select = ApprovalRequest(display="select", options=(ApprovalOption(id="a"),), prompt="Which?", expires_s=60)
    assert await request_of(mailing(lambda _: select)) == select
    bare = await request_of(mailing(lambda _: ApprovalRequest(expires_s=60)))
    assert bare.prompt == 'Run send(to="ann")?'
    assert [option.id for option in bare.options] == list(PLAIN)
    assert bare.expires_s == 60
    text = await request_of(mailing(lambda _: ApprovalRequest(display="text", prompt="To whom?")))
    assert text.options == ()


def saying(answer: object) -> Callable[[Mapping[str, Any]], object]:
    """A policy that returns this, whatever the arguments."""

    def policy(arguments: Mapping[str, Any]) -> object:
        return answer

    return policy


def raising(error: BaseException) -> Callable[[Mapping[str, Any]], bool]:
    """A policy that fails like this."""

    def policy(arguments: Mapping[str, Any]) -> bool:
        raise error

    return policy


async def cancelling(arguments: Mapping[str, Any]) -> bool:
    """Cancel itself."""
    raise asyncio.CancelledError


def too_late(arguments: Mapping[str, Any]) -> ApprovalRequest:
    """Ask for something that has expired already."""
    return ApprovalRequest(expires_s=-1)


@pytest.mark.parametrize(
    ("approval", "reason"),
    [
        (raising(KeyError("amount")), "KeyError"),
        (raising(SystemExit(1)), "SystemExit"),
        (cancelling, "CancelledError"),
        (saying(None), "TypeError"),
        (saying("no"), "TypeError"),
        (too_late, "ValidationError"),
        (saying(ApprovalRequest().with_(expires_s=0)), "ValidationError"),
        (saying(ApprovalRequest().with_(prompt=b"x")), "TypeError"),
        (saying(ApprovalRequest(display="questions")), "UsageError"),
    ],
)
async def test_whatever_goes_wrong_in_a_policy_people_are_asked(approval: Any, reason: str) -> None:
    """It must neither let the call run nor fail the turn. People are told why they are asked; not with its words."""
    request = await request_of(mailing(approval))
    assert request.prompt == (
        f'Run send(to="ann")? Whether to ask could not be decided, since the approval policy failed ({reason}).'
    )
    assert [option.id for option in request.options] == list(PLAIN)


async def test_a_policy_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there, and would be lost with the model call's time."""

    async def endless(arguments: Mapping[str, Any]) -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(approval_policy, "POLICY_S", 0.01)
    assert "(TimeoutError)" in (await request_of(mailing(endless))).prompt


async def test_a_stop_ends_a_policy() -> None:
    """A cancelled model call is not taken for a policy that failed."""
    started = asyncio.Event()

    async def endless(arguments: Mapping[str, Any]) -> bool:
        started.set()
        await asyncio.Event().wait()
        return False

    thread = await Conversation.start(mailing(endless))
    await thread.say("go")
    call = asyncio.create_task(thread.activities.execute(thread.request))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await thread.store.begin_step("t", 1, 0, 2)).state == "open"


async def test_nothing_is_asked_about_calls_that_do_not_run_or_only_wait() -> None:
    """A refused call has its answer, and a wait has nothing to approve. The control asks about the one that runs."""
    reply = Reply(Call("nobody", {}), Call("send", {"wrong": 1}), Call("doze", {}), Call("send", {"to": "ann"}))
    agent = mailing(None, "always", reply)

    @agent.tool(passive=True)
    async def doze() -> None:
        """Wait."""

    assert [call.approval is not None for call in await asked(agent)] == [False, False, False, True]


async def test_a_retry_does_not_ask_the_policy_again() -> None:
    """What it has said is stored with the step: a lost reply must not turn a yes into a no."""
    answers = [ApprovalRequest(prompt="Sure?")]
    store = MemoryStore()
    agent = mailing(lambda _: answers.pop())
    thread = await Conversation.start(agent, store)
    await thread.say("go")
    first = await thread.complete()
    assert first.calls[0].approval is not None
    assert await thread.complete(attempt=2) == first
    assert answers == []
    assert len(requests_of(agent).requests) == 1


async def test_a_store_that_is_away_fails_the_call_and_asks_nobody() -> None:
    """The control of the catch-all: only what the policy itself does is its failure."""

    class Away(MemoryStore):
        async def begin_step(self, thread_id: str, turn: int, step: int, attempt: int) -> Step:
            raise StoreUnavailable("The database cannot be reached.")

    thread = await Conversation.start(mailing("always"), Away())
    await thread.say("go")
    assert "cannot be reached" in (await failed(thread.complete(attempt=2))).message


async def test_the_workflow_sees_the_question_without_its_words() -> None:
    """What deciding needs, and what tells equal calls; of a call that nobody is asked about nothing more."""
    reply = Reply(Call("send", '{"to": "ann", "copies": 2}'), Call("read", {}))
    agent = mailing("always", "never", reply)

    @agent.tool
    async def read() -> str:
        return ""

    thread = await Conversation.start(agent)
    await thread.say("go")
    send, other = (await thread.complete()).calls
    assert other == CallOutline(index=1, tool="read")
    assert send.approval is not None
    assert [(option.id, option.label) for option in send.approval.options] == [(name, "") for name in PLAIN]
    assert send.approval.prompt == ""
    assert send.arguments_digest == arguments_digest({"copies": 2, "to": "ann"})


@pytest.mark.parametrize("arguments", ["", "[1]", "{", '{"a":NaN}'])
def test_arguments_that_are_no_object_have_no_digest(arguments: str) -> None:
    """Only a call from outside can have such; what was remembered for other arguments does not release it."""
    assert asking(ApprovalRequest(), arguments) == {"approval": ApprovalRequest(), "arguments_digest": None}
    assert asking(None, arguments) == {}
    assert cast("str", asking(ApprovalRequest(), "{}")["arguments_digest"]) == arguments_digest({})
