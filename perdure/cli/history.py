"""`perdure history`: a whole conversation."""

from contextlib import aclosing
from typing import Annotated

import typer

from perdure.cli.conversation import Conversation
from perdure.cli.terminal import PlainTerminal
from perdure.cli.threads import Thread, approval_lines, with_client
from perdure.cli.tree_lines import places
from perdure.client import PerdureClient
from perdure.codec import dumps


def history(
    thread: Thread,
    json: Annotated[
        bool, typer.Option("--json", help="As JSON Lines: one message in each line, nothing clipped.")
    ] = False,
) -> None:
    """Show a whole conversation, also what the model reads only a summary of."""

    async def run(client: PerdureClient) -> None:
        if json:
            for message in await client.history(thread):
                typer.echo(dumps(message))
            return
        async with aclosing(client.watch(thread)) as events:
            conversation = Conversation(PlainTerminal(), limit=None)
            conversation.places = places(await client.store.load_tree(thread, parts=False))
            conversation.show(await anext(events))
            if not conversation.view.messages:
                typer.echo("Nothing was said yet.")
            for approval in conversation.view.approvals:
                typer.echo("\n".join(approval_lines(thread, approval)))

    with_client(run)
