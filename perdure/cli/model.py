"""The commands about what a model does with a thread: model, compact."""

from typing import Annotated

import typer

from perdure.cli.model_names import Unchecked, model_typed
from perdure.cli.printable import one_line
from perdure.cli.threads import Thread, with_client
from perdure.client import PerdureClient
from perdure.contract import CompactResult
from perdure.errors import PerdureError, UsageError
from perdure.quantity import quantity
from perdure.records import Counts


def model(
    thread: Thread,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What answers from now on; left out: show what does.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="The agent's model answers again.")] = False,
    unchecked: Unchecked = False,
) -> None:
    """Show which model answers in a thread, or have another one answer from the next model call on."""
    if name is not None and default:
        raise UsageError("Give a name or --default, not both.")
    typed = model_typed(name, unchecked=unchecked)

    async def run(client: PerdureClient) -> None:
        if typed is not None or default:
            await client.set_model(thread, typed)
        stored = await client.store.get_thread(thread)
        typer.echo(one_line(stored.model) if stored.model else f"The model of the agent {one_line(stored.agent)}.")

    with_client(run)


def compact(
    thread: Thread,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Begin it, and do not wait for how it goes.")] = False,
) -> None:
    """Have a conversation made shorter for the model, now; what was said stays, and `perdure history` shows it."""

    async def run(client: PerdureClient) -> None:
        if no_wait:
            await client.compact(thread)
            await _counts(client, thread)
            typer.echo(
                "The conversation is being made shorter for the model, beside what else goes on. What was said stays; "
                "`perdure history` shows what the model reads instead, as soon as it does."
            )
            return
        result = await client.compact(thread, wait=True)
        typer.echo(_outcome(result, await _counts(client, thread)))

    with_client(run)


async def _counts(client: PerdureClient, thread: str) -> Counts:
    counts = await client.counts(thread)
    if counts.total == 0:
        raise UsageError(f"Nothing was said in {one_line(thread)} yet, so there is nothing to make shorter.")
    return counts


def _outcome(result: CompactResult, counts: Counts) -> str:
    """How a compaction went. Raises PerdureError if it failed."""
    match result.outcome:
        case "done":
            behind = counts.total - counts.visible
            what = f"{behind:,} of {quantity(counts.total, 'message')} now" if behind else "Parts of the first message"
            return f"{what} stand behind a summary for the model. What was said stays: `perdure history` shows it."
        case "nothing":
            return "Nothing was done: what the model reads is short already, or has to stay as it is."
        case "void":
            return f"Nothing was done: {result.detail}"
        case "empty" | "failed":
            raise PerdureError(f"The conversation was not made shorter: {result.detail}")
