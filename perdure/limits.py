"""Bounds of an agent's turns, threads and runs, and the budgets of what they may spend."""

import math
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import cast

from perdure.errors import ConfigurationError
from perdure.policy import CONTINUE_AS_NEW_EVENTS, IDLE_BEFORE_HIBERNATION


def nano_usd(usd: Decimal | float) -> int:
    """US dollars in billionths, rounded half up. A float is the number that one reads, not its binary neighbour."""
    return int((Decimal(str(usd)) * 1_000_000_000).to_integral_value(ROUND_HALF_UP))


def _is_above_zero(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and math.isfinite(value) and value > 0


@dataclass(frozen=True)
class Budget:
    """What may be spent; None is without a bound.

    Attributes:
        model_calls: how many, retries and those that were stopped included.
        tokens: in and out.
        usd: US dollars, by the prices of `genai-prices` or the agent's own (`Agent.price`). A model of which neither
            tells the price is not asked then: such a budget could not be kept.
        time: since the beginning of the turn, of the thread, or of the root thread of the tree, waits included.
    """

    model_calls: int | None = None
    tokens: int | None = None
    usd: Decimal | float | None = None
    time: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse a budget that nothing fits into."""
        for name in ("model_calls", "tokens", "usd"):
            if (value := getattr(self, name)) is not None and not _is_above_zero(value):
                raise ConfigurationError(
                    f"Budget({name}={value}): give a number above 0, or leave it out for no bound."
                )
        if not isinstance(cast("object", self.time), timedelta | None):
            raise ConfigurationError(f"Budget(time={self.time!r}): give a timedelta, such as timedelta(minutes=5).")
        if self.time is not None and self.time <= timedelta():
            raise ConfigurationError(f"Budget(time={self.time}): give a time above 0, or leave it out for no bound.")

    @property
    def is_bounded(self) -> bool:
        """Whether it bounds anything."""
        return self != Budget()


@dataclass(frozen=True)
class Price:
    """What an agent's models cost, in US dollars for a million tokens, in place of what `genai-prices` says.

    Attributes:
        input: of tokens in.
        output: of tokens out, those of thoughts included.
        cached_input: of the tokens in that the provider had in its cache; None: the same as others.
    """

    input: Decimal | float
    output: Decimal | float
    cached_input: Decimal | float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no price. A model of one's own may cost nothing."""
        for name in ("input", "output", "cached_input"):
            if (value := getattr(self, name)) is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"Price({name}={value}): give US dollars for a million tokens, 0 or more.")

    def nano_usd(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> int:
        """What a model call costs, in billionths of a US dollar; the cached tokens are among the input's."""
        cached = self.input if self.cached_input is None else self.cached_input
        parts = ((input_tokens - cached_tokens, self.input), (cached_tokens, cached), (output_tokens, self.output))
        return nano_usd(sum((tokens * Decimal(str(usd)) for tokens, usd in parts), Decimal()) / 1_000_000)


@dataclass(frozen=True)
class Limits:
    """Bounds of a turn, where crossing one settles it as incomplete and the thread goes on; and of a workflow run.

    Attributes:
        steps: model calls in one turn, retries not counted.
        model_timeout: how long one model call may take, retries not counted.
        parallel_calls: tool calls that a model may make in one step; more are answered with an error result.
        idle: an idle thread completes its workflow after this and costs nothing; the next input starts it again.
        history_events: a workflow run continues as new at about so many Temporal events.
        subscriptions: active ones in one thread; a call that would open one more is answered with an error.
        events_per_minute: of one subscription; when so many have come in a minute, it is paused.
        events_per_subscription: in all; a subscription that has sent so many is paused. None: no bound.
        turn: what one turn may spend. Budgets are looked at before each model call, so the last one may go over.
        thread: what one thread may spend, all its turns together, those of hidden branches and summaries included.
        tree: the same of a root thread and all threads below it. Each is judged by the limits of its own agent.
        tenant: the same of all threads of a tenant.
    """

    steps: int = 50
    model_timeout: timedelta = timedelta(minutes=15)
    parallel_calls: int = 64
    idle: timedelta = IDLE_BEFORE_HIBERNATION
    history_events: int = CONTINUE_AS_NEW_EVENTS
    subscriptions: int = 100
    events_per_minute: int = 600
    events_per_subscription: int | None = None
    turn: Budget = field(default_factory=Budget)
    thread: Budget = field(default_factory=Budget)
    tree: Budget = field(default_factory=Budget)
    tenant: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for scope in ("turn", "thread", "tree", "tenant"):
            if not isinstance(given := getattr(self, scope), Budget):
                raise ConfigurationError(
                    f"Limits({scope}={given!r}): give a Budget, such as Budget(model_calls=20), or leave it out."
                )
        if self.tenant.time is not None:
            raise ConfigurationError("Limits(tenant=Budget(time=...)): a tenant has no beginning; leave the time out.")
