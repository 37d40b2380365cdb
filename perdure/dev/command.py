"""What `perdure dev` does: the servers, a worker and a gateway kept alive, and an end in order."""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from perdure.dev import process
from perdure.dev.child import Child, describe_end, keep_running
from perdure.dev.gateway_process import GatewayProcess
from perdure.dev.stack import Stack, dev_stack, usual_port
from perdure.dev.worker_process import WorkerProcess, check_agents
from perdure.errors import ConfigurationError
from perdure.loader import DEMO
from perdure.settings import Settings, gateway_address, load_environment, without_password
from perdure.stop_signals import STOP_SIGNALS, on_stop_signal

_console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Ports:
    """Ports that were asked for. None is the usual one, or a free one if that is taken."""

    temporal: int | None = None
    ui: int | None = None
    gateway: int | None = None


def run(target: str, data_dir: Path, ports: Ports) -> int:
    """Run until Ctrl-C or SIGTERM; returns the exit code. A second signal ends it without waiting."""
    return asyncio.run(_until_signal(target, data_dir, ports))


async def _until_signal(target: str, data_dir: Path, ports: Ports) -> int:
    work = asyncio.ensure_future(_run(target, data_dir, ports))

    def stop() -> None:
        _console.print("Stopping; once more to end at once.")
        work.cancel()

    # A terminal that is closed sends SIGHUP.
    on_stop_signal(stop, (*STOP_SIGNALS, signal.SIGHUP))
    try:
        return await work
    except asyncio.CancelledError:
        _console.print("Stopped.")
        return 0


async def _run(target: str, data_dir: Path, ports: Ports) -> int:
    settings = load_environment()
    port = _gateway_port(settings, ports.gateway)
    # Who has named an outer address, a tunnel's for one, is reached there; the gateway listens all the same.
    url = settings.gateway_url or gateway_address(settings.gateway_host, port)
    if target != DEMO and (code := await check_agents(target, {"PERDURE_GATEWAY_URL": url})):
        return code  # before any server starts, and before the folder has data
    async with dev_stack(settings, data_dir, port=ports.temporal, ui_port=ports.ui, gateway_url=url) as stack:
        gateway = GatewayProcess(
            settings.gateway_host,
            port,
            database_url=stack.database_url,
            temporal_address=stack.temporal_address,
            task_queue=settings.task_queue,
        )
        worker = WorkerProcess(
            target,
            database_url=stack.database_url,
            temporal_address=stack.temporal_address,
            task_queue=settings.task_queue,
            environment={"PERDURE_GATEWAY_URL": url},
        )
        _greet(stack, url)
        try:
            return await _watch(stack, worker, gateway)
        finally:
            # The gateway last: tools that the worker finishes may still call back, and what they say is kept.
            await worker.stop()
            await gateway.stop()


def _gateway_port(settings: Settings, port: int | None) -> int:
    """One port for as long as this runs, since callback URLs name it."""
    if port is None and "gateway_port" not in settings.model_fields_set:
        return usual_port(settings.gateway_port) or process.free_port(settings.gateway_host)
    port = port or settings.gateway_port
    if not process.port_is_free(port):
        raise ConfigurationError(f"Port {port} for the gateway is taken: free it, or choose another one.")
    return port


async def _watch(stack: Stack, *children: Child) -> int:
    """Returns the exit code when a child cannot start, and raises when Temporal ends."""
    watching = {
        asyncio.create_task(keep_running(child, stack.client, _console.print), name=child.kind) for child in children
    }
    if stack.temporal_server is not None:
        watching.add(asyncio.create_task(stack.temporal_server.wait(), name="Temporal"))
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in watching:
            task.cancel()
    ended = done.pop()
    if ended.get_name() != "Temporal":
        return ended.result()
    raise ConfigurationError(f"The Temporal dev server {describe_end(ended.result())}; see temporal.log.")


def _greet(stack: Stack, gateway_url: str) -> None:
    _say("Temporal", stack.temporal_address)
    if stack.ui_url:
        _say("Temporal UI", stack.ui_url)
    _say("PostgreSQL", without_password(stack.database_url))
    _say("Gateway", gateway_url)
    _say("Try", "perdure chat hello")


def _say(name: str, value: str) -> None:
    _console.print(f"{name:<14}{value}", markup=False)
