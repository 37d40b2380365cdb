"""`perdure demo`."""

from typing import Annotated

import typer


def demo(
    model: Annotated[
        str | None,
        typer.Option(help="A real model such as openai:gpt-5; its key is needed. Left out: a scripted one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything up at the end, until Ctrl-C.")] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Open the thread in the browser at the end, and keep it up.")
    ] = False,
) -> None:
    """Hold a conversation in which messages come twice, answers are interrupted and workers killed; check the result.

    It brings its own PostgreSQL and Temporal, unless PERDURE_DATABASE_URL and TEMPORAL_ADDRESS name servers.
    """
    from perdure.demo.command import Demo, run

    raise typer.Exit(run(Demo(model=model, keep=keep or ui, browse=ui)))
