"""`perdure dev`."""

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.options import AGENTS_HELP, port_number


def dev(
    agents: Annotated[str | None, typer.Argument(metavar="MODULE:ATTRIBUTE", help=AGENTS_HELP)] = None,
    port: Annotated[
        int | None, typer.Option(parser=port_number, help="Temporal's port.", show_default="7233, or a free one")
    ] = None,
    ui_port: Annotated[
        int | None, typer.Option(parser=port_number, help="Temporal UI's port.", show_default="8233, or a free one")
    ] = None,
    gateway_port: Annotated[
        int | None, typer.Option(parser=port_number, help="The gateway's port.", show_default="8321, or a free one")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where the servers keep their data.")] = Path(".perdure"),
) -> None:
    """Start all that development needs: PostgreSQL, Temporal with its UI, a worker and a gateway. Ctrl-C stops it.

    PERDURE_DATABASE_URL and TEMPORAL_ADDRESS name servers to use instead.
    """
    from perdure.dev.command import Ports, run
    from perdure.loader import DEMO

    raise typer.Exit(run(DEMO if agents is None else agents, data_dir, Ports(port, ui_port, gateway_port)))
