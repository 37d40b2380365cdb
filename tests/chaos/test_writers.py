"""Two writers of one thread, and workflows that are terminated, reset, cancelled or deleted from outside.

Whatever happens to its workflow, the thread is what the store holds: nothing of it is lost and the next input goes on.
"""

import asyncio
import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from typing_extensions import override

from perdure import ids
from perdure.agent import Agent
from perdure.batch import SyncBatch, SyncReport
from perdure.contract import DISPATCH
from perdure.history import HistoryManager
from perdure.inputs import UserMessage
from perdure.messages import Message, TextPart, ToolResultPart
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.database import Database
from stores.postgres import PostgresStore
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chain
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

pytestmark = pytest.mark.slow

STORY = " ".join(f"word{number}" for number in range(40))


class Theatre:
    """An agent that tells a story slowly, or calls a tool that waits until it may return."""

    def __init__(self) -> None:
        self.model = ScriptedModel(self._script)
        self.agent = Agent("a", model=self.model)
        self.agent.tool(self.perform)
        self.performed = 0
        self.may_return = asyncio.Event()

    async def perform(self) -> str:
        """Once only."""
        self.performed += 1
        await self.may_return.wait()
        return "applause"

    def _script(self, asked: Asked) -> Reply:
        match asked.user_text:
            case "story":
                return Reply(STORY, chunk_chars=8, delay_s=0.03)
            case "second try":
                return Reply(STORY, chunk_chars=8, delay_s=0.03, failures=[Failure(503, after_chunks=1)])
            case "perform":
                return Reply("performed") if asked.results else Reply(Call("perform", {}))
            case text:
                return Reply(f"you said {text}")


async def streamed(stack: Stack, thread: str, words: str, attempt: int = 1) -> None:
    """Wait until these words have reached the turn buffer."""

    async def have_come() -> bool:
        live = (await stack.store.snapshot(thread)).live
        texts = [part.text for part in live.parts if isinstance(part, TextPart)] if live else []
        return live is not None and live.attempt >= attempt and any(words in text for text in texts)

    await eventually(have_come, timeout=10)


def said(messages: list[Message]) -> list[tuple[str, str | None, str]]:
    """Role, reason and text of each message."""
    return [(message.role, message.status.reason, answer_text(message)) for message in messages]


# -- terminated ------------------------------------------------------------------------------------------------------


async def test_terminated_in_mid_stream_and_interrupted_by_new_words(start_stack: StackFactory, thread: str) -> None:
    """The words stop the turn that the old run left, keep what had streamed of it, and are answered."""
    stack = await start_stack(Theatre().agent)
    await stack.client.send(thread, "story", id="m1")
    await streamed(stack, thread, "word5")
    await stack.handle(thread).terminate()
    assert await stack.client.ask(thread, "hi", id="m2") == "you said hi"
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert [(role, reason) for role, reason, _ in said(messages)] == [
        ("user", None),
        ("assistant", "cancelled"),
        ("user", None),
        ("assistant", None),
    ]
    assert STORY.startswith(answer_text(messages[1]))
    assert "word5" in answer_text(messages[1])


@pytest.mark.parametrize(("words", "attempt"), [("story", 1), ("second try", 2)])
async def test_terminated_in_mid_stream_and_taken_up_again(
    words: str, attempt: int, start_stack: StackFactory, thread: str
) -> None:
    """The next run tells the story from the start, whichever attempt of the old one was streaming."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    first = await stack.client.send(thread, words, id="m1")
    await streamed(stack, thread, "word5", attempt)
    await stack.handle(thread).terminate()
    queued = await stack.client.send(thread, "hi", id="m2", mode="queue")
    assert answer_text(await stack.client.wait_settled(thread, queued.message_id)) == "you said hi"
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert said(messages) == [
        ("user", None, words),
        ("assistant", None, STORY),
        ("user", None, "hi"),
        ("assistant", None, "you said hi"),
    ]
    assert first.message_id == messages[0].id


async def test_two_runs_do_not_stream_into_one_attempt(start_stack: StackFactory, thread: str) -> None:
    """A reader who watches while one run takes over from another never sees a word twice."""
    stack = await start_stack(Theatre().agent)
    await stack.client.send(thread, "story", id="m1")
    await streamed(stack, thread, "word5")
    await stack.handle(thread).terminate()
    await stack.client.send(thread, "hi", id="m2", mode="queue")
    seen: list[str] = []

    async def told() -> bool:
        snapshot = await stack.store.snapshot(thread)
        seen.extend(part.text for part in (snapshot.live.parts if snapshot.live else ()) if isinstance(part, TextPart))
        return len(snapshot.path.messages) == 4

    await eventually(told, timeout=20)
    assert [text for text in seen if not (STORY.startswith(text) or "you said hi".startswith(text))] == []


async def test_terminated_in_mid_tool_and_interrupted_by_new_words(start_stack: StackFactory, thread: str) -> None:
    """The call that the old run left is answered as interrupted, and the tool does not run again."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    await stack.client.send(thread, "perform", id="m1")
    await eventually(lambda: theatre.performed == 1, timeout=10)
    await stack.handle(thread).terminate()
    assert await stack.client.ask(thread, "hi", id="m2") == "you said hi"
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert [part.outcome for part in messages[1].parts if isinstance(part, ToolResultPart)] == ["interrupted"]
    assert theatre.performed == 1


async def test_terminated_in_mid_tool_and_taken_up_again(start_stack: StackFactory, thread: str) -> None:
    """The tool runs on while the next run of the workflow finds its way to it: it is not lost and not run again."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    first = await stack.client.send(thread, "perform", id="m1")
    await eventually(lambda: theatre.performed == 1, timeout=10)
    await stack.handle(thread).terminate()
    await stack.client.send(thread, "hi", id="m2", mode="queue")
    await eventually(lambda: _is_called(stack, thread), timeout=10)
    theatre.may_return.set()
    answer = await stack.client.wait_settled(thread, first.message_id)
    result = next(part for part in answer.parts if isinstance(part, ToolResultPart))
    assert (result.outcome, result.content, theatre.performed) == ("ok", "applause", 1)
    await stack.client.wait_settled(thread, ids.input_message_id(thread, "m2"))
    assert faults(await stack.client.history(thread)) == []


async def test_terminated_in_mid_tool_and_taken_up_by_another_worker(start_stack: StackFactory, thread: str) -> None:
    """Nobody knows whether the tool took effect: the model is told so, and the turn goes on to its end."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    first = await stack.client.send(thread, "perform", id="m1")
    await eventually(lambda: theatre.performed == 1, timeout=10)
    await stack.handle(thread).terminate()
    await stack.restart_worker()
    await stack.client.send(thread, "hi", id="m2", mode="queue")
    answer = await stack.client.wait_settled(thread, first.message_id)
    result = next(part for part in answer.parts if isinstance(part, ToolResultPart))
    assert (result.outcome, theatre.performed) == ("error", 1)
    assert "outcome is unknown" in result.content
    await stack.client.wait_settled(thread, ids.input_message_id(thread, "m2"))
    assert faults(await stack.client.history(thread)) == []


async def _is_called(stack: Stack, thread: str) -> bool:
    described = (await stack.handle(thread).describe()).raw_description
    return any(activity.activity_type.name == DISPATCH for activity in described.pending_activities)


# -- reset, deleted --------------------------------------------------------------------------------------------------


async def reset(stack: Stack, thread: str, task: int) -> None:
    """Reset the thread's workflow to its n-th finished workflow task, as `temporal workflow reset` does."""
    events = await chain(stack.temporal, thread)
    finished = [event.event_id for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await stack.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=ids.workflow_id(thread)),
            workflow_task_finish_event_id=finished[task],
            request_id=str(uuid.uuid4()),
            reason="test",
        )
    )


@pytest.mark.parametrize("task", [0, 1, -1])
async def test_reset_workflow_finds_what_the_store_has(task: int, start_stack: StackFactory, thread: str) -> None:
    """Inputs that the reset brings back are known already; nothing is asked or stored twice, and the thread goes on."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    await stack.client.ask(thread, "one", id="m1")
    await stack.client.wait_settled(thread, await stack.client.post(thread, "two", id="m2"))
    before = await stack.client.history(thread)
    await reset(stack, thread, task)
    assert await stack.client.ask(thread, "three", id="m3") == "you said three"
    after = await stack.client.history(thread)
    assert after[:4] == before
    assert len(after) == 6
    assert faults(after) == []
    assert len(theatre.model.requests) == 3


async def test_reset_in_mid_stream(start_stack: StackFactory, thread: str) -> None:
    """The turn that was under way is taken up by the new run and told once."""
    stack = await start_stack(Theatre().agent)
    await stack.client.ask(thread, "one", id="m1")
    second = await stack.client.post(thread, "story", id="m2")
    await streamed(stack, thread, "word5")
    await reset(stack, thread, 0)
    assert answer_text(await stack.client.wait_settled(thread, second)) == STORY
    messages = await stack.client.history(thread)
    assert (len(messages), faults(messages)) == (4, [])


async def test_deleted_workflow(start_stack: StackFactory, thread: str) -> None:
    """What Temporal forgets the store still has: the next words are answered with all that came before."""
    theatre = Theatre()
    stack = await start_stack(theatre.agent)
    await stack.client.ask(thread, "one", id="m1")
    execution = WorkflowExecution(workflow_id=ids.workflow_id(thread))
    await stack.temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
    )
    await eventually(lambda: _is_gone(stack.temporal, thread), timeout=20)
    assert await stack.client.ask(thread, "two", id="m2") == "you said two"
    assert theatre.model.requests[-1].answered == 1
    assert faults(await stack.client.history(thread)) == []


async def _is_gone(temporal: Client, thread: str) -> bool:
    return [run async for run in temporal.list_workflows(f"WorkflowId = '{ids.workflow_id(thread)}'")] == []


# -- cancelled -------------------------------------------------------------------------------------------------------


async def test_cancelled_workflow_settles_its_turn_and_keeps_what_waited(
    start_stack: StackFactory, thread: str
) -> None:
    """A cancellation stops the turn; words that were queued behind it are stored, and new ones are answered."""
    stack = await start_stack(Theatre().agent)
    await stack.client.send(thread, "story", id="m1")
    queued = await stack.client.send(thread, "later", id="m2", mode="queue")
    await streamed(stack, thread, "word5")
    await stack.handle(thread).cancel()
    with pytest.raises(WorkflowFailureError):
        await stack.handle(thread).result()
    assert (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.CANCELED
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert queued.message_id in [message.id for message in messages]
    assert await stack.client.ask(thread, "hi", id="m3") == "you said hi"
    assert [text for role, _, text in said(await stack.client.history(thread)) if role == "user"] == [
        "story",
        "later",
        "hi",
    ]


async def test_cancelled_while_a_sync_is_on_its_way(temporal: Client, database_url: str, thread: str) -> None:
    """The sync has been applied and its answer never comes: the turn that it opened ends settled all the same."""
    async with await SlowStore.connect(database_url) as store, Stack(temporal, store, [Theatre().agent]) as stack:
        await stack.client.ask(thread, "one", id="m1")
        store.may_answer.clear()
        store.applied.clear()
        await stack.client.post(thread, "story", id="m2")
        await eventually(store.applied.is_set, timeout=10)
        await stack.handle(thread).cancel()
        await eventually(lambda: _is_cancel_requested(stack, thread), timeout=10)
        store.may_answer.set()
        with pytest.raises(WorkflowFailureError):
            await stack.handle(thread).result()
        messages = await stack.client.history(thread)
        assert faults(messages) == []
        assert said(messages)[2:] == [("user", None, "story"), ("assistant", "cancelled", "")]
        assert await stack.client.ask(thread, "hi", id="m3") == "you said hi"


async def _is_cancel_requested(stack: Stack, thread: str) -> bool:
    events = await chain(stack.temporal, thread)
    return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED for event in events)


class SlowStore(PostgresStore):
    """A store that applies a batch at once and answers when it may."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.applied = asyncio.Event()

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        report = await super().append_messages(batch)
        self.applied.set()
        await self.may_answer.wait()
        return report


# -- another writer --------------------------------------------------------------------------------------------------


async def write_from_elsewhere(store: PostgresStore, thread: str, text: str) -> None:
    """Do what a second owner of the thread does when it takes words in: stop the turn, and open one for them."""
    manager = HistoryManager.from_tail(await store.load_tail(thread))
    manager.handle_content(UserMessage(id=text, text=text))
    batch = manager.take_pending("elsewhere")
    assert batch is not None
    await store.append_messages(batch)


@pytest.mark.parametrize("words", ["one", "story"])
async def test_written_from_elsewhere(words: str, start_stack: StackFactory, store: PostgresStore, thread: str) -> None:
    """Idle or in mid stream, the workflow finds that it is stale, and goes on from what the other has written."""
    stack = await start_stack(Theatre().agent)
    first = await stack.client.send(thread, words, id="m1")
    if words == "story":
        await streamed(stack, thread, "word5")
    else:
        await stack.client.wait_settled(thread, first.message_id)
    await write_from_elsewhere(store, thread, "aside")
    assert await stack.client.ask(thread, "hi", id="m2") == "you said hi"
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert [text for role, _, text in said(messages) if role == "user"] == [words, "aside", "hi"]


async def test_turn_that_another_writer_opened_is_answered(
    start_stack: StackFactory, store: PostgresStore, thread: str
) -> None:
    """A workflow whose model call is sealed under it takes up what the other writer has begun."""
    stack = await start_stack(Theatre().agent)
    await stack.client.send(thread, "story", id="m1")
    await streamed(stack, thread, "word5")
    await write_from_elsewhere(store, thread, "aside")
    answer = await stack.client.wait_settled(thread, ids.input_message_id(thread, "aside"))
    assert (answer.status.state, answer_text(answer)) == ("complete", "you said aside")
    assert faults(await stack.client.history(thread)) == []
