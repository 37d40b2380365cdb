"""The commands that begin threads and say something to them: start, send."""

import sys
from typing import Annotated

import typer

from perdure.cli.printable import printable
from perdure.cli.threads import Thread, id_typed, with_client
from perdure.client import PerdureClient
from perdure.errors import NotTaken
from perdure.inputs import Accepted, Mode

InputName = Annotated[
    str | None,
    typer.Option(help="The message's id: sent twice under one id, it is answered once.", callback=id_typed),
]
TurnMode = Annotated[Mode, typer.Option(help="What it does to a turn that is under way.")]


def start(
    thread: Annotated[
        str | None, typer.Argument(help="The id of the new thread; left out: one is made.", callback=id_typed)
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent's name; left out: the worker's first.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose thread it is.")] = "default",
    title: Annotated[str | None, typer.Option(help="A title for people.")] = None,
    user: Annotated[str | None, typer.Option(help="The end user's id, which tool servers are told.")] = None,
) -> None:
    """Start a thread and print its id. A thread that exists stays as it is."""

    async def run(client: PerdureClient) -> None:
        typer.echo(await client.start(thread, agent=agent, tenant=tenant, title=title, user_id=user))

    with_client(run)


def send(
    thread: Thread,
    text: Annotated[str, typer.Argument(help="What to say; `-` reads it from the standard input.")],
    id: InputName = None,
    mode: TurnMode = "interrupt",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")] = False,
) -> None:
    """Send a message to a thread, and print what became of it. One that is not taken ends it with code 1."""

    async def run(client: PerdureClient) -> None:
        words = sys.stdin.read() if text == "-" else text
        if wait:
            typer.echo(printable(await client.ask(thread, words, id=id, mode=mode)))
            return
        show_accepted(await client.send(thread, words, id=id, mode=mode))

    with_client(run)


def show_accepted(accepted: Accepted) -> None:
    """Print what became of words.

    Raises:
        NotTaken: if the thread did not take them.
    """
    if refused := NotTaken.of(accepted.disposition, accepted.detail):
        raise refused
    typer.echo(f"{accepted.disposition} {accepted.message_id}")
