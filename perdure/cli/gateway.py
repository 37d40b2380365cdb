"""`perdure gateway`."""

from typing import Annotated

import typer

from perdure.cli.options import port_number


def _host(typed: str | None) -> str | None:
    """An address as it was typed. An empty one, such as a variable of a script, would mean every address there is."""
    if typed is not None and not typed.strip():
        raise typer.BadParameter("it is empty: give an address, 0.0.0.0 for all there are.")
    return typed


def gateway(
    host: Annotated[
        str | None, typer.Option(help="The address to listen on.", show_default="127.0.0.1", callback=_host)
    ] = None,
    port: Annotated[
        int | None, typer.Option(parser=port_number, help="The port to listen on.", show_default="8321")
    ] = None,
) -> None:
    """Take in what tool servers send: results, events, questions and views.

    PERDURE_GATEWAY_URL tells workers where servers reach it. SIGTERM or Ctrl-C answers running requests, then ends it.
    """
    from perdure.logs import configure_logs
    from perdure.settings import DATA_DIR, load_settings

    options = {"gateway_host": host, "gateway_port": port}
    settings = load_settings(DATA_DIR, **{name: value for name, value in options.items() if value is not None})
    configure_logs(settings)
    from gateway.server import run  # takes a second to import, and a wrong setting should not have to wait for it

    run(settings)
