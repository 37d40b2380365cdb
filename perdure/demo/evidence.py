"""What a finished demo left behind: in the store, in Temporal's history, and in the world that its tools acted on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.demo.tool_runs import ToolRun
from perdure.ids import workflow_id
from perdure.records import Path


@dataclass
class Notes:
    """What only a witness knows.

    Attributes:
        inputs: each message's id and words; `repeated` are the ids that were sent more than once.
        killed_words: what had streamed of an answer when its worker was killed, one text for each kill.
        killed_pids: the workers that were killed.
        stop_s: seconds from an interrupting message to the end of the turn that it stopped.
        resume_s: seconds from each kill to the end of the turn that it hit.
    """

    inputs: dict[str, str] = field(default_factory=dict[str, str])
    repeated: list[str] = field(default_factory=list[str])
    killed_words: list[str] = field(default_factory=list[str])
    killed_pids: list[int] = field(default_factory=list[int])
    stop_s: float | None = None
    resume_s: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class Evidence:
    """All that the checks look at. `retry_safe` says of each tool whether it may run again after a crash."""

    thread_id: str
    notes: Notes
    path: Path
    events: list[HistoryEvent]
    runs: list[ToolRun]
    retry_safe: Mapping[str, bool]


async def collect(
    client: PerdureClient, thread_id: str, notes: Notes, runs: list[ToolRun], retry_safe: Mapping[str, bool]
) -> Evidence:
    """Read everything from where it is durable, nothing from what was shown."""
    return Evidence(
        thread_id=thread_id,
        notes=notes,
        path=await client.store.load_history_with_ancestors(thread_id),
        events=await _read_history(client.temporal, thread_id),
        runs=runs,
        retry_safe=retry_safe,
    )


async def _read_history(temporal: Client, thread_id: str) -> list[HistoryEvent]:
    """The events of all runs, in order."""
    last = await temporal.get_workflow_handle(workflow_id(thread_id)).describe()
    run_id: str | None = last.raw_description.workflow_execution_info.first_run_id
    events: list[HistoryEvent] = []
    while run_id:
        handle = temporal.get_workflow_handle(workflow_id(thread_id), run_id=run_id)
        events += [event async for event in handle.fetch_history_events()]
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return events
