"""`perdure worker`."""

import asyncio
from typing import Annotated

import typer

from perdure.cli.options import AGENTS_HELP


def worker(
    agents: Annotated[str | None, typer.Argument(metavar="MODULE:ATTRIBUTE", help=AGENTS_HELP)] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only find out whether these agents, their models and the codec can be used, and end."
        ),
    ] = False,
) -> None:
    """Serve agents: run their threads, model calls and tools.

    SIGTERM or Ctrl-C hands running work over to other workers, a second one ends at once.
    """
    from perdure.loader import DEMO, load_agents
    from perdure.logs import configure_logs
    from perdure.settings import load_settings

    target = DEMO if agents is None else agents  # an empty variable of a script does not mean the demo
    settings = load_settings()
    configure_logs(settings)
    served = load_agents(target)
    if check:
        from perdure.converter import check_codec
        from perdure.loader import load_codec
        from perdure.models import check as check_model

        for agent in served.values():
            check_model(agent.model, agent.settings, agent.history)
        if settings.payload_codec:
            asyncio.run(check_codec(load_codec(settings.payload_codec)))
        typer.echo(f"{target} can be served: {', '.join(served)}.")
        return
    from worker import run  # takes a second to import, and a wrong name should not have to wait for it

    run(served, settings)
