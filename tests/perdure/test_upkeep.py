"""What a thread that is driven without Temporal does beside its loop: hooks after turns, and compactions."""

import asyncio
from typing import Any

import pytest

from activities.after_turn import AfterTurnActivities
from activities.compact import CompactActivities
from activities.complete import CompleteActivities
from activities.dispatch import DispatchActivities
from perdure import policy
from perdure.agent import Agent, Agents
from perdure.compaction import Compaction
from perdure.context import ProviderRun, RunOutcome
from perdure.errors import StoreUnavailable
from perdure.inputs import Control, Interrupt, UserMessage
from perdure.messages import Message
from perdure.runtime import AgentThread
from perdure.testing import Asked, Failure, Reply, ScriptedModel
from perdure.upkeep import Upkeep
from perdure.watch import answer_text
from stores.memory import MemoryStore
from tests.eventually import eventually


class Diary:
    """A provider that writes down what it was told."""

    name = "diary"

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.broken: BaseException | None = None

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """Write it down, or fail."""
        await self.may_go_on.wait()
        if self.broken:
            raise self.broken
        self.told.append((run.turn, outcome.result))


class Driven:
    """A thread with everything that can be done beside it."""

    def __init__(
        self, thread: AgentThread, store: MemoryStore, model: ScriptedModel, summariser: ScriptedModel
    ) -> None:
        self.thread = thread
        self.store = store
        self.model = model
        self.summariser = summariser

    @classmethod
    async def load(cls, refusals: int = 0, summary: str | Reply = "They said hello.", **options: Any) -> "Driven":
        """An agent that echoes; its first answers to `two` are refused as too long."""
        left = [Failure(413)] * refusals

        def script(asked: Asked) -> Reply:
            failing = asked.user_text == "two" and left
            return Reply(f"you said {asked.user_text}", failures=[left.pop()] * 9 if failing else ())

        store, model = MemoryStore(), ScriptedModel(script)
        summariser = ScriptedModel(lambda _: summary)
        compaction = Compaction(context_window=10_000, keep=0.0, model=summariser)
        agents = Agents([Agent("demo", model=model, compaction=compaction, **options)])
        thread = await AgentThread.load(
            store,
            store,
            "t1",
            complete=CompleteActivities(store, agents).execute,
            dispatch=DispatchActivities(store, agents).execute,
            after_turn=AfterTurnActivities(store, agents).execute,
            compact=CompactActivities(store, agents).execute,
            agent="demo",
        )
        return cls(thread, store, model, summariser)

    async def ask(self, text: str) -> str:
        """Words, and what is answered."""
        self.thread.put(UserMessage(id=text, text=text))
        while await self.thread.step():
            pass
        return answer_text((await self.messages())[-1])

    @property
    def compaction(self) -> bool:
        """Whether the summariser is asked."""
        return bool(self.summariser.requests)

    async def messages(self) -> tuple[Message, ...]:
        """The path as models see it."""
        return (await self.store.load_history_with_ancestors("t1")).messages


async def test_hooks_run_when_the_turn_is_durable() -> None:
    """In order, and the next turn begins after them."""
    diary = Diary()
    driven = await Driven.load(context=[diary])
    await driven.ask("one")
    await driven.ask("two")
    await driven.thread.close()
    assert diary.told == [(1, "success"), (2, "success")]


async def test_a_slow_hook_holds_up_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn waits for it for a moment only, and a stop is taken meanwhile."""
    diary = Diary()
    diary.may_go_on.clear()
    driven = await Driven.load(context=[diary])
    await driven.ask("one")
    driven.thread.put(UserMessage(id="stopped", text="stopped"))
    stepping = asyncio.create_task(driven.thread.step())
    await eventually(lambda: driven.thread.history.open_turn)
    driven.thread.put(Interrupt())
    await asyncio.wait_for(stepping, policy.HOOKS_PATIENCE.total_seconds() / 2)
    assert (await driven.messages())[-1].status.reason == "cancelled"
    monkeypatch.setattr(policy, "HOOKS_PATIENCE", policy.HOOKS_PATIENCE * 0.01)
    assert await driven.ask("two") == "you said two"
    diary.may_go_on.set()
    await driven.thread.close()
    assert diary.told == [(1, "success"), (2, "cancel"), (3, "success")]


async def test_a_hook_that_fails_for_good_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the turn is undone."""
    monkeypatch.setattr(policy.AFTER_TURN.retry, "maximum_attempts", 1)
    diary = Diary()
    diary.broken = ConnectionError("the diary is locked away")
    driven = await Driven.load(context=[diary])
    assert await driven.ask("one") == "you said one"
    await driven.thread.close()
    (problem,) = driven.thread.upkeep.problems
    assert "diary" in problem


async def test_without_hooks_nothing_is_kept() -> None:
    """Control: a thread that was loaded without them does not collect turns for nobody."""
    driven = await Driven.load()
    await driven.ask("one")
    assert driven.thread.history.state.ended == ()


async def test_a_request_that_was_too_long_is_made_again_after_a_compaction() -> None:
    """The turn is answered, and its request begins with the summary."""
    driven = await Driven.load(refusals=1)
    await driven.ask("one")
    assert await driven.ask("two") == "you said two"
    assert "They said hello." in str(driven.model.requests[-1].messages[0])


async def test_who_cancels_the_wait_for_a_compaction_may_go_on() -> None:
    """A step that is cancelled meanwhile and taken up again waits for the same compaction, and is answered then."""
    driven = await Driven.load(refusals=2, summary=Reply("They said hello.", start_delay_s=0.3))
    await driven.ask("one")
    driven.thread.put(UserMessage(id="two", text="two"))
    stepping = asyncio.create_task(driven.thread.step())
    await eventually(lambda: driven.compaction)
    stepping.cancel()
    await asyncio.wait({stepping})
    assert stepping.cancelled()
    while await driven.thread.step():
        pass
    assert answer_text((await driven.messages())[-1]) == "you said two"


async def test_it_is_made_again_once() -> None:
    """A second refusal fails the turn with the provider's reason."""
    driven = await Driven.load(refusals=2)
    await driven.ask("one")
    await driven.ask("two")
    status = (await driven.messages())[-1].status
    assert status.reason == "error"
    assert "too long" in str(status.detail)


async def test_a_summariser_that_says_nothing_is_told() -> None:
    """The turn fails with the provider's reason, and the conversation is as it was."""
    driven = await Driven.load(refusals=1, summary=" ")
    await driven.ask("one")
    await driven.ask("two")
    assert (await driven.messages())[-1].status.reason == "error"
    assert len(await driven.messages()) == 4
    assert "not compacted" in driven.thread.upkeep.problems[0]


async def test_one_compaction_at_a_time() -> None:
    """Who asks for another one meanwhile gets the one that is under way."""
    driven = await Driven.load()
    await driven.ask("one")
    first, second = driven.thread.compact(), driven.thread.compact()
    assert first is not None
    assert second is first
    assert (await first).outcome == "done"
    assert (await driven.store.load_history_with_ancestors("t1")).summary is not None


FAULTS = [RuntimeError("odd"), StoreUnavailable("The database is away."), asyncio.CancelledError(), KeyError()]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
async def test_whatever_goes_wrong_beside_a_turn_is_none_of_its_business(fault: BaseException) -> None:
    """Hooks, compactions and notices are brought by whoever drives the thread, and may raise anything.

    The turn is answered, or fails with what its own model has said; the next one is answered too.
    """

    async def fail(_: object) -> Any:
        raise fault

    driven = await Driven.load(refusals=1)
    driven.thread.upkeep = Upkeep(await driven.store.get_thread("t1"), notify=fail, after_turn=fail, compact=fail)
    assert await driven.ask("one") == "you said one"
    await driven.ask("two")
    ended = (await driven.messages())[-1].status
    assert (ended.state, ended.reason, "too long" in (ended.detail or "")) == ("incomplete", "error", True)
    assert await driven.ask("three") == "you said three"
    driven.thread.put(Control(action="close"))
    await driven.thread.step()
    assert driven.thread.compact() is not None
    await driven.thread.close()
    problems = driven.thread.upkeep.problems
    told = ("Hooks after turn 1 were given up: ", "The conversation was not compacted: ", "Tool servers were not told")
    for beginning in told:
        assert any(problem.startswith(beginning) for problem in problems), beginning


async def test_who_ends_the_work_beside_a_thread_has_ended_it() -> None:
    """A cancellation from outside is none of its faults, and is passed on."""
    begun = asyncio.Event()

    async def hang(_: object) -> Any:
        begun.set()
        await asyncio.Event().wait()

    driven = await Driven.load()
    driven.thread.upkeep = Upkeep(await driven.store.get_thread("t1"), compact=hang)
    await driven.ask("one")
    compaction = driven.thread.compact()
    assert compaction is not None
    await begun.wait()
    compaction.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compaction
    assert driven.thread.upkeep.problems == ()
