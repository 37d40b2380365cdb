"""The commands that carry whole conversations: export, import."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.printable import one_line
from perdure.cli.threads import Thread, id_typed, with_client
from perdure.client import PerdureClient
from perdure.codec import dumps
from perdure.errors import UsageError
from perdure.interchange import read_import
from perdure.quantity import quantity


def export(
    thread: Thread,
    file: Annotated[
        Path | None, typer.Argument(help="Where to write it, over what is there; left out or `-`: the standard output.")
    ] = None,
) -> None:
    """Write a whole conversation, all its branches and files, as JSON. The thread need not run."""

    async def run(client: PerdureClient) -> None:
        exported = await client.export_thread(thread)
        text = dumps(exported) + "\n"
        if file is None or str(file) == "-":
            sys.stdout.write(text)
            return
        try:
            file.write_text(text, encoding="ascii")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}.") from error
        typer.echo(f"{one_line(str(file))} holds {quantity(len(exported['messages']), 'message')}.")

    with_client(run)


def import_(
    file: Annotated[Path, typer.Argument(help="An export; `-` reads it from the standard input.")],
    thread: Annotated[
        str | None,
        typer.Argument(help="The thread to which it is added; left out: a new one is started.", callback=id_typed),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent of a new thread; left out: the worker's first.")] = None,
) -> None:
    """Add the messages of an export to a thread, show what it shows, and print the thread's id."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error

    async def run(client: PerdureClient) -> None:
        # Checked before, so that a file that is none leaves no new thread behind.
        await asyncio.to_thread(read_import, data)
        thread_id = await client.start(thread, agent=agent)
        for warning in (await client.import_thread(thread_id, data)).warnings:
            typer.echo(f"perdure: {one_line(warning)}", err=True)
        typer.echo(thread_id)

    with_client(run)
