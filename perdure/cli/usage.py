"""The command that tells what was spent."""

from typing import Annotated

import typer

from perdure.cli.printable import one_line
from perdure.cli.threads import id_typed, with_client
from perdure.client import PerdureClient
from perdure.codec import dumps
from perdure.errors import UsageError
from perdure.records import Spending
from perdure.spending import usage_words


def usage(
    thread: Annotated[str | None, typer.Argument(help="The thread's id.", callback=id_typed)] = None,
    tenant: Annotated[str | None, typer.Option(help="All threads of a tenant instead.")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON; money in billionths of a US dollar.")] = False,
) -> None:
    """Show what a thread has spent, and the tree of threads that it belongs to; or what a tenant has.

    What a model is doing at this moment is not in it.
    """

    async def run(client: PerdureClient) -> None:
        if thread is not None and tenant is None:
            spent = await client.usage(thread)
            typer.echo(dumps(Spending(thread=spent.thread, tree=spent.tree)) if json else "\n".join(_lines(spent)))
        elif tenant is not None and thread is None:
            used = await client.store.get_tenant_usage(tenant)
            if used is None:
                raise UsageError(f"There is no thread of the tenant {one_line(tenant)!r}.")
            typer.echo(dumps(used) if json else f"tenant {one_line(tenant)}: {', '.join(usage_words(used))}")
        else:
            raise UsageError("Give a thread or --tenant, one of the two.")

    with_client(run)


def _lines(spent: Spending) -> list[str]:
    return [
        f"thread: {', '.join(usage_words(spent.thread.usage))}",
        f"tree: {', '.join(usage_words(spent.tree.usage))}",
    ]
