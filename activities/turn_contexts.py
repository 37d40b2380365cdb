"""What an agent's context providers say for a model call: asked once, and kept so that a retry reads it."""

from activities.catalog import Catalog
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.messages import ContextPart
from perdure.ports import Store
from perdure.records import Path
from perdure.turn_context import TurnContext


class TurnContexts:
    """Asks the providers of an agent before a model call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, agent: Agent, request: CompleteRequest, path: Path) -> TurnContext:
        """What the providers say for this model call, or what they said when it was tried before.

        Raises:
            ApplicationError: of type `ErrorType.CONTEXT`, if a required provider fails; another try may help.
        """
        return TurnContext()


def offered(catalog: Catalog, agent: Agent, context: TurnContext) -> Catalog:
    """The agent's tools without those of providers that are not offered now."""
    return catalog


def kept_context(agent: Agent, context: TurnContext) -> tuple[ContextPart, ...]:
    """What the agent's history provider keeps of it in the conversation."""
    return ()
