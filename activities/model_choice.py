"""Which models are asked for an answer, in which order, and with which settings."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from perdure import models
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.records import Path


@dataclass(frozen=True)
class Chosen:
    """A model to ask, by the name that people read, and the settings for it."""

    name: str
    model: Model[Any]
    settings: ModelSettings


class ModelChoice:
    """The models of the agents that a worker serves; each is made once, so that its connections are used again."""

    def __init__(self) -> None:
        self._models: dict[str, Model[Any]] = {}
        self._connections = AsyncExitStack()

    async def of(self, agent: Agent, path: Path, request: CompleteRequest) -> tuple[Chosen, ...]:
        """The models to ask, the first one first; the next is asked when the one before cannot answer.

        Raises:
            ConfigurationError: if the first one cannot be used, with a sentence that says what to do.
        """
        model = await self._model(agent)
        name = agent.model if isinstance(agent.model, str) else model.model_name
        return (Chosen(name, model, models.model_settings(model, agent.settings)),)

    async def close(self) -> None:
        """Close the connections of the models that were resolved by name."""
        await self._connections.aclose()

    async def _model(self, agent: Agent) -> Model[Any]:
        model = self._models.get(agent.name)
        if model is None:
            model = models.resolve(agent.model, agent.settings)
            if model is not agent.model:
                await self._connections.enter_async_context(model)
            self._models[agent.name] = model
        return model
