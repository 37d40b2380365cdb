"""Context providers: what an agent is told besides its conversation, and what looks at a turn when it is over.

A provider is one object for all threads, so it keeps nothing of a thread in itself; what it wants to remember goes into
`state`. Its hooks may run more than once for a turn when a worker dies in the middle; what they return or leave in
`state` counts once.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

from pydantic import ValidationError

from perdure.errors import ConfigurationError, InvalidContext
from perdure.messages import Message, Status
from perdure.tools import Tool
from perdure.turn_context import ContextMessage, ProviderContext


@dataclass(frozen=True)
class ProviderRun:
    """A turn, for the hooks of a provider.

    Attributes:
        thread_id: the conversation.
        agent: the agent's name.
        tenant: whose conversation it is.
        turn: its number; with `step` what a hook may use as a key to be idempotent by.
        step: the model call that is about to be made, from 0.
        input: the words and events that the turn answers, as they are stored.
        state: what this provider keeps of the thread, a copy. What the hook after the turn leaves in it is kept when
            that has returned; what the hook before a run changes is not. Values are JSON.
    """

    thread_id: str
    agent: str
    tenant: str
    turn: int
    step: int
    input: tuple[Message, ...]
    state: dict[str, Any]


@dataclass(frozen=True)
class RunOutcome:
    """How a turn ended.

    Attributes:
        result: success; failure, with a sentence in `error`; cancel, if a person stopped it; limit. A turn that words
            joined, and that goes on in the next one, is a success.
        status: the turn's status as it is stored.
        message: the turn's message with all its parts, empty if it brought none.
        context: what providers had said, by their names.
    """

    result: Literal["success", "failure", "cancel", "limit"]
    status: Status
    message: Message
    error: str | None = None
    context: Mapping[str, tuple[ContextMessage, ...]] = field(default_factory=dict[str, tuple[ContextMessage, ...]])


@dataclass(frozen=True)
class Context:
    """What a provider puts before the model; all of it may be left out.

    Attributes:
        instructions: follow the agent's own; never stored.
        messages: stand after the conversation so far and before the words that the turn answers.
        tools: names of those of its `tools` that it offers now; None offers them all.
        replace: is read by the model instead of the conversation before this turn. What is stored stays. Of several
            providers one's follows the other's.
    """

    instructions: str = ""
    messages: Sequence[ContextMessage | str] = ()
    tools: Sequence[str] | None = None
    replace: Sequence[ContextMessage | str] | None = None


BeforeRun = Callable[[ProviderRun], Awaitable[Context | None]]
AfterRun = Callable[[ProviderRun, RunOutcome], Awaitable[None]]


@runtime_checkable
class ContextProvider(Protocol):
    """What an agent's `context` is made of; all but the name may be left out.

    `async def before_run(self, run: ProviderRun) -> Context | None` is asked before the model is; the alias is
    `on_invoking`. `async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None` is told when the turn is
    over; the alias is `on_invoked`.

    Attributes:
        name: tells it from the agent's others, and is what its state and its messages are kept under.
        tools: all tools that it may ever offer.
        required: without it no model is asked: the step fails and is tried again, or the turn fails if what it
            returned is no context. One that is not is left out, and the turn says so.
        timeout: how long a hook of it may take.
        each_call: it is asked before every model call, and not once in a turn.
        schema_version: of its state; state of another version is refused and kept.
        write_only: it only writes down what happened (an audit log, an evaluation): if its hook after a turn fails,
            the thread says so and goes on, and the hook is not tried again.
        load_messages: it gives the model the conversation, of which there is one in an agent.
    """

    @property
    def name(self) -> str:
        """What tells it from the others."""
        ...


DEFAULT_TIMEOUT: Final = timedelta(seconds=30)

_ALIASES: Final = {"before_run": "on_invoking", "after_run": "on_invoked"}


def before_hook(provider: ContextProvider) -> BeforeRun | None:
    """What is asked before a model is, if there is something to ask."""
    hook: BeforeRun | None = _hook(provider, "before_run")
    return hook


def after_hook(provider: ContextProvider) -> AfterRun | None:
    """What is told of a turn that is over, if it wants to be."""
    hook: AfterRun | None = _hook(provider, "after_run")
    return hook


def check_provider(agent: str, provider: ContextProvider) -> None:
    """Raises ConfigurationError if it cannot be a provider of an agent."""
    name: object = getattr(provider, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"Agent {agent!r}: the context provider {type(provider).__name__} needs a name.")
    who = f"Agent {agent!r}, context provider {name!r}"
    for hook, alias in _ALIASES.items():
        if getattr(provider, hook, None) and getattr(provider, alias, None):
            raise ConfigurationError(f"{who}: `{hook}` and `{alias}` are one hook; keep one of them.")
        if (given := _hook(provider, hook)) and not inspect.iscoroutinefunction(given):
            raise ConfigurationError(f"{who}: `{hook}` must be an `async def`.")
    if timeout_of(provider) <= timedelta():
        raise ConfigurationError(f"{who}: within a timeout of {timeout_of(provider)} nothing can be asked.")
    _check_tools(provider)


def _check_tools(provider: ContextProvider) -> None:
    who, made = f"Context provider {provider.name!r}", "`function_tool(...)`"
    tools: object = getattr(provider, "tools", ())
    if not isinstance(tools, Iterable) or isinstance(tools, str):
        raise ConfigurationError(f"{who}: its `tools` are a list of what {made} makes.")
    for tool in cast("Iterable[object]", tools):
        if isinstance(tool, Tool):
            continue
        what = f"{tool.__name__} is a plain function" if inspect.isroutine(tool) else f"{tool!r} is none"
        raise ConfigurationError(f"{who}: its tools are made with {made}; {what}.")


def has_hooks(providers: Iterable[ContextProvider]) -> bool:
    """Whether something is to be done after a turn: a hook, or to forget what was said before one."""
    return any(before_hook(provider) or after_hook(provider) or keeps_log(provider) for provider in providers)


def tools_of(provider: ContextProvider) -> tuple[Tool, ...]:
    """All tools that it may ever offer."""
    return tuple(getattr(provider, "tools", ()))


def timeout_of(provider: ContextProvider) -> timedelta:
    """How long a hook of it may take."""
    return getattr(provider, "timeout", DEFAULT_TIMEOUT)


def is_required(provider: ContextProvider) -> bool:
    """Whether no model is asked without it."""
    return getattr(provider, "required", True)


def is_each_call(provider: ContextProvider) -> bool:
    """Whether it is asked before every model call."""
    return getattr(provider, "each_call", False)


def is_sink(provider: ContextProvider) -> bool:
    """Whether nobody waits for what it writes."""
    return getattr(provider, "write_only", False)


def keeps_log(provider: ContextProvider) -> bool:
    """Whether it is a log beside the conversation (`perdure.history_provider.HistoryProvider`)."""
    return getattr(provider, "is_log", False)


def loads_messages(provider: ContextProvider) -> bool:
    """Whether it gives the model the conversation."""
    return getattr(provider, "load_messages", False)


def schema_version_of(provider: ContextProvider) -> int:
    """That of its state."""
    return getattr(provider, "schema_version", 1)


def said(provider: ContextProvider, answer: object, step: int) -> ProviderContext:
    """What a hook before a run has returned, as it is kept: nothing is shared with the provider.

    Raises:
        InvalidContext: if it is no context, or offers tools that the provider does not declare.
    """
    if answer is None:
        return ProviderContext(source=provider.name, step=step)
    if not isinstance(answer, Context):
        raise InvalidContext(f"it returned {type(answer).__name__}, not a Context or None")
    try:
        return _kept(provider, answer, step)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidContext(f"its `{first['loc'][0]}` are not valid: {first['msg']}") from error
    except TypeError as error:
        raise InvalidContext(f"its Context is not valid: {error}") from error


def _kept(provider: ContextProvider, answer: Context, step: int) -> ProviderContext:
    tools = None if answer.tools is None else tuple(answer.tools)
    declared = {tool.name for tool in tools_of(provider)}
    if unknown := [name for name in tools or () if name not in declared]:
        raise InvalidContext(f"it offers the tool {unknown[0]!r}, which is none of its `tools`")
    return ProviderContext(
        source=provider.name,
        instructions=answer.instructions,
        messages=_messages(answer.messages),
        tools=tools,
        replace=None if answer.replace is None else _messages(answer.replace),
        step=step,
    )


def _messages(given: Sequence[ContextMessage | str]) -> tuple[ContextMessage, ...]:
    if isinstance(given, str):
        raise InvalidContext("its messages are one text; put it into a list")
    return tuple(ContextMessage(text=one) if isinstance(one, str) else one for one in given)


def _hook(provider: ContextProvider, name: str) -> Any:
    return getattr(provider, name, None) or getattr(provider, _ALIASES[name], None)
