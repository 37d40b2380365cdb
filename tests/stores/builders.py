"""Short ways to say what the tests of the stores write."""

from perdure.batch import AppendMessage, CommitStep, Operation, SetStatus, SyncBatch, SyncReport
from perdure.codec import digest
from perdure.messages import EventPart, Message, Part, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import StepOutcome, ThreadRecord
from perdure.turn_buffer import Chunk

THREAD = "t"
RUNNING = Status(state="running")
DONE = StepOutcome(finish="stop")


def user(message_id: str, text: str = "hi", *, input_id: str | None = None, parent_id: str | None = None) -> Operation:
    """A message of the user that is the input `input_id`, by default one of the message's name."""
    message = Message(
        id=message_id,
        thread_id=THREAD,
        role="user",
        parts=(TextPart(text=text),),
        input_id=input_id or f"in-{message_id}",
        parent_id=parent_id,
    )
    return AppendMessage(message=message, digest=digest(text))


def assistant(message_id: str, turn: int = 1, *parts: Part, parent_id: str | None = None) -> Operation:
    """A running message of a turn."""
    message = Message(
        id=message_id,
        thread_id=THREAD,
        role="assistant",
        turn=turn,
        status=RUNNING,
        parts=parts,
        parent_id=parent_id,
    )
    return AppendMessage(message=message)


def settle(message_id: str, state: Status | None = None) -> SetStatus:
    """The end of a message."""
    return SetStatus(message_id=message_id, status=state or Status(state="complete"))


def commit(message_id: str, start: int = 0, *, turn: int = 1, step: int = 0) -> CommitStep:
    """The commit of a step."""
    return CommitStep(message_id=message_id, start=start, turn=turn, step=step)


def call(call_id: str, tool: str = "search", arguments: str = "{}") -> ToolCallPart:
    """A call."""
    return ToolCallPart(call_id=call_id, tool=tool, arguments=arguments)


def result(call_id: str, content: str = "found") -> ToolResultPart:
    """A result."""
    return ToolResultPart(call_id=call_id, content=content)


def text(value: str) -> TextPart:
    """A text."""
    return TextPart(text=value)


def delta(value: str, index: int = 0) -> Chunk:
    """A piece of streamed text."""
    return Chunk(index=index, delta=value)


async def write(store: Store, number: int, *operations: Operation, thread_id: str = THREAD) -> SyncReport:
    """Sync batch `number`."""
    sync_id = f"sync-{number}"
    return await store.append_messages(
        SyncBatch(thread_id=thread_id, number=number, sync_id=sync_id, operations=operations)
    )


async def started(store: Store, thread_id: str = THREAD) -> Store:
    """The store with a thread in which turn 1 is open: `u` asks, `a` is to answer."""
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="demo"))
    await write(store, 1, user("u"), assistant("a"), thread_id=thread_id)
    return store


async def with_calls(store: Store, *call_ids: str) -> Store:
    """A started thread whose first step was committed with these calls, in batch 2."""
    await started(store)
    parts = tuple(call(call_id) for call_id in call_ids)
    await store.finish_step(THREAD, 1, 0, 1, parts, StepOutcome(finish="tool_calls"), [])
    await write(store, 2, commit("a"))
    return store


async def texts(store: Store, thread_id: str = THREAD) -> list[str]:
    """The texts of the path, in order."""
    path = await store.load_history_with_ancestors(thread_id)
    return [part.text for message in path.messages for part in message.parts if isinstance(part, TextPart)]


async def long_thread(store: Store, messages: int, thread_id: str = THREAD) -> None:
    """A conversation of so many messages, of two parts each."""
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="demo"))
    prefix = "m" if thread_id == THREAD else f"{thread_id}-"
    operations = tuple(
        AppendMessage(
            message=Message(id=f"{prefix}{n}", thread_id=thread_id, role="user", parts=(text(f"{n}"), text("more")))
        )
        for n in range(messages)
    )
    await write(store, 1, *operations, thread_id=thread_id)


def seed(thread_id: str, event: str = "go", blob: str | None = None) -> AppendMessage:
    """The first message of a child thread: the call that spawned it, its result, and what it is to do."""
    call_id = f"call-{thread_id}"
    parts = (
        call(call_id, "spawn_thread"),
        result(call_id, "spawned"),
        EventPart(event_id=f"event-{thread_id}", origin_call_id=call_id, content=event, blob=blob),
    )
    message = Message(
        id=f"{thread_id}-seed", thread_id=thread_id, role="event", parts=parts, input_id=f"spawn-{thread_id}"
    )
    return AppendMessage(message=message, digest=digest(event))


async def spawn(store: Store, thread_id: str, parent: str, message_id: str, parts: int | None) -> SyncReport:
    """A child thread that inherits up to a point of its parent and has its seed."""
    record = ThreadRecord(
        thread_id=thread_id,
        agent="demo",
        kind="child",
        parent_thread_id=parent,
        root_thread_id=THREAD,
        spawn_message_id=message_id,
        spawn_parts=parts,
    )
    await store.create_thread(record)
    return await write(store, 1, seed(thread_id), thread_id=thread_id)
