"""Answers that are being stored when their call is stopped or handed over: each is counted once."""

import asyncio

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.complete import CompleteActivities
from perdure.agent import Agents
from perdure.batch import CommitStep
from perdure.contract import CompleteResult
from perdure.errors import StoreUnavailable
from perdure.messages import Part, Usage
from perdure.records import StepOutcome
from perdure.testing import Reply
from perdure.turn_buffer import Chunk
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, scripted

TOKENS = Usage(input_tokens=100, output_tokens=10)
ONE = Usage(requests=1, input_tokens=100, output_tokens=10, unpriced=1)


class HeldStore(MemoryStore):
    """Holds the first answer that it is to store, before it has stored it or after that, until `release`.

    Attributes:
        stored_first: whether it holds the reply and not the writing.
        loses_reply: whether the writer hears then that the store is away.
    """

    def __init__(self, *, stored_first: bool, loses_reply: bool = False) -> None:
        super().__init__()
        self.stored_first = stored_first
        self.loses_reply = loses_reply
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def finish_step(
        self,
        thread_id: str,
        turn: int,
        step: int,
        attempt: int,
        parts: tuple[Part, ...],
        outcome: StepOutcome,
        chunks: list[Chunk],
    ) -> None:
        """See the class."""
        if self.reached.is_set():
            await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)
            return
        if self.stored_first:
            await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)
        self.reached.set()
        await self.release.wait()
        if self.loses_reply:
            raise StoreUnavailable("The database cannot be reached.")
        if not self.stored_first:
            await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)


async def held(store: HeldStore) -> tuple[Conversation, ActivityEnvironment, "asyncio.Task[object]"]:
    """A model call whose answer is being stored."""
    thread = await Conversation.start(scripted([Reply("so it is", usage=TOKENS)], compaction=None), store)
    await thread.say("hi")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await store.reached.wait()
    return thread, environment, running


async def committed(thread: Conversation, result: CompleteResult) -> None:
    """Make the step history, with what it has taken."""
    await thread.sync(
        CommitStep(message_id=thread.message_id, start=0, turn=thread.turn, step=thread.step, usage=result.usage)
    )


@pytest.mark.parametrize("loses_reply", [False, True])
@pytest.mark.parametrize("stored_first", [True, False])
async def test_an_answer_that_is_being_stored_when_the_turn_is_stopped_counts_once(
    stored_first: bool, loses_reply: bool
) -> None:
    """Whether the store had it by then or refuses it, also if its reply is lost; the call itself ends at once."""
    store = HeldStore(stored_first=stored_first, loses_reply=loses_reply)
    thread, environment, running = await held(store)
    await thread.stop()
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await store.get_thread("t")).usage == (ONE if stored_first else Usage())
    store.release.set()
    await thread.activities.close()
    (told,) = [one.message.usage for one in (await store.load_tree("t")).messages if one.message.role == "assistant"]
    assert (await store.get_thread("t")).usage == ONE == told


@pytest.mark.parametrize("stored_first", [True, False])
async def test_an_answer_that_is_being_stored_when_its_worker_shuts_down_counts_once(stored_first: bool) -> None:
    """It is stored all the same, and the worker that takes the call over finds it: the model is asked once."""
    store = HeldStore(stored_first=stored_first)
    thread, environment, running = await held(store)
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(ApplicationError):
        await running
    store.release.set()
    await thread.activities.close()
    thread.activities = CompleteActivities(store, Agents([thread.agent]))
    await committed(thread, await thread.complete(attempt=2))
    await thread.activities.close()
    assert (await store.get_thread("t")).usage == ONE


async def test_two_attempts_that_both_got_an_answer_are_both_counted() -> None:
    """One that was taken for lost stores its answer too late: the store refuses it, and it is paid for."""
    store = HeldStore(stored_first=False)
    thread, _, running = await held(store)
    await committed(thread, await thread.complete(attempt=2))
    store.release.set()
    with pytest.raises(ApplicationError):
        await running
    await thread.activities.close()
    assert (await store.get_thread("t")).usage == ONE + ONE
