"""What a thread has to outlast: the end of a run, hibernation, another worker."""

from collections.abc import Callable
from datetime import timedelta

from temporalio.client import WorkflowExecutionStatus

from perdure.agent import Agent
from perdure.limits import Limits
from perdure.testing import ScriptedModel
from tests.cases.conversation import Conversation, agent_of
from tests.eventually import eventually

RUNS = Limits(history_events=5)
"""Every run ends with the first input that it takes, and with every step; not by waiting alone."""


def limited(
    declare: Callable[[ScriptedModel], Agent] = agent_of, limits: Limits = RUNS
) -> Callable[[ScriptedModel], Agent]:
    """The agent with other limits."""

    def declared(model: ScriptedModel) -> Agent:
        agent = declare(model)
        agent.limits = limits
        return agent

    return declared


class Break:
    """What may come between any two things that people do."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.limits = {"continue": RUNS, "hibernate": Limits(idle=timedelta(seconds=0.7))}.get(kind, Limits())
        self._run: str | None = None

    def declared(self, declare: Callable[[ScriptedModel], Agent] = agent_of) -> Callable[[ScriptedModel], Agent]:
        """The agent with limits by which it comes soon."""
        return limited(declare, self.limits)

    async def come(self, talk: Conversation) -> None:
        """Wait until the thread goes on in another run, sleeps, or has another worker."""
        if self.kind == "restart":
            await talk.stack.restart_worker()
            return
        handle = talk.stack.handle(talk.thread)

        async def is_there() -> bool:
            described = await handle.describe()
            if self.kind == "hibernate":
                return described.status == WorkflowExecutionStatus.COMPLETED
            before, self._run = self._run, described.run_id
            return self._run != before

        await eventually(is_there, timeout=20)
