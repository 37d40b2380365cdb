"""Children that were made and never started, since whoever made them was ended just then."""

from perdure.agent import Agent
from perdure.batch import AppendMessage, SyncBatch
from perdure.messages import EventPart, Message
from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.testing import ScriptedModel
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

MADE = 120


async def made(store: Store, parent: str, child: str) -> None:
    """What the store has of a child that was made: its row and the message that it begins with."""
    record = ThreadRecord(thread_id=child, agent="a", kind="child", parent_thread_id=parent, root_thread_id=parent)
    await store.create_thread(record)
    words = (EventPart(event_id=child, origin_call_id="c", content="go"),)
    begin = Message(id=f"{child}-seed", thread_id=child, role="event", parts=words, input_id="seed")
    await store.append_messages(
        SyncBatch(thread_id=child, number=1, sync_id="spawn", operations=(AppendMessage(message=begin, digest="d"),))
    )


async def test_all_are_started_by_the_next_run(start_stack: StackFactory, thread: str) -> None:
    """However many they are: the run may live on for days, and no child wakes a parent that waits for it."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda _: "noted")))
    await stack.client.ask(thread, "hi")
    await stack.handle(thread).terminate()
    children = {f"{thread}-{number}" for number in range(MADE)}
    for child in sorted(children):
        await made(stack.store, thread, child)
    await stack.client.ask(thread, "are you there?")

    async def are_started() -> bool:
        return await _started(stack, thread) == children

    await eventually(are_started, timeout=15)
    assert (await stack.store.load_tail(thread)).children == MADE


async def _started(stack: Stack, thread: str) -> set[str]:
    """The children that this run of the thread has begun to start."""
    initiated = [
        event.start_child_workflow_execution_initiated_event_attributes.workflow_id
        async for event in stack.handle(thread).fetch_history_events()
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    return {workflow_id.removeprefix("thread:") for workflow_id in initiated}
