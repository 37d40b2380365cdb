"""A family in which a child wants to pay, and people have to approve that."""

from perdure.agent import Agent
from perdure.approval import ApprovalRequest
from perdure.builtins import Threads
from perdure.limits import Limits
from perdure.testing import Call, Reply
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.family import ROOT, Family, Me, Role, child_of, closed, is_idle, made, reports, spawn

PAY = Reply(Call("pay", {"amount": 3}))


class Household:
    """A root that spawns `one` when it is told to go; `one` pays, and closes with the words of the result."""

    def __init__(
        self,
        thread: str,
        *,
        one: Role | None = None,
        limits: Limits | None = None,
        asked: ApprovalRequest | None = None,
    ) -> None:
        self.thread = thread
        self.child = child_of(thread)
        self.paid: list[int] = []
        self.model = Family({ROOT: root, "one": one or [PAY, closing_with_what_was_heard]})
        self.agent = Agent("a", model=self.model, toolsets=[Threads()], limits=limits or Limits())

        @self.agent.tool(approval=lambda arguments: asked or True)
        async def pay(amount: int = 0) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

    async def paused(self, stack: Stack, thread: str | None = None, *, count: int = 1) -> list[str]:
        """The calls of a thread, the child if none is named, that wait, once its turn waits for nothing but people."""
        name = thread or self.child
        await made(stack, name)

        async def found() -> list[str]:
            calls = [one.call_id for one in await stack.client.approvals(name)]
            messages = await stack.client.history(name)
            rests = bool(messages) and messages[-1].status.state == "requires_action"
            return calls if rests and len(calls) == count else []

        return await eventually(found, timeout=20)

    async def begin(self, stack: Stack) -> str:
        """Set the family to work; returns the call of the child that waits, when its parent idles."""
        await stack.client.ask(self.thread, "go", id="m1")
        (call_id,) = await self.paused(stack)
        assert self.paid == []
        return call_id

    async def assert_heard(self, stack: Stack, *expected: str) -> None:
        """The child closes, and its parent hears this of it and answers."""
        await closed(stack, self.child)
        await eventually(lambda: _heard(stack, self.thread, list(expected)), timeout=20)


def root(who: Me) -> Reply | str:
    """The root: it spawns, pays, or says that it is there."""
    if who.heard:
        return "noted"
    return {"go": spawn(who, "one"), "pay": PAY}.get(who.asked.user_text, "I am here")


def closing_with_what_was_heard(who: Me) -> Reply:
    """A child that reports what its last result says, and ends."""
    return Reply(Call("close_thread", {"thread_id": who.id, "report_to_parent": who.heard}))


async def _heard(stack: Stack, thread: str, expected: list[str]) -> bool:
    return await reports(stack, thread) == expected and await is_idle(stack, thread)
