"""Budgets: whether a thread may spend any more, looked at before each model call."""

from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.ports import Store


class Budgets:
    """Reads what was spent, for agents that bound it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def crossed(self, agent: Agent, request: CompleteRequest) -> str | None:
        """Why no model may be asked, in a sentence for people; None if one may."""
        if request.step >= agent.limits.steps:
            return f"The turn reached its limit of {agent.limits.steps} model calls."
        return None
