"""Words that several commands share."""

from typing import Final

AGENTS_HELP: Final = "An Agent, a list of them, or a function that makes them. Left out: the built-in demo agent."
