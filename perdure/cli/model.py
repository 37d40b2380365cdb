"""The commands about what a model does with a thread: model, compact."""

from typing import Annotated

import typer

from perdure.cli.printable import one_line
from perdure.cli.threads import Thread, with_client
from perdure.client import PerdureClient
from perdure.errors import UsageError


def model(
    thread: Thread,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What answers from now on; left out: show what does.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="The agent's model answers again.")] = False,
) -> None:
    """Show which model answers in a thread, or have another one answer from the next model call on."""

    async def run(client: PerdureClient) -> None:
        if name is not None and default:
            raise UsageError("Give a name or --default, not both.")
        if name is not None or default:
            await client.set_model(thread, name)
        stored = await client.store.get_thread(thread)
        typer.echo(one_line(stored.model) if stored.model else f"The model of the agent {one_line(stored.agent)}.")

    with_client(run)


def compact(thread: Thread) -> None:
    """Have a conversation made shorter for the model, now; what was said stays, and `perdure history` shows it."""

    async def run(client: PerdureClient) -> None:
        await client.compact(thread)
        if (await client.counts(thread)).total == 0:
            raise UsageError(f"Nothing was said in {one_line(thread)} yet, so there is nothing to make shorter.")
        typer.echo(
            "The conversation is being made shorter for the model, beside what else goes on. What was said stays; "
            "`perdure history` shows what the model reads instead, as soon as it does."
        )

    with_client(run)
