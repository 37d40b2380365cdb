"""How much a model thinks before it answers, as agents, words and commands say it."""

from typing import Final, Literal, get_args

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""As the library knows it that asks the models. It is not imported for that: whoever declares an agent may lack it."""

_LEVELS: Final = ", ".join((*get_args(Effort), "True", "False"))


def thinking_objection(value: object) -> str | None:
    """Why a setting `thinking` cannot be this; None if it can. True is as much as the provider likes, False is off."""
    if isinstance(value, bool) or value in get_args(Effort):
        return None
    return f"{value!r:.80} is none of {_LEVELS}"
