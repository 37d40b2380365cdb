"""The paths that a thread can take through its workflow, each walked once on real servers to be recorded."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio.client import WorkflowExecutionStatus
from typing_extensions import override

from perdure import ids
from perdure.agent import Agent, Limits
from perdure.batch import SyncBatch, SyncReport
from perdure.errors import StoreUnavailable
from perdure.history import HistoryManager
from perdure.inputs import Mode, UserMessage
from perdure.messages import TextPart
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel, Think
from stores.database import Database
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stack import Stack

STORY = " ".join(f"word{number}" for number in range(30))


class FickleStore(PostgresStore):
    """A store that can be told to be away for a number of syncs, and to take its time for each."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.away_for = 0
        self.takes_s = 0.0

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        if self.away_for > 0:
            self.away_for -= 1
            raise StoreUnavailable("The database is away.")
        await asyncio.sleep(self.takes_s)
        return await super().append_messages(batch)


class Walk:
    """One path: a thread of that name, and what may be done to it."""

    def __init__(self, name: str, stack: Stack, store: FickleStore) -> None:
        self.name = name
        self.stack = stack
        self.store = store

    async def ask(self, words: str) -> None:
        """Send words and wait until their turn has settled, complete or not."""
        await self.settled(await self.send(words))

    async def send(self, words: str, mode: Mode = "interrupt") -> str:
        """Send words by the update; their id is the words."""
        accepted = await self.stack.client.send(self.name, words, id=words, mode=mode)
        return accepted.message_id

    async def settled(self, message_id: str) -> None:
        """Wait for the answer."""
        await self.stack.client.wait_settled(self.name, message_id)

    async def streams(self) -> None:
        """Wait until words of an answer have streamed."""

        async def has_words() -> bool:
            live = (await self.store.snapshot(self.name)).live
            return live is not None and any(isinstance(part, TextPart) for part in live.parts)

        await eventually(has_words)

    async def calls(self, state: str) -> None:
        """Wait until a call is in this state."""

        async def is_there() -> bool:
            return any(call.state == state for call in await self.stack.client.open_calls(self.name))

        await eventually(is_there)

    async def ended(self, status: WorkflowExecutionStatus) -> None:
        """Wait until the present run has this status."""

        async def has_status() -> bool:
            return (await self.stack.handle(self.name).describe()).status == status

        await eventually(has_status)


def script(asked: Asked) -> Reply:
    """What the model answers follows from the last words of the user."""
    match asked.user_text.split()[0]:
        case "think":
            return Reply(Think("let me see", "signed"), "thought")
        case "story":
            return Reply(STORY, chunk_chars=6, delay_s=0.05)
        case "look" if not asked.results:
            cities = Call("look", {"city": "Paris"}), Call("look", {"city": "Rome"})
            return Reply("looking", *cities, Call("no_such_tool"))
        case "hang" if not asked.results:
            return Reply(Call("look", {"city": "Oslo"}), Call("hang"))
        case "confirm" if not asked.results:
            return Reply(Call("confirm", {"question": "Really?"}))
        case "loop":
            return Reply(Call("look", {"city": "Bonn"}))
        case "retry":
            return Reply("at last", failures=[Failure(503), Failure(None, after_chunks=1)], chunk_chars=4)
        case "fail":
            return Reply("never", failures=[Failure(401)] * 9)
        case _:
            return Reply(f"you said {asked.user_text}")


def agents() -> list[Agent]:
    """One agent for most paths, and those that need limits of their own, named after their path."""
    return [
        _agent("plain", Limits()),
        _agent("limit", Limits(steps=2)),
        _agent("continue_as_new", Limits(history_events=30)),
        _agent("store_slow", Limits(history_events=30)),
        _agent("hibernation", Limits(idle=timedelta(seconds=1))),
    ]


def _agent(name: str, limits: Limits) -> Agent:
    agent = Agent(name, model=ScriptedModel(script), limits=limits)

    @agent.tool(retry_safe=True)
    async def look(city: str) -> str:
        """Look out of the window."""
        return f"{city} is sunny"

    @agent.tool
    async def hang() -> str:
        """Never return."""
        await asyncio.Event().wait()
        return "never"

    @agent.tool(kind="client")
    async def confirm(question: str) -> str:
        """Ask the user."""
        return question

    return agent


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
    taken_over,
    cancelled,
    refused_start,
)
