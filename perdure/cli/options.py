"""What several commands take, and what they say of it."""

from typing import Final

import typer

AGENTS_HELP: Final = "An Agent, a list of them, or a function that makes them. Left out: the built-in demo agent."


def port_number(text: str | int) -> int:
    """A TCP port as it was typed."""
    # A default that is an int already is asked about too.
    typed = str(text).strip()
    if not (typed.isascii() and typed.isdigit() and len(typed) <= 5 and 1 <= int(typed) <= 65_535):
        raise typer.BadParameter(f"{text!r} is no port: give a number from 1 to 65535.")
    return int(typed)


def whole_number(text: str | int) -> int:
    """A number as it was typed that counts something, from 1."""
    typed = str(text).strip()
    if not (typed.isascii() and typed.isdigit() and len(typed) <= 9 and int(typed) >= 1):
        raise typer.BadParameter(f"{text!r} is no number: give one from 1 on.")
    return int(typed)
