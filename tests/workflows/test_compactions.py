"""Compactions as the thread sees them: begun by a long request, a person or a refusal, and never in its way."""

from perdure.agent import Agent
from perdure.compaction import Compaction
from perdure.contract import COMPACTED, CompactResult
from perdure.messages import Usage
from perdure.testing import Asked, Failure, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

TOO_LONG = Failure(status=413)
WINDOW = 10_000
LONG = "word " * 7_000


class Talker:
    """An agent with its summariser; each says when it was asked."""

    def __init__(self, summary: str | Reply = "They said hello.", compaction: Compaction | None = None) -> None:
        self.summary = summary
        self.refusals = 0
        self.usage: Usage | None = None
        self.model = ScriptedModel(self._answer)
        self.summariser = ScriptedModel(lambda _: self.summary)
        self.agent = Agent(
            "a",
            model=self.model,
            compaction=compaction or Compaction(context_window=WINDOW, keep=0.0, model=self.summariser),
        )

    def _answer(self, asked: Asked) -> Reply:
        failures = [TOO_LONG] if self.refusals else []
        self.refusals = max(self.refusals - 1, 0)
        return Reply(f"you said {asked.user_text[:20]}", failures=failures, usage=self.usage)

    @property
    def first_words(self) -> str:
        """What the newest request begins with."""
        return str(self.model.requests[-1].messages[0].parts[0].content)  # type: ignore[union-attr]  # a request begins with words


async def summed_up(stack: Stack, thread: str) -> bool:
    """Whether a summary is on the path."""
    return (await stack.store.load_history_with_ancestors(thread)).summary is not None


async def test_a_long_request_begins_one_beside_the_conversation(start_stack: StackFactory, thread: str) -> None:
    """The next request begins with the summary; everything that was said can still be read."""
    talker = Talker()
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.ask(thread, LONG)
    await eventually(lambda: summed_up(stack, thread))
    assert await stack.client.ask(thread, "three") == "you said three"
    assert "They said hello." in talker.first_words
    assert len(await stack.client.history(thread, whole=True)) == 6
    assert len(talker.summariser.requests) == 1


async def test_short_requests_begin_none(start_stack: StackFactory, thread: str) -> None:
    """Control: without a reason nothing is scheduled but the turn."""
    talker = Talker()
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    started = [
        event
        async for event in stack.handle(thread).fetch_history_events()
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    assert started == []


async def test_a_person_asks_for_one(start_stack: StackFactory, thread: str) -> None:
    """However short the conversation is; the thread's lines say that it was done."""
    talker = Talker()
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await eventually(lambda: summed_up(stack, thread))
    await eventually(lambda: _transcript_says(stack, thread, "summed up"))


async def test_a_refused_request_waits_for_one_and_is_made_again(start_stack: StackFactory, thread: str) -> None:
    """The model says that it was too long; the turn is answered after the compaction, and the person sees no error."""
    talker = Talker()
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    talker.refusals = 1
    assert await stack.client.ask(thread, "two") == "you said two"
    assert "They said hello." in talker.first_words


async def test_it_is_made_again_once(start_stack: StackFactory, thread: str) -> None:
    """A request that is still too long fails with the provider's reason, and the next words are answered."""
    talker = Talker()
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    asks = len(talker.model.requests)
    talker.refusals = 2
    accepted = await stack.client.send(thread, "two")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "error")
    assert "too long" in str(turn.status.detail)
    assert len(talker.model.requests) - asks == 2
    assert await stack.client.ask(thread, "three") == "you said three"


async def test_a_stop_reaches_a_turn_that_waits_for_one(start_stack: StackFactory, thread: str) -> None:
    """The summariser hangs; the person does not have to wait for it."""
    talker = Talker(summary=Reply("well", hang=True))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    talker.refusals = 1
    accepted = await stack.client.send(thread, "two")
    await eventually(lambda: talker.summariser.requests)
    await stack.client.stop(thread)
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert turn.status.reason == "cancelled"
    assert await stack.client.ask(thread, "three") == "you said three"


async def test_what_is_said_meanwhile_is_answered_and_kept(start_stack: StackFactory, thread: str) -> None:
    """Case B02 through the whole stack: the summary stands for what was there when it began, and for no more."""
    talker = Talker(summary=Reply("They said hello.", start_delay_s=0.5))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await eventually(lambda: talker.summariser.requests)
    assert await stack.client.ask(thread, "two") == "you said two"
    await eventually(lambda: summed_up(stack, thread))
    path = await stack.store.load_history_with_ancestors(thread)
    assert [answer_text(m) for m in path.messages if m.role == "assistant" and m.parts] == ["you said two"]


async def test_failures_are_told_after_three_in_a_row(start_stack: StackFactory, thread: str) -> None:
    """A single one may be a passing fault; one that succeeds begins the count anew, and is the end of the problem."""
    talker = Talker(summary=" ")
    stack = await start_stack(talker.agent)
    for number in range(3):
        await stack.client.ask(thread, f"{number}")
        assert (await stack.client.status(thread)).problems == ()
        asked = len(talker.summariser.requests)
        await stack.client.compact(thread)
        await eventually(lambda before=asked: len(talker.summariser.requests) > before)  # type: ignore[misc]  # mypy infers no lambda with a default
    problems = await eventually(lambda: _problems(stack, thread))
    assert "3 times in a row" in problems[0]
    talker.summary = "They counted."
    await stack.client.compact(thread)
    await eventually(lambda: summed_up(stack, thread))

    async def is_over() -> bool:
        return await _problems(stack, thread) == ()

    await eventually(is_over)


async def test_a_signal_that_is_none_is_shown_and_harms_nothing(start_stack: StackFactory, thread: str) -> None:
    """Somebody types the compaction's own signal."""
    stack = await start_stack(Talker().agent)
    await stack.client.ask(thread, "one")
    await stack.handle(thread).signal(COMPACTED, {"outcome": "splendid"})
    await stack.handle(thread).signal(COMPACTED, CompactResult(outcome="void"))
    assert "compacted" in (await eventually(lambda: _problems(stack, thread)))[0]
    assert await stack.client.ask(thread, "two") == "you said two"


async def test_an_empty_thread_has_nothing_to_make_shorter(start_stack: StackFactory, thread: str) -> None:
    """Nothing begins, and nothing breaks."""
    stack = await start_stack(Talker().agent)
    await stack.client.start(thread)
    await stack.client.compact(thread)
    assert await stack.client.ask(thread, "one") == "you said one"


async def _transcript_says(stack: Stack, thread: str, words: str) -> bool:
    return words in str(await stack.handle(thread).query("transcript"))


async def _problems(stack: Stack, thread: str) -> tuple[str, ...]:
    return (await stack.client.status(thread)).problems


async def test_a_window_that_is_full_of_instructions_begins_one_now_and_then(
    start_stack: StackFactory, thread: str
) -> None:
    """Every request is long, and nothing can be left out: not every one of them begins a compaction; a person may."""
    talker = Talker()
    talker.agent.instructions = LONG
    talker.usage = Usage(input_tokens=9_000, output_tokens=9)
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "0")
    await eventually(lambda: _transcript_says(stack, thread, "nothing that could be left out"))
    for number in range(1, 4):
        await stack.client.ask(thread, f"{number}")
    assert await _begun(stack, thread) == 1
    await stack.client.compact(thread)
    await eventually(lambda: summed_up(stack, thread))
    assert await _begun(stack, thread) == 2


async def _begun(stack: Stack, thread: str) -> int:
    events = [event async for event in stack.handle(thread).fetch_history_events()]
    return sum(event.HasField("start_child_workflow_execution_initiated_event_attributes") for event in events)
