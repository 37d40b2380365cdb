"""The entry point of the command `perdure`. A command is imported when it is asked for, so that each starts quickly."""

import importlib
from typing import Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from perdure.bundle import put_runtime_on_path
from perdure.cli.ending import exit_code, leave

COMMANDS: Final = {
    "demo": "demo",
    "dev": "dev",
    "chat": "chat",
    "start": "threads",
    "send": "threads",
    "interrupt": "threads",
    "stop": "threads",
    "status": "threads",
    "history": "threads",
    "children": "threads",
    "close": "threads",
    "choose": "waits",
    "result": "waits",
    "subscriptions": "waits",
    "worker": "worker",
    "gateway": "gateway",
    "migrate": "migrate",
}
"""Each command and the module of this package that holds a function of that name."""


class _Commands(TyperGroup):
    """Finds a command by importing its module."""

    def list_commands(self, ctx: object) -> list[str]:
        """In the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | None:
        """None for a name that is none of ours."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"perdure.cli.{COMMANDS[cmd_name]}")
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(command)  # type: ignore[return-value]  # typer brings a click of its own


app: Final = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def perdure() -> None:
    """Durable agent threads on Temporal."""


def main() -> NoReturn:
    """Run the command line; errors of ours end it with one line and exit code 2."""
    put_runtime_on_path()
    leave(exit_code(lambda: app(prog_name="perdure")))
