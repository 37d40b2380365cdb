"""Compaction: what an agent does when a conversation outgrows its model's context window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from perdure.errors import ConfigurationError
from perdure.messages import Usage
from perdure.records import SummaryKind

ENDED: Final = "The compaction was ended from outside."
"""Why one has failed whose workflow was terminated."""


@dataclass(frozen=True)
class Compaction:
    """When a conversation is made shorter for the model, and how. The stored conversation stays whole.

    Attributes:
        strategy: `summary` has a model sum up what is left out; `trace` keeps the words and one line of each tool
            call; `window` leaves the oldest messages out and says so.
        at: it begins when a request has taken this share of the context window.
        keep: about this share of the context window, the newest part of the conversation, stays as it is.
        context_window: tokens that the model takes; None asks the model's profile, and of a model that does not tell
            nothing is compacted before it complains.
        model: who sums up; None is the agent's model.
        instructions: what the summariser is told; None is a text of ours.
    """

    strategy: SummaryKind = "summary"
    at: float = 0.8
    keep: float = 0.2
    context_window: int | None = None
    model: Any = None
    instructions: str | None = None

    def __post_init__(self) -> None:
        """Refuse shares that leave no room, and strategies that are none."""
        if self.strategy not in get_args(SummaryKind):
            known = ", ".join(get_args(SummaryKind))
            raise ConfigurationError(f"Compaction(strategy={self.strategy!r}): there are {known}.")
        if not 0 < self.at <= 1 or not 0 <= self.keep < self.at:
            raise ConfigurationError(
                f"Compaction(at={self.at}, keep={self.keep}): give shares of the window with 0 <= keep < at <= 1."
            )
        if self.context_window is not None and self.context_window < 1:
            raise ConfigurationError(f"Compaction(context_window={self.context_window}): give a number of tokens.")


def window(compaction: Compaction, profile: Mapping[str, Any]) -> int | None:
    """How many tokens the model takes, None if nobody knows; `profile` is pydantic-ai's of the model."""
    known: int | None = compaction.context_window or profile.get("context_window")
    return known


def is_due(compaction: Compaction | None, profile: Mapping[str, Any], usage: Usage) -> bool:
    """Whether a model call with this usage has come so close to the window that the conversation is to be shorter."""
    tokens = window(compaction, profile) if compaction else None
    return compaction is not None and tokens is not None and usage.tokens >= compaction.at * tokens
