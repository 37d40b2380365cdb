"""Which models are asked for an answer, in which order, and with which settings."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakSet

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.models import Model
from pydantic_ai.settings import CacheSetting, ModelSettings, ServiceTier, ThinkingLevel
from typing_extensions import TypedDict

from perdure import models
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.errors import ConfigurationError
from perdure.messages import TurnOptions
from perdure.records import Path
from perdure.thinking import thinking_objection

KEPT_MODELS: Final = 32
"""Models by name that a worker keeps ready. Words may name any, so there is no other bound to how many it has met."""


class MessageSettings(TypedDict, total=False):
    """What a message may set: how the model answers.

    Where requests go, by which key, and what else is in them is the agent's: a message comes from people who are not to
    have the worker's keys sent to a server of theirs.
    """

    cache: CacheSetting
    frequency_penalty: float
    logit_bias: dict[str, int]
    max_tokens: int
    parallel_tool_calls: bool
    presence_penalty: float
    seed: int
    service_tier: ServiceTier
    stop_sequences: list[str]
    temperature: float
    thinking: ThinkingLevel
    top_k: int
    top_p: float


_message_settings = TypeAdapter(MessageSettings)


@dataclass(frozen=True)
class Candidate:
    """A model that may be asked: a name or a model object, the settings for it, and the conversation it is about.

    `anew`: only if it was asked to go on from what its server keeps and that does not know it any more.
    """

    model: str | Model[Any]
    settings: Mapping[str, Any]
    conversation: str
    continues: bool = False
    anew: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return models.model_name(self.model)


@dataclass(frozen=True, eq=False)
class Chosen:
    """A model to ask, by the name that people read, and the settings for it.

    `continues`: its server keeps the conversation, so that only what is new is sent; `anew`: all of it, once more.
    """

    name: str
    model: Model[Any]
    settings: ModelSettings
    continues: bool = False
    anew: bool = False


@dataclass
class _Kept:
    """A model that was resolved by name, and who asks it now."""

    model: Model[Any]
    connections: AsyncExitStack
    users: WeakSet[Chosen] = field(default_factory=WeakSet[Chosen])


class ModelChoice:
    """The models of the agents that a worker serves; each is made once, so that its connections are used again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Any, Any], _Kept] = OrderedDict()
        self._lock = asyncio.Lock()

    def candidates(self, agent: Agent, path: Path, request: CompleteRequest) -> tuple[Candidate, ...]:
        """The models to ask, the first one first; the next is asked when the one before cannot answer.

        First the one that the words name which the turn answers, or else the thread's, or else the agent's. None is
        made before it is asked: one that cannot be used does not get in the way of the others.

        Raises:
            ConfigurationError: if the words or the thread ask for what the agent does not allow, in a sentence.
        """
        options = options_of(path) or TurnOptions()
        own = {models.model_name(model): model for model in (*agent.fallbacks, agent.model)}
        first = _allowed(options.model or path.model, agent, own)
        asked = [first, *(model for model in agent.fallbacks if model is not first and model != first)]
        of_message = _checked(options.settings or {}, agent)
        beginning = path.summary or (path.messages[0] if path.messages else None)
        conversation = request.thread_id if beginning is None else beginning.thread_id
        found = [Candidate(model, {**_settings_for(model, agent), **of_message}, conversation) for model in asked]
        if agent.history == "service":
            # A fallback gets the whole conversation: another server knows nothing of it.
            going_on = replace(found[0], continues=True)
            found[0:1] = [going_on, replace(going_on, anew=True)]
        return tuple(found)

    async def open(self, candidate: Candidate) -> Chosen:
        """The model itself, ready to be asked.

        Raises:
            ConfigurationError: if it cannot be used, with a sentence that says what to do.
        """
        if not isinstance(candidate.model, str):
            return _chosen(candidate, candidate.model)
        settings = candidate.settings
        key = (candidate.model, settings.get(models.BASE_URL), settings.get(models.API_KEY_ENV))
        if (kept := self._kept.get(key)) is None:
            async with self._lock:
                kept = self._kept.get(key) or await self._made(key, candidate.model, settings)
        # Nothing is awaited from here on, so it is still there, and is in use before the next one can be given up.
        self._kept.move_to_end(key)
        chosen = _chosen(candidate, kept.model)
        kept.users.add(chosen)
        return chosen

    async def close(self) -> None:
        """Close the connections of the models that were resolved by name."""
        kept = list(self._kept.values())
        self._kept.clear()
        for each in kept:
            await each.connections.aclose()

    async def _made(self, key: tuple[str, Any, Any], name: str, settings: Mapping[str, Any]) -> _Kept:
        # In a thread, since a provider's client may take seconds to import, and heartbeats have to go on meanwhile.
        kept = _Kept(await asyncio.to_thread(models.resolve, name, settings), AsyncExitStack())
        await kept.connections.enter_async_context(kept.model)
        self._kept[key] = kept
        await self._give_up_idle()
        return kept

    async def _give_up_idle(self) -> None:
        """Close the models that were asked the longest ago. One that answers now stays, however many there are."""
        excess = len(self._kept) - KEPT_MODELS
        newest = next(reversed(self._kept))
        idle = [key for key, kept in self._kept.items() if not kept.users and key != newest]
        for key in idle[: max(excess, 0)]:
            await self._kept.pop(key).connections.aclose()


def options_of(path: Path) -> TurnOptions | None:
    """How the newest words that say so want to be answered, of those that the turn at the end of the path answers.

    By their place and not by their turn: an answer that is given once more belongs to another turn than the first.
    """
    for message in reversed(path.messages[:-1]):
        if message.role == "assistant":
            return None
        if message.options is not None:
            return message.options
    return None


def _allowed(name: str | None, agent: Agent, own: Mapping[str, Any]) -> Any:
    if name is None:
        return agent.model
    if name in own:
        return own[name]
    if agent.models is not None and name not in agent.models:
        names = ", ".join(dict.fromkeys((models.model_name(agent.model), *agent.models)))
        raise ConfigurationError(f"The model {name!r} may not be chosen with agent {agent.name!r}; it allows {names}.")
    return name


def _checked(settings: Mapping[str, Any], agent: Agent) -> Mapping[str, Any]:
    names = MessageSettings.__annotations__
    if refused := sorted(set(settings) - set(names)):
        raise ConfigurationError(
            f"A message to agent {agent.name!r} cannot set {', '.join(refused)}; it can set {', '.join(names)}."
        )
    if "thinking" in settings and (why := thinking_objection(settings["thinking"])) is not None:
        raise ConfigurationError(f"A message to agent {agent.name!r} sets thinking to what it cannot be: {why}.")
    try:
        _message_settings.validate_python(settings, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigurationError(
            f"A message to agent {agent.name!r} sets {first['loc'][0]} to what it cannot be: {first['msg']}."
        ) from error
    return settings


def _settings_for(model: Any, agent: Agent) -> Mapping[str, Any]:
    """The agent's settings. Its server and key are those of its own model's provider, and go to no other one."""
    elsewhere = {models.BASE_URL, models.API_KEY_ENV} & set(agent.settings)
    if not elsewhere or model is agent.model:
        return agent.settings
    if all(isinstance(each, str) for each in (model, agent.model)) and _same_provider(model, agent.model):
        return agent.settings
    return {name: value for name, value in agent.settings.items() if name not in elsewhere}


def _same_provider(one: str, other: str) -> bool:
    return models.provider_of(one) == models.provider_of(other)


def _chosen(candidate: Candidate, model: Model[Any]) -> Chosen:
    if candidate.continues:
        models.check(model, history="service")
    settings = models.model_settings(model, candidate.settings, candidate.conversation)
    return Chosen(candidate.name, model, settings, candidate.continues, candidate.anew)
