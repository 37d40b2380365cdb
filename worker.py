"""The composition root: settings -> store -> activities -> Worker. `python worker.py [module:attribute]`.

The only module that knows all layers. Several workers may serve one task queue; any of them may die at any time.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog
from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.after_turn import AfterTurnActivities
from activities.catalog import ToolCatalog
from activities.compact import CompactActivities
from activities.complete import CompleteActivities
from activities.dispatch import DispatchActivities
from activities.mcp_client import McpClient
from activities.model_choice import ModelChoice
from activities.parent import ParentActivities
from activities.path_cache import PathCache
from activities.rap_choose import ChooseActivities
from activities.rap_client import RapClient
from activities.rap_notify import NotifyActivities
from activities.spawn import SpawnActivities
from activities.sync import SyncActivities
from activities.thread_mail import ThreadMail
from activities.thread_tools import ThreadTools
from activities.toolsets import ToolsetClient
from perdure import policy
from perdure.agent import Agents
from perdure.cli.ending import exit_code, leave
from perdure.connection import (
    connect_temporal,
    has_search_attributes,
    may_not_administer,
    process_identity,
    register_search_attributes,
)
from perdure.errors import ConfigurationError
from perdure.loader import DEMO, load_agents
from perdure.logs import configure_logs, temporal_runtime
from perdure.mcp import McpToolset
from perdure.models import check
from perdure.ports import Store
from perdure.rap.toolset import RapToolset
from perdure.settings import Settings, load_settings
from perdure.stop_signals import on_stop_signal
from perdure.thread_calls import ThreadCalls
from perdure.tools import Toolset
from stores.migrate import migrate
from stores.postgres import PostgresStore
from workflows.compaction import CompactionWorkflow
from workflows.thread import ThreadWorkflow

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

log: "BoundLogger" = structlog.get_logger("perdure.worker")

# Our own core is deterministic and kept so by lint; loading it anew in the sandbox costs every thread 50 to 140 ms.
_PASSED_THROUGH: Final = ("perdure", "activities", "pydantic", "pydantic_core", "annotated_types", "structlog")


def create_worker(client: Client, store: Store, agents: Agents, settings: Settings) -> Worker:
    """A worker that serves the agents; run it with `async with` or `run`. At its end its connections are closed."""
    catalog = ToolCatalog(store, agents, lambda toolset: connect_toolset(toolset, store, settings))
    models = ModelChoice()
    complete = CompleteActivities(store, agents, catalog, PathCache(store, settings.max_cached_workflows), models)
    compact = CompactActivities(store, agents, models)
    asking: list[Callable[..., Any]] = [complete.complete, compact.compact]
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[ThreadWorkflow, CompactionWorkflow],
        activities=[*asking, *_activities(client, store, agents, catalog, settings)],
        workflow_runner=_runner(settings),
        identity=process_identity(),
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_activities=settings.max_concurrent_activities,
        sticky_queue_schedule_to_start_timeout=policy.STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=policy.HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=policy.HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=policy.GRACEFUL_SHUTDOWN,
        plugins=[SimplePlugin("perdure", run_context=lambda: _closing(complete, compact, catalog))],
    )


def connect_toolset(toolset: Toolset, store: Store, settings: Settings) -> ToolsetClient:
    """The way to the server of a toolset. Raises ConfigurationError if it is of no known kind."""
    match toolset:
        case RapToolset():
            return RapClient(toolset, store, settings.callback_base)
        case McpToolset():
            return McpClient(toolset)
        case _:
            raise ConfigurationError(f"The toolset {toolset.name!r} is of no kind that this worker can reach.")


def _activities(
    client: Client, store: Store, agents: Agents, catalog: ToolCatalog, settings: Settings
) -> list[Callable[..., Any]]:
    sync = SyncActivities(store, agents, catalog, search_attributes=settings.search_attributes)
    mail = ThreadMail(store, ThreadCalls(client, settings.task_queue, policy.MAIL_PATIENCE))
    dispatch = DispatchActivities(store, agents, catalog, ThreadTools(store, mail))
    spawn = SpawnActivities(store, agents, catalog, mail)
    notify = NotifyActivities(catalog.rap_clients)
    choose = ChooseActivities(store, catalog.rap_tool)
    parent = ParentActivities(store, mail)
    hooks = AfterTurnActivities(store, agents)
    family: list[Callable[..., Any]] = [spawn.spawn, spawn.stop_children, parent.tell_parent]
    return [sync.load, sync.sync, dispatch.dispatch, *family, notify.notify, choose.choose, hooks.after_turn]


async def serve(agents: Agents, settings: Settings, stop: asyncio.Event) -> None:
    """Serve the agents until `stop` is set, then hand running work over to other workers.

    Raises:
        ConfigurationError: if a model cannot be used, Temporal cannot be reached, or the database is not usable.
        StoreUnavailable: if the database cannot be reached.
    """
    for agent in agents.values():
        check(agent.model, agent.settings, agent.history)
    database_url = settings.required_database_url()
    client = await connect_temporal(runtime=temporal_runtime())
    await migrate(database_url)
    if settings.search_attributes and not await can_set_search_attributes(client):
        settings = settings.model_copy(update={"search_attributes": False})
    store = await PostgresStore.connect(database_url)
    try:
        await _run(create_worker(client, store, agents, settings), stop, agents)
    finally:
        await store.close()


def run(agents: Agents, settings: Settings) -> NoReturn:
    """Serve the agents until SIGTERM or SIGINT, then end the process; a second signal ends it at once."""
    with asyncio.Runner() as runner:
        runner.run(_serve_until_signal(agents, settings))
        # Inside, since the runner's end joins the threads of synchronous tools: a stuck one would keep the process.
        leave()


def main() -> NoReturn:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve agents: run their threads, model calls and tools.")
    parser.add_argument("agents", nargs="?", default=DEMO, metavar="module:attribute", help="what to serve")
    target: str = parser.parse_args().agents

    def load_and_run() -> None:
        settings = load_settings()
        configure_logs(settings)
        run(load_agents(target), settings)

    leave(exit_code(load_and_run))


@asynccontextmanager
async def _closing(
    complete: CompleteActivities, compact: CompactActivities, catalog: ToolCatalog
) -> AsyncGenerator[None]:
    """Around the run of a worker: at its end no call is left, and the connections to models and servers may go."""
    try:
        yield
    finally:
        await complete.close()
        await compact.close()
        await catalog.close()


def _runner(settings: Settings) -> WorkflowRunner:
    if not settings.sandbox:
        return UnsandboxedWorkflowRunner()
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH))


async def can_set_search_attributes(client: Client) -> bool:
    """Register what is missing; False if it stays missing: every thread would fail on it, again and again.

    Raises:
        ConfigurationError: if Temporal refuses for another reason than that this client is no operator.
    """
    try:
        await register_search_attributes(client)
        return True
    except ConfigurationError as error:
        # On Temporal Cloud only an administrator may look; whoever runs a worker there has added them by hand.
        if not may_not_administer(error):
            raise
        if await has_search_attributes(client):
            return True
        log.warning("search attributes are off", reason=str(error), off="PERDURE_SEARCH_ATTRIBUTES=false")
        return False


async def _run(worker: Worker, stop: asyncio.Event, agents: Agents) -> None:
    running = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    log.info("worker started", agents=list(agents), task_queue=worker.task_queue, identity=process_identity())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        log.info("worker draining", at_most_s=policy.GRACEFUL_SHUTDOWN.total_seconds())
        await worker.shutdown()
    await running  # raises what made the worker fail
    log.info("worker stopped")


async def _serve_until_signal(agents: Agents, settings: Settings) -> None:
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    await serve(agents, settings, stop)


if __name__ == "__main__":
    main()
