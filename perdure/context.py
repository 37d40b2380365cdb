"""Context providers: what an agent is told besides its conversation, and what looks at a turn when it is over.

A provider is one object for all threads, so it keeps nothing of a thread in itself; what it wants to remember goes into
`state`. Its hooks may run more than once for a turn when a worker dies in the middle; what they return or leave in
`state` counts once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from perdure.messages import Message, Status
from perdure.turn_context import ContextMessage


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
        state: what this provider keeps of the thread, a copy that may be changed: kept when the hook after the turn
            has returned. Values are JSON.
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
        result: success; failure, with a sentence in `error`; cancel, if a person stopped it; limit.
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
        replace: is read by the model instead of the conversation before this turn. What is stored stays.
    """

    instructions: str = ""
    messages: Sequence[ContextMessage | str] = ()
    tools: Sequence[str] | None = None
    replace: Sequence[ContextMessage | str] | None = None


@runtime_checkable
class ContextProvider(Protocol):
    """What an agent's `context` is made of; all but the name may be left out.

    `async def before_run(self, run: ProviderRun) -> Context | None` is asked before the model is; the alias is
    `on_invoking`. `async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None` is told when the turn is
    over; the alias is `on_invoked`.

    Attributes:
        name: tells it from the agent's others, and is what its state and its messages are kept under.
        tools: all tools that it may ever offer.
        required: without it no model is asked: the step fails and is tried again. One that is not is left out, and
            the turn says so.
        timeout: how long its hook before a run may take.
        each_call: it is asked before every model call, and not once in a turn.
        schema_version: of its state; state of another version is refused and kept.
    """

    @property
    def name(self) -> str:
        """What tells it from the others."""
        ...


DEFAULT_TIMEOUT = timedelta(seconds=30)
