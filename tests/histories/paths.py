"""The paths that a thread can take through its workflow, each walked once on real servers to be recorded."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from temporalio.client import WorkflowExecutionStatus

from perdure import ids
from perdure.batch import SetStatus, SyncBatch
from perdure.errors import UsageError
from perdure.history import HistoryManager
from perdure.inputs import UserMessage
from perdure.messages import ToolCallPart
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.histories.walk import Walk


async def plain(walk: Walk) -> None:
    """Two turns of one model call, words and a thought."""
    await walk.ask("hi")
    await walk.ask("think")


async def signals(walk: Walk) -> None:
    """Words by signal, a repetition, a conflict, a message with a typing error, and an event of nothing."""
    message_id = await walk.stack.client.post(walk.name, "hi", id="m1")
    await walk.settled(message_id)
    handle = walk.stack.handle(walk.name)
    await handle.signal("user_message", {"id": "m1", "text": "hi"})
    await handle.signal("user_message", {"id": "m1", "text": "other"})
    await handle.signal("user_message", {"txet": "hi"})
    await handle.signal("event", {"id": "e1", "call_id": "call_x", "content": "lost"})
    await handle.signal("tool_result", {"call_id": "call_x", "content": "late"})
    await walk.ask("more")


async def tools(walk: Walk) -> None:
    """Parallel calls, one of them to a tool that is not there, then words."""
    await walk.ask("look")


async def outside(walk: Walk) -> None:
    """A call whose result comes from the user's side."""
    message_id = await walk.send("confirm")
    await walk.calls("waiting")
    (call,) = await walk.stack.client.open_calls(walk.name)
    await walk.stack.client.tool_result(walk.name, call.call_id, "yes")
    await walk.settled(message_id)


async def interrupt_mid_token(walk: Walk) -> None:
    """New words stop an answer that streams."""
    await walk.send("story")
    await walk.streams()
    await walk.ask("hi")


async def stop_mid_token(walk: Walk) -> None:
    """The update `stop` and the signal `interrupt` stop an answer; a second stop finds nothing."""
    await walk.send("story")
    await walk.streams()
    await walk.stack.client.stop(walk.name)
    await walk.stack.client.stop(walk.name)
    message_id = await walk.send("story again")
    await walk.streams()
    await walk.stack.client.interrupt(walk.name, "enough")
    await walk.settled(message_id)


async def interrupt_mid_tool(walk: Walk) -> None:
    """One call has returned and one runs when new words come."""
    await walk.send("hang")
    await walk.calls("settled")
    await walk.ask("hi")


async def modes(walk: Walk) -> None:
    """Words that are refused, that wait for the end of the turn, and that join before its next model call."""
    await walk.send("confirm")
    await walk.calls("waiting")
    await walk.send("no", "reject")
    later = await walk.send("later", "queue")
    await walk.send("instead", "steer")
    (call,) = await walk.stack.client.open_calls(walk.name)
    await walk.stack.client.tool_result(walk.name, call.call_id, "yes")
    await walk.settled(later)


async def retries(walk: Walk) -> None:
    """The model call fails twice, once in mid stream, and then succeeds."""
    await walk.ask("retry")


async def failure(walk: Walk) -> None:
    """The model refuses for good; the next turn succeeds."""
    await walk.ask("fail")
    await walk.ask("hi")


async def limit(walk: Walk) -> None:
    """A turn ends at its limit of model calls."""
    await walk.ask("loop")


async def continue_as_new(walk: Walk) -> None:
    """Turns with and without tools over several runs, words that wait among them."""
    await walk.ask("look")
    await walk.ask("hi 1")
    await walk.send("story")
    later = await walk.send("later", "queue")
    await walk.settled(later)
    for number in range(2, 6):
        await walk.ask(f"hi {number}")


async def hibernation(walk: Walk) -> None:
    """The idle thread ends its workflow, and the next words start another."""
    await walk.ask("hi")
    await walk.ended(WorkflowExecutionStatus.COMPLETED)
    await walk.ask("hi again")


async def store_away(walk: Walk) -> None:
    """Syncs wait for the store in a regular activity: of words, and of an answer."""
    await walk.ask("hi")
    walk.store.away_for = 4
    await walk.ask("more")
    message_id = await walk.send("story")
    await walk.streams()
    walk.store.away_for = 5
    await walk.settled(message_id)


async def store_slow(walk: Walk) -> None:
    """Syncs last longer than a workflow task may: Temporal records several tasks where a replay sees one."""
    walk.store.takes_s = 3.0
    for number in range(4):
        await walk.ask(f"hi {number}")
    walk.store.takes_s = 0.0


async def stale_writer(walk: Walk) -> None:
    """Somebody else writes the thread while it is idle, and while it streams."""
    await walk.ask("hi")
    await write_from_elsewhere(walk.store, walk.name, "aside")
    await walk.ask("more")
    await walk.send("story")
    await walk.streams()
    await write_from_elsewhere(walk.store, walk.name, "aside again")
    await walk.settled(ids.input_message_id(walk.name, "aside again"))


async def write_from_elsewhere(store: PostgresStore, thread: str, text: str) -> None:
    """Do what a second owner of the thread does when it takes words in: stop the turn, and open one for them."""
    manager = HistoryManager.from_tail(await store.load_tail(thread))
    manager.handle_content(UserMessage(id=text, text=text))
    batch = manager.take_pending("elsewhere")
    assert batch is not None
    await store.append_messages(batch)


async def calls_go_on(walk: Walk) -> None:
    """Somebody else writes the thread while a tool runs: it runs on, and its turn is stopped afterwards."""
    await walk.send("hang")
    await walk.calls("settled")
    tail = await walk.store.load_tail(walk.name)
    assert tail.message is not None
    aside = SetStatus(message_id=tail.message.id, status=tail.message.status)
    number = tail.thread.version + 1
    await walk.store.append_messages(
        SyncBatch(thread_id=walk.name, number=number, sync_id="elsewhere", operations=(aside,))
    )
    await walk.ask("hi")


async def branches(walk: Walk) -> None:
    """Edits, other answers, switches while an answer streams, notes, deletions, a reset, and what is refused."""
    client = walk.stack.client
    words = await walk.send("hi")
    await walk.settled(words)
    await walk.settled((await client.edit(walk.name, words, "story", id="edit")).message_id)
    again = await client.regenerate(walk.name, (await client.history(walk.name))[-1].id, id="again")
    await walk.streams()
    await client.switch_branch(walk.name, words, id="away")
    await client.send(walk.name, "by the way", id="aside", run=False)
    assert again.message_id is not None
    await client.wait_settled(walk.name, again.message_id)
    await client.annotate(walk.name, words, {"seen": True}, id="note")
    await client.switch_branch(walk.name, again.message_id, id="back")
    below = await client.send(walk.name, "story on", id="on", parent_id=again.message_id)
    await walk.streams()
    await client.delete_message(walk.name, (await client.history(walk.name))[-1].id, id="gone")
    for id, action in (("no", client.delete_message), ("nor", client.switch_branch)):
        with suppress(UsageError):
            await action(walk.name, "nowhere", id=id)
    await client.reset(walk.name, words, id="reset")
    assert below.message_id
    await walk.ask("more")


async def pauses(walk: Walk) -> None:
    """Approvals and refusals, one that expires, words over a pause, one that rests while another branch is shown."""
    client = walk.stack.client
    paying = await walk.send("pay 1 2")
    first, second = await walk.asked(2)
    await client.deny(walk.name, first, "too little")
    await client.tool_result(walk.name, second, "paid by hand", message_id=await walk.head(), preliminary=True)
    await client.approve(walk.name, second)
    await walk.settled(paying)
    await walk.ask("hurry")
    await walk.send("pay 3")
    await walk.asked(1)
    turn = await walk.head()
    await walk.ask("never mind")
    (call,) = [part for part in (await client.history(walk.name))[-3].parts if isinstance(part, ToolCallPart)]
    await client.tool_result(walk.name, call.call_id, "late", message_id=turn)
    resting = await walk.send("pay 4")
    (call_id,) = await walk.asked(1)
    turn = await walk.head()
    await walk.settled((await client.edit(walk.name, resting, "hi again", id="edit")).message_id)
    await client.switch_branch(walk.name, turn, id="back")
    await walk.asked(1)
    await client.decide(walk.name, call_id, option_id="allow_always")
    await walk.settled(resting)
    await walk.ask("pay 5")


async def resting(walk: Walk) -> None:
    """Turns rest on other branches: one is answered there and goes on, a question of another one expires there."""
    client = walk.stack.client
    words = await walk.send("confirm")
    await walk.calls("waiting")
    turn, (call,) = await walk.head(), await client.open_calls(walk.name)
    await walk.settled((await client.edit(walk.name, words, "hi", id="edit")).message_id)
    await client.tool_result(walk.name, call.call_id, "yes")
    await client.wait_settled(walk.name, turn)
    for late in (call.call_id, "call_x"):
        await walk.stack.wake(walk.name, late)
    hurried = await walk.send("hurry")
    await walk.asked(1)
    turn = await walk.head()
    await client.edit(walk.name, hurried, "hi once more", id="once more")
    await client.wait_settled(walk.name, turn)
    await walk.ask("more")


async def taken_over(walk: Walk) -> None:
    """Runs are terminated, one in mid stream and one in mid tool; the next ones take their turns up."""
    message_id = await walk.send("story")
    await walk.streams()
    await walk.stack.handle(walk.name).terminate()
    hanging = await walk.send("hang", "queue")
    await walk.settled(message_id)
    await walk.calls("settled")
    await walk.stack.handle(walk.name).terminate()
    # On the same worker the next run would wait for the tool that runs on.
    await walk.stack.restart_worker()
    await walk.send("hi", "queue")
    await walk.settled(hanging)


async def cancelled(walk: Walk) -> None:
    """The workflow is cancelled while an answer streams and words wait behind it."""
    await walk.send("story")
    await walk.send("later", "queue")
    await walk.streams()
    await walk.stack.handle(walk.name).cancel()
    await walk.ended(WorkflowExecutionStatus.CANCELED)


async def refused_start(walk: Walk) -> None:
    """A start that names no known field fails with a sentence."""
    await walk.stack.temporal.start_workflow(
        "ThreadWorkflow",
        {"agnet": "plain"},
        id=ids.workflow_id(walk.name),
        task_queue=walk.stack.settings.task_queue,
    )
    await walk.ended(WorkflowExecutionStatus.FAILED)


async def sleep(walk: Walk) -> None:
    """A sleep ends by itself, one until a time that is past does so at once; words wake a sleeper, a stop ends it."""
    await walk.ask("sleep 0.5")
    await walk.ask("yesterday")
    await walk.send("sleep 3600")
    await walk.calls("waiting")
    await walk.ask("hi")
    await walk.send("wait")
    await walk.calls("waiting")
    await walk.stack.client.stop(walk.name)


async def sleep_on(walk: Walk) -> None:
    """A sleeper goes from one run to the next and wakes there."""
    await walk.ask("sleep 3")


async def children(walk: Walk) -> None:
    """Two children report and close; the wrong stack spawns none, and a message to a closed child is an error."""
    await walk.send(f"spawn {walk.name} first second")
    await eventually(lambda: _has_reports(walk, 4))
    await walk.ask("spawn somebody third")
    await walk.ask(f"tell {ids.child_thread_id(walk.name, ids.call_id(walk.name, 1, 0, 0))}")


async def stop_children(walk: Walk) -> None:
    """A stop of the thread, which idles, stops its child."""
    await walk.ask(f"spawn {walk.name} toil")
    (child,) = await walk.store.get_children(walk.name)
    await eventually(lambda: _says(walk, child.thread_id))
    await walk.stack.client.stop(walk.name)
    await walk.stack.client.wait_settled(child.thread_id)


async def closed(walk: Walk) -> None:
    """A child thread closes itself, and then turns words away."""
    await walk.stack.client.start("children", agent="children")
    handle = await walk.stack.temporal.start_workflow(
        "ThreadWorkflow",
        {"agent": "children", "kind": "child", "parent_thread_id": "children", "root_thread_id": "children"},
        id=ids.workflow_id(walk.name),
        task_queue=walk.stack.settings.task_queue,
    )
    await handle.signal("user_message", {"id": "m1", "text": f"close {walk.name}"})
    await walk.ended(WorkflowExecutionStatus.COMPLETED)
    await walk.stack.client.post(walk.name, "hi")
    await walk.ended(WorkflowExecutionStatus.COMPLETED)


async def subscription(walk: Walk) -> None:
    """From an event that overtakes the confirmation to one after the end, over a pause, a refused one and two runs."""
    client = walk.stack.client
    prices = await _opened(walk, "confirm prices")
    await client.event(walk.name, prices, "early", id="e1")
    await client.tool_result(walk.name, prices, "subscribed", subscription=True)
    await eventually(lambda: _has_reports(walk, 1))
    await client.event(walk.name, prices, "for a child", id="e2", associative=False)
    await eventually(lambda: walk.store.get_children(walk.name))
    other = await _opened(walk, "confirm more")
    await client.event(walk.name, prices, "waits", id="e3")
    await client.tool_result(walk.name, other, "one too many", subscription=True)
    await eventually(lambda: _has_reports(walk, 2))
    await client.event(walk.name, prices, "the last for now", id="e4")
    await client.event(walk.name, prices, "in the pause", id="e5")
    await eventually(lambda: _has_dropped(walk, 1))
    await client.resume_subscription(walk.name, prices)
    await client.event(walk.name, prices, "the last of all", id="e6", final=True)
    await eventually(lambda: _has_reports(walk, 4))
    await client.event(walk.name, prices, "after the end", id="e7")
    await eventually(lambda: _has_dropped(walk, 2))


async def hooks(walk: Walk) -> None:
    """Hooks after turns: one that is quick, one that fails once, one of a turn that was stopped."""
    await walk.ask("hi")
    await walk.ask("fail")
    await walk.send("story")
    await walk.streams()
    await walk.stack.client.stop(walk.name)
    await eventually(lambda: _kept_of(walk, 3))


async def shortened(walk: Walk) -> None:
    """Compactions: by a person, and for a request that was too long, which is made again."""
    await walk.ask("hi")
    await walk.stack.client.compact(walk.name)
    await eventually(lambda: _summaries(walk, 1))
    await walk.ask("hi again")
    await walk.ask("too much")
    await eventually(lambda: _summaries(walk, 2))


async def _kept_of(walk: Walk, turns: int) -> bool:
    states = await walk.store.get_provider_states(walk.name)
    return "diary" in states and states["diary"].values == {"turns": turns}


async def _summaries(walk: Walk, number: int) -> bool:
    lines = str(await walk.stack.handle(walk.name).query("transcript"))
    return lines.count("summed up") == number


async def _opened(walk: Walk, words: str) -> str:
    await walk.send(words)
    await walk.calls("waiting")
    (call,) = await walk.stack.client.open_calls(walk.name)
    return call.call_id


async def _has_dropped(walk: Walk, count: int) -> bool:
    return (await walk.stack.client.status(walk.name)).dropped == count


async def _has_reports(walk: Walk, count: int) -> bool:
    status = await walk.stack.client.status(walk.name)
    return status.state == "idle" and (await walk.store.get_message_counts(walk.name)).event == count


async def _says(walk: Walk, thread_id: str) -> bool:
    live = (await walk.store.snapshot(thread_id)).live
    return live is not None and bool(live.parts)


Path = Callable[[Walk], Awaitable[None]]
PATHS: tuple[Path, ...] = (
    plain,
    signals,
    tools,
    outside,
    interrupt_mid_token,
    stop_mid_token,
    interrupt_mid_tool,
    modes,
    retries,
    failure,
    limit,
    continue_as_new,
    hibernation,
    store_away,
    store_slow,
    stale_writer,
    calls_go_on,
    branches,
    pauses,
    resting,
    taken_over,
    cancelled,
    refused_start,
    sleep,
    sleep_on,
    children,
    stop_children,
    closed,
    subscription,
    hooks,
    shortened,
)
