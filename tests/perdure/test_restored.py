"""What a new owner of a thread makes of a turn that the one before left open."""

from perdure import ids
from perdure.approval import RememberedDecision
from perdure.batch import AppendMessage, Operation, SyncBatch, TrackSubscription
from perdure.contract import CallOutline, CompleteResult
from perdure.history import HistoryManager
from perdure.history_state import SpawnPoint, SubscriptionLimits
from perdure.inputs import Event, ToolResult, UserMessage
from perdure.messages import Message, Outcome, TextPart, ToolCallPart, ToolResultPart, Usage
from perdure.policy import REMEMBERED_DECISIONS
from perdure.records import StepOutcome, ThreadRecord
from stores.memory import MemoryStore

THREAD = "t"
CALLS = tuple(ids.call_id(THREAD, 1, 0, index) for index in range(2))
USAGE = Usage(requests=1, input_tokens=10, output_tokens=5)


async def sync(store: MemoryStore, history: HistoryManager) -> tuple[Operation, ...]:
    """Write what is pending; returns it."""
    batch: SyncBatch | None = history.take_pending("run")
    assert batch is not None
    history.synced(await store.append_messages(batch))
    return batch.operations


async def with_open_calls(error: str | None = None) -> tuple[MemoryStore, HistoryManager]:
    """A thread whose step said something and made two calls, the second of which may have been refused."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    history.handle_content(UserMessage(id="m", text="hi"))
    await sync(store, history)
    turn, step = history.begin_step()
    calls = (ToolCallPart(call_id=CALLS[0], tool="ask"), ToolCallPart(call_id=CALLS[1], tool="no", error=error))
    parts = (TextPart(text="So:"), *calls)
    await store.finish_step(THREAD, turn, step, 1, parts, StepOutcome(finish="tool_calls", usage=USAGE), [])
    outlines = (CallOutline(index=0, tool="ask"), CallOutline(index=1, tool="no", error=error))
    history.handle_step(CompleteResult(parts=3, first_call=1, calls=outlines, usage=USAGE))
    history.flush_turn()
    await sync(store, history)
    return store, history


async def results(store: MemoryStore) -> list[tuple[str, str]]:
    """The committed results."""
    path = await store.load_history_with_ancestors(THREAD)
    return [(part.call_id, part.content) for part in path.messages[-1].parts if isinstance(part, ToolResultPart)]


async def test_every_call_gets_one_result_whoever_owns_the_thread() -> None:
    """A call that was refused is answered with the others: by the owner that saw it, and by the next one."""
    for changes_hands in (False, True):
        store, history = await with_open_calls(error="There is no tool 'no'.")
        if changes_hands:
            history = HistoryManager.from_tail(await store.load_tail(THREAD))
        assert history.handle_content(ToolResult(call_id=CALLS[0], content="yes")) == "settled"
        await sync(store, history)
        assert await results(store) == [(CALLS[0], "yes"), (CALLS[1], "There is no tool 'no'.")]
        assert history.phase == "boundary"


async def test_a_step_whose_calls_were_all_refused_goes_on() -> None:
    """Nobody waits for a result that nobody makes."""
    store, _ = await with_open_calls(error="no")
    await store.stage_result(THREAD, ToolResultPart(call_id=CALLS[0], content="yes"))
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    await sync(store, history)
    assert await results(store) == [(CALLS[0], "yes"), (CALLS[1], "no")]


async def test_the_spawn_point_is_before_the_calls() -> None:
    """A child inherits what was said before them, as it would from the owner before."""
    store, history = await with_open_calls(error="no")
    assert history.safe_spawn_point().parts == 1
    restored = HistoryManager.from_tail(await store.load_tail(THREAD))
    assert restored.safe_spawn_point() == history.safe_spawn_point()
    assert restored.safe_spawn_point() == SpawnPoint(message_id=ids.turn_message_id(THREAD, 1), parts=1)


async def test_what_a_turn_has_used_is_counted_once_by_two_owners() -> None:
    """The first step's tokens are in the thread's total although another owner ends the turn."""
    store, _ = await with_open_calls()
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    assert history.state.usage == USAGE
    for call_id in CALLS:
        history.handle_content(ToolResult(call_id=call_id, content="yes"))
    await sync(store, history)
    turn, step = history.begin_step()
    await store.finish_step(THREAD, turn, step, 1, (TextPart(text="Done."),), StepOutcome(usage=USAGE), [])
    history.handle_step(CompleteResult(parts=1, usage=USAGE))
    history.flush_turn()
    await sync(store, history)
    assert history.open_turn is None
    assert history.state.usage == USAGE + USAGE
    assert (await store.get_thread(THREAD)).usage == USAGE + USAGE


async def test_calls_keep_what_is_needed_to_run_them() -> None:
    """What `load` says of a call's tool goes into its outline."""
    store, _ = await with_open_calls()
    tail = await store.load_tail(THREAD)
    known = tuple(call.with_(kind="client", passive=True, timeout_s=3600.0) for call in tail.calls)
    history = HistoryManager.from_tail(tail.with_(calls=known))
    assert history.open_turn is not None
    assert [call.outline for call in history.open_turn.calls] == [
        CallOutline(index=0, tool="ask", preview="{}", kind="client", passive=True, timeout_s=3600.0),
        CallOutline(index=1, tool="no", preview="{}", kind="client", passive=True, timeout_s=3600.0),
    ]


async def test_only_the_newest_lasting_decisions_hold_for_the_next_owner() -> None:
    """As for the owner before, people are asked again about what older ones were for: the state stays bounded."""
    store, _ = await with_open_calls()
    made = tuple(RememberedDecision(tool=f"t{number}") for number in range(REMEMBERED_DECISIONS + 3))
    tail = (await store.load_tail(THREAD)).with_(remembered=made)
    assert HistoryManager.from_tail(tail).state.remembered == made[3:]
    few = tail.with_(remembered=made[:2])
    assert HistoryManager.from_tail(few).state.remembered == made[:2], "the control: as many as there are"


async def with_close_call(outcome: Outcome) -> HistoryManager:
    """A thread as its next owner finds it: one of its two calls was to close the thread, and has its result."""
    store, _ = await with_open_calls()
    await store.stage_result(THREAD, ToolResultPart(call_id=CALLS[0], outcome=outcome, content="Closed."))
    tail = await store.load_tail(THREAD)
    close = tail.calls[0].with_(kind="thread", operation="close_thread")
    return HistoryManager.from_tail(tail.with_(calls=(close, *tail.calls[1:])))


async def test_a_thread_that_is_being_closed_closes_with_its_next_owner() -> None:
    """The owner died between the call that closed it and the last result of its group."""
    history = await with_close_call("ok")
    assert history.phase == "calling"
    assert history.handle_content(UserMessage(id="m2", text="wait")) == "rejected"
    history.handle_content(ToolResult(call_id=CALLS[1], content="yes"))
    assert history.state.closed
    assert history.open_turn is None


async def test_a_thread_that_refused_to_close_goes_on() -> None:
    """A root cannot be closed by its model: the call has an error for its result."""
    history = await with_close_call("error")
    history.handle_content(ToolResult(call_id=CALLS[1], content="yes"))
    assert not history.state.closed
    assert history.phase == "boundary"


async def test_a_turn_that_a_closed_thread_left_open_is_closed() -> None:
    """Whoever closed it in the store left calls behind, and nobody takes in their results any more."""
    store, _ = await with_open_calls()
    await store.close_thread(THREAD)
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    await sync(store, history)
    path = await store.load_history_with_ancestors(THREAD)
    assert (path.messages[-1].status.reason, path.messages[-1].status.detail) == ("cancelled", "The thread was closed.")
    assert [call.call_id for call in history.take_interrupted_tool_calls()] == list(CALLS)
    assert history.take_pending("run") is None


async def test_words_that_a_closed_thread_left_unanswered_stay_so() -> None:
    """No model is asked for a thread that takes nothing more."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a", kind="child"))
    message = Message(id="m", thread_id=THREAD, role="user", parts=(TextPart(text="hi"),), input_id="m")
    batch = SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=(AppendMessage(message=message),))
    await store.append_messages(batch)
    assert HistoryManager.from_tail(await store.load_tail(THREAD)).take_pending("run") is not None, "an open one would"
    await store.close_thread(THREAD)
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    assert history.take_pending("run") is None
    assert history.open_turn is None


async def test_subscriptions_are_as_the_owner_before_left_them() -> None:
    """With what they have sent so far, why they are paused, and the arguments of the call that subscribed."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    tracked = (
        TrackSubscription(call_id="c1", tool="watch", arguments='{"q":1}', received=4),
        TrackSubscription(call_id="c2", tool="watch", received=9, paused="too many"),
    )
    await store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=tracked))
    limits = SubscriptionLimits(events=5)
    history = HistoryManager.from_tail(await store.load_tail(THREAD), limits)
    assert history.handle_content(Event(id="e2", call_id="c2", content="late")) == "dropped"
    assert history.handle_content(Event(id="e1", call_id="c1", content="fifth")) == "started"
    await sync(store, history)
    first, second = await store.get_active_subscriptions(THREAD)
    assert (first.received, first.arguments) == (5, '{"q":1}')
    assert first.paused == "it has sent 5 events, as many as one subscription may"
    assert (second.received, second.paused) == (9, "too many")
