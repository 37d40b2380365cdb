"""The activities that read and write a thread's state: what of it goes through Temporal."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities.store_call import store_call
from activities.sync import SyncActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.approval import (
    ApprovalOption,
    ApprovalRequest,
    Decision,
    RememberedDecision,
    arguments_digest,
    decision_of,
)
from perdure.batch import AppendMessage, AppendParts, Decide, Operation, RememberDecision, SyncBatch, SyncReport
from perdure.builtins import Threads, Timers
from perdure.codec import dumps
from perdure.contract import CallOutline, LoadRequest, LoadResult, ThreadStart
from perdure.errors import StaleWriter, StoreError, StoreUnavailable, ThreadNotFound, UsageError
from perdure.history import HistoryManager
from perdure.inputs import INLINE_BYTES, Approval, ToolResult, UserMessage
from perdure.limits import Limits
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.policy import REMEMBERED_DECISIONS, ErrorType
from perdure.records import OpenCall, Tail, ThreadRecord
from perdure.testing import ScriptedModel
from perdure.tools import Tool, function_tool
from stores.memory import MemoryStore

THREAD = "t"


async def wait(text: str) -> str:
    """Wait."""
    return text


WAIT = function_tool(wait, timeout=timedelta(hours=1), passive=True)
ASK = Tool(name="ask", description="Ask the user.", parameters={"type": "object"}, kind="client")


async def loaded(
    *parts: ToolCallPart, results: dict[str, str] | None = None, operations: tuple[Operation, ...] = ()
) -> LoadResult:
    """What `load` returns of a thread whose open turn has made these calls."""
    store = MemoryStore()
    agents = Agents([Agent(name="a", model=ScriptedModel(["hi"]), tools=[WAIT, ASK], toolsets=[Timers()])])
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    running = Status(state="running")
    message = Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=running, metadata={"n": "x" * 99_999})
    operations = (AppendMessage(message=message), AppendParts(message_id="m", start=0, parts=parts), *operations)
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


async def test_load_says_what_people_are_asked_without_the_words() -> None:
    """A thread that wakes up waits for the same decisions; a call that was decided about is known by a digest."""
    request = ApprovalRequest(prompt="secret", options=(ApprovalOption(id="once", label="secret"),), expires_s=60)
    decision = Decision(approved=False, reason="secret", answers={"q": {"text": "secret"}}, by="ann", at=7.0)
    calls = (
        OpenCall(call_id="c1", message_id="m", turn=1, step=0, index=0, tool="wait", arguments='{"text": "a", "n": 1}'),
        OpenCall(call_id="c2", message_id="m", turn=1, step=0, index=1, tool="gone", decision=decision),
    )
    preliminary = ToolResultPart(call_id="c1", content="secret")

    class Asking(MemoryStore):
        async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
            tail = await super().load_tail(thread_id, processed)
            asked = tuple(call.with_(approval=request, interim=preliminary) for call in calls)
            return tail.with_(calls=asked)

    activities = SyncActivities(Asking(), Agents([Agent("a", model=ScriptedModel([]), tools=[WAIT])]))
    loaded = await activities.load(LoadRequest(thread_id=THREAD))
    assert "secret" not in dumps(loaded)
    waiting, decided = loaded.tail.calls
    assert (waiting.approval, waiting.decision) == (request.without_words(), None)
    assert waiting.arguments_digest == arguments_digest({"n": 1, "text": "a"})
    assert decided.decision == Decision(approved=False, by="ann", at=7.0)
    assert decided.decision_digest == decision.digest


async def test_a_decision_is_known_again_after_a_thread_has_slept() -> None:
    """Its words are in the store alone, and still the same answer is a repetition and another one is refused."""
    request, said = ApprovalRequest(allow_freeform=True), Approval(call_id="c1", approved=True, text="fine")
    calls = tuple(ToolCallPart(call_id=name, tool="ask", approval=request) for name in ("c1", "c2"))
    decide = Decide(call_id="c1", decision=decision_of(request, said, 7.0))
    history = HistoryManager.from_tail((await loaded(*calls, operations=(decide,))).tail)
    assert history.handle_content(said) == "duplicate"
    with pytest.raises(UsageError):
        history.handle_content(said.with_(text="no"))
    assert history.handle_content(said.with_(call_id="c2")) == "settled", "the control: nobody has decided about it"


async def test_load_carries_the_newest_lasting_decisions() -> None:
    """However many people have made in a thread, it is loaded with so many; the control is within that number."""
    made = [RememberedDecision(tool=f"t{number}") for number in range(REMEMBERED_DECISIONS + 3)]
    for remembered in (made, made[:2]):
        operations = tuple(RememberDecision(remembered=one) for one in remembered)
        answer = await loaded(operations=operations)
        assert answer.tail.remembered == tuple(remembered[-REMEMBERED_DECISIONS:])


async def test_a_call_of_a_tool_that_was_declared_anew_does_not_keep_a_thread_from_loading() -> None:
    """Another tool had this name, with other arguments. `dispatch` answers it; the control has those of the timer."""
    answer = await loaded(
        ToolCallPart(call_id="c1", tool="sleep_until", arguments='{"page":7}'),
        ToolCallPart(call_id="c2", tool="sleep_until", arguments='{"date":"2150-01-01","time":"09:00"}'),
    )
    turn = HistoryManager.from_tail(answer.tail).open_turn
    assert turn is not None
    assert [call.outline.kind for call in turn.calls] == ["function", "workflow"]
    assert turn.calls[1].outline.timer is not None


@pytest.mark.parametrize(("answered", "closes"), [(True, True), (False, False)])
async def test_a_thread_that_is_being_closed_closes_with_its_next_owner(answered: bool, closes: bool) -> None:
    """What is loaded of a call that has its result still says that this one closes the thread."""
    store = MemoryStore()
    agents = Agents([Agent(name="a", model=ScriptedModel(["hi"]), tools=[ASK], toolsets=[Threads()])])
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    message = Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running"))
    calls = (ToolCallPart(call_id="c1", tool="close_thread"), ToolCallPart(call_id="c2", tool="ask"))
    operations = (AppendMessage(message=message), AppendParts(message_id="m", start=0, parts=calls))
    await store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=operations))
    if answered:
        await store.stage_result(THREAD, ToolResultPart(call_id="c1", content="Closed."))
    loaded = await SyncActivities(store, agents).load(LoadRequest(thread_id=THREAD))
    history = HistoryManager.from_tail(loaded.tail)
    assert history.phase == "calling"
    history.handle_content(ToolResult(call_id="c2", content="yes"))
    assert history.state.closed == closes


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


async def test_load_creates_a_thread_once_and_gives_it_back_ever_after() -> None:
    """How a thread begins counts only for a new one; the first agent is the default."""
    store = MemoryStore()
    agents = Agents([Agent(name="a", model="openai:gpt-5", limits=Limits(steps=3, idle=timedelta(minutes=5)))])
    activities = SyncActivities(store, agents)
    start = ThreadStart(title="Paris", tenant="acme")
    first = await activities.load(LoadRequest(thread_id=THREAD, start=start))
    again = await activities.load(LoadRequest(thread_id=THREAD, start=ThreadStart(title="Oslo")))
    assert first == again
    thread = first.tail.thread
    assert (thread.agent, thread.title, thread.tenant, thread.version) == ("a", "Paris", "acme", 0)
    assert (first.idle_s, first.model) == (300.0, "openai:gpt-5")


async def test_sync_applies_a_batch_once_however_often_it_runs() -> None:
    """A local activity runs again when its workflow task is refused."""
    store = MemoryStore()
    activities = SyncActivities(store, Agents([Agent(name="a", model=ScriptedModel(["hi"]))]))
    await activities.load(LoadRequest(thread_id=THREAD))
    history = HistoryManager.from_tail((await activities.load(LoadRequest(thread_id=THREAD))).tail)
    history.handle_content(UserMessage(id="m1", text="hi"))
    batch = history.take_pending("run")
    assert batch is not None
    assert await activities.sync(batch) == await activities.sync(batch) == SyncReport(number=1)
    assert len((await store.load_history_with_ancestors(THREAD)).messages) == 2


@pytest.mark.parametrize(
    ("error", "kind", "retried"),
    [
        (StoreUnavailable("The database cannot be reached."), ErrorType.STORE, True),
        (StaleWriter("Somebody else has written."), ErrorType.STALE_WRITER, False),
        (ThreadNotFound(THREAD), ErrorType.USAGE, False),
        (StoreError("bug: parts from position 2 of message m, which has 1"), ErrorType.BUG, False),
    ],
)
async def test_an_error_of_the_store_says_whether_another_try_can_help(
    error: StoreError, kind: str, retried: bool
) -> None:
    """Only a store that is away is asked again: one that says no would say it for ever.

    The sentence promises no other try: the last try's is told when something is given up.
    """

    async def fail() -> None:
        raise error

    with pytest.raises(ApplicationError) as failure:
        await store_call(fail())
    assert (failure.value.type, failure.value.non_retryable) == (kind, not retried)
    assert failure.value.message == str(error)


async def test_b08_a_failed_read_is_no_empty_thread() -> None:
    """The load fails and may be tried again; nothing is taken for new that only could not be read."""

    class Away(MemoryStore):
        async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
            raise StoreUnavailable("The database cannot be reached.")

    activities = SyncActivities(Away(), Agents([Agent(name="a", model=ScriptedModel(["hi"]))]))
    with pytest.raises(ApplicationError, match="The database cannot be reached") as failure:
        await activities.load(LoadRequest(thread_id=THREAD))
    assert not failure.value.non_retryable


async def test_whoever_starts_a_thread_says_for_whom_it_works() -> None:
    """Tool servers are told; later starts change nothing."""
    store = MemoryStore()
    activities = SyncActivities(store, Agents([Agent("a", model=ScriptedModel([]))]))
    await activities.load(LoadRequest(thread_id=THREAD, start=ThreadStart(user_id="ann")))
    assert await store.get_metadata(THREAD) == {"user_id": "ann"}
    message = Message(id="m", thread_id=THREAD, role="user", parts=(), input_id="i")
    operations = (AppendMessage(message=message, digest="d"),)
    await store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=operations))
    await activities.load(LoadRequest(thread_id=THREAD, start=ThreadStart(user_id="eve")))
    assert await store.get_metadata(THREAD) == {"user_id": "ann"}
