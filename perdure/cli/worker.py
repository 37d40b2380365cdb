"""`perdure worker`."""

from typing import Annotated

import typer

from perdure.cli.options import AGENTS_HELP


def worker(
    agents: Annotated[str | None, typer.Argument(metavar="[MODULE:ATTRIBUTE]", help=AGENTS_HELP)] = None,
) -> None:
    """Serve agents: run their threads, model calls and tools.

    SIGTERM or Ctrl-C hands running work over to other workers, a second one ends at once.
    """
    from perdure.loader import DEMO
    from perdure.settings import load_settings
    from worker import run

    run(agents or DEMO, load_settings())
