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
from perdure.errors import ThreadNotFound, UsageError
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
    agent: Annotated[
        str | None, typer.Option(help="The agent of a new thread; left out: the file's, or else the worker's first.")
    ] = None,
) -> None:
    """Add the messages of an export to a thread, show what it shows, and print the thread's id.

    Whose agent answers in a new thread is said on the standard error.
    """
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error

    async def run(client: PerdureClient) -> None:
        # Checked before, so that a file that is none leaves no new thread behind.
        named = (await asyncio.to_thread(read_import, data)).agent
        if await _is_there(client, thread):
            thread_id = await client.start(thread, agent=agent)
        else:
            thread_id = await _begin(client, thread, agent, named)
            serves = (await client.store.get_thread(thread_id)).agent
            typer.echo(f"perdure: The agent {one_line(serves)} answers in the new thread.", err=True)
        for warning in (await client.import_thread(thread_id, data)).warnings:
            typer.echo(f"perdure: {one_line(warning)}", err=True)
        typer.echo(thread_id)

    with_client(run)


async def _is_there(client: PerdureClient, thread: str | None) -> bool:
    try:
        return thread is not None and bool(await client.store.get_thread(thread))
    except ThreadNotFound:
        return False


async def _begin(client: PerdureClient, thread: str | None, agent: str | None, named: str | None) -> str:
    """A new thread, of the agent that is asked for, or else of the one that the file names."""
    try:
        return await client.start(thread, agent=agent or named)
    except UsageError as error:
        if agent is not None or named is None:
            raise
        # Another one has other instructions and other tools, so it is not taken unasked.
        raise UsageError(f"{error} The file names that agent; --agent takes another one.") from error
