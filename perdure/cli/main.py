"""The entry point of the command `perdure`. A command is imported when it is asked for, so that each starts quickly."""

import importlib
from importlib import metadata
from keyword import iskeyword
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from perdure.bundle import put_runtime_on_path
from perdure.cli.ending import exit_code, leave
from perdure.cli.streams import open_streams

COMMANDS: Final = {
    "demo": "demo",
    "dev": "dev",
    "chat": "chat",
    "start": "words",
    "send": "words",
    "interrupt": "threads",
    "stop": "threads",
    "status": "threads",
    "history": "history",
    "children": "threads",
    "usage": "usage",
    "model": "model",
    "compact": "model",
    "close": "threads",
    "edit": "branches",
    "regenerate": "branches",
    "branches": "branches",
    "switch": "branches",
    "delete": "branches",
    "reset": "branches",
    "feedback": "branches",
    "export": "files",
    "import": "files",
    "approvals": "approvals",
    "approve": "approvals",
    "deny": "approvals",
    "choose": "waits",
    "result": "waits",
    "subscriptions": "waits",
    "worker": "worker",
    "gateway": "gateway",
    "migrate": "migrate",
}
"""Each command and the module of this package that holds a function of that name; `import_` for the word of Python."""


class _Command(TyperCommand):
    """Says what is wrong with an argument in words for people."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does it, without the label that pydantic puts before a complaint."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


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
        function = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        command.command(cmd_name, cls=_Command)(function)
        return typer.main.get_command(command)  # type: ignore[return-value]  # typer brings a click of its own


app: Final = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perdure {metadata.version('perdure')}")
        raise typer.Exit


@app.callback()
def perdure(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable agent threads on Temporal."""


def main() -> NoReturn:
    """Run the command line; errors of ours end it with one line and an exit code."""
    open_streams()
    put_runtime_on_path()
    leave(exit_code(lambda: app(prog_name="perdure")))
