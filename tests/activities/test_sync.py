"""The activities that read and write a thread's state: what of it goes through Temporal."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities.sync import SyncActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, AppendParts, SyncBatch
from perdure.codec import dumps
from perdure.contract import CallOutline, LoadRequest, LoadResult, ThreadStart
from perdure.history import HistoryManager
from perdure.inputs import INLINE_BYTES
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.ports import ThreadRecord
from perdure.testing import ScriptedModel
from perdure.tools import Tool, function_tool
from stores.memory import MemoryStore

THREAD = "t"


async def wait(text: str) -> str:
    """Wait."""
    return text


WAIT = function_tool(wait, timeout=timedelta(hours=1), passive=True)
ASK = Tool(name="ask", description="Ask the user.", parameters={"type": "object"}, kind="client")


async def loaded(*parts: ToolCallPart, results: dict[str, str] | None = None) -> LoadResult:
    """What `load` returns of a thread whose open turn has made these calls."""
    store = MemoryStore()
    agents = Agents([Agent(name="a", model=ScriptedModel(["hi"]), tools=[WAIT, ASK])])
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    running = Status(state="running")
    message = Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=running, metadata={"n": "x" * 99_999})
    operations = (AppendMessage(message=message), AppendParts(message_id="m", start=0, parts=parts))
    await store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=operations))
    for call_id, content in (results or {}).items():
        await store.stage_result(THREAD, ToolResultPart(call_id=call_id, content=content))
    return await SyncActivities(store, agents).load(LoadRequest(thread_id=THREAD))


async def test_load_carries_no_words() -> None:
    """Temporal refuses payloads above 2 MB, and a thread that cannot be loaded would be lost."""
    words = "x" * INLINE_BYTES
    calls = tuple(ToolCallPart(call_id=ids.call_id(THREAD, 1, 0, n), tool="wait", arguments=words) for n in range(64))
    answer = await loaded(*calls, results={call.call_id: words for call in calls[1:]})
    assert len(dumps(answer)) < 64 * 1024
    turn = HistoryManager.from_tail(answer.tail).open_turn
    assert turn is not None
    assert [(call.call_id, call.settled) for call in turn.calls] == [
        (call.call_id, number > 0) for number, call in enumerate(calls)
    ]


async def test_load_says_how_open_calls_are_run() -> None:
    """A thread that wakes up runs its calls as the run that went to sleep would have: from the agent's tools."""
    answer = await loaded(
        ToolCallPart(call_id="c1", tool="wait", arguments='{"text":"hi","n":1}'),
        ToolCallPart(call_id="c2", tool="ask"),
        ToolCallPart(call_id="c3", tool="gone" * 99, error="There is no such tool."),
    )
    turn = HistoryManager.from_tail(answer.tail).open_turn
    assert turn is not None
    assert [call.outline for call in turn.calls] == [
        CallOutline(index=0, tool="wait", preview='text="hi", n=1', passive=True, timeout_s=3600.0),
        CallOutline(index=1, tool="ask", kind="client"),
        CallOutline(index=2, tool=turn.calls[2].outline.tool),
    ]
    assert len(turn.calls[2].outline.tool) == 64
    assert [call.settled for call in turn.calls] == [False, False, True]


async def test_a_stored_thread_waits_for_a_worker_that_serves_its_agent() -> None:
    """In a deploy the thread may meet a worker without its agent: the run that holds its inputs must not end."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="newer"))
    activities = SyncActivities(store, Agents([Agent(name="a", model=ScriptedModel(["hi"]))]))
    with pytest.raises(ApplicationError, match="no agent 'newer'") as failure:
        await activities.load(LoadRequest(thread_id=THREAD))
    assert not failure.value.non_retryable
    with pytest.raises(ApplicationError, match="no agent 'nobody'") as failure:
        await activities.load(LoadRequest(thread_id="new", start=ThreadStart(agent="nobody")))
    assert failure.value.non_retryable, "a thread that does not exist yet is refused to whoever asks for it"
