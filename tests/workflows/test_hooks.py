"""The hooks of context providers after a turn: begun beside the thread when the turn is durable."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from perdure import policy
from perdure.agent import Agent
from perdure.context import ProviderRun, RunOutcome
from perdure.policy import HOOKS_PATIENCE
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


class Diary:
    """A provider that remembers what it was told."""

    def __init__(self, name: str = "diary") -> None:
        self.name = name
        self.told: list[tuple[int, str, str]] = []
        self.running = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.broken = 0

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """Write it down, or fail."""
        self.running += 1
        try:
            await self.may_go_on.wait()
            if self.broken:
                self.broken -= 1
                raise ConnectionError("the diary is locked away")
            self.told.append((run.turn, outcome.result, answer_text(outcome.message)))
            run.state["turns"] = run.state.get("turns", 0) + 1
        finally:
            self.running -= 1


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words; `hang` never ends, `act` makes a call first."""
    match asked.user_text:
        case "hang":
            return Reply("well", hang=True)
        case "act" if not asked.results:
            return Reply(Call("noop"))
        case words:
            return Reply(f"you said {words}")


def agent(*providers: Any) -> Agent:
    """An agent with these providers."""
    agent = Agent("a", model=ScriptedModel(echo), context=providers)

    @agent.tool
    async def noop() -> str:
        return "done"

    return agent


async def test_a_turn_is_told_with_its_answer(start_stack: StackFactory, thread: str) -> None:
    """Once for each turn, in order, with what it ended in; tool rounds are one turn."""
    diary = Diary()
    stack = await start_stack(agent(diary))
    await stack.client.ask(thread, "hi")
    await stack.client.ask(thread, "act")
    await eventually(lambda: len(diary.told) == 2)
    assert diary.told == [(1, "success", "you said hi"), (2, "success", "you said act")]
    states = await stack.store.get_provider_states(thread)
    assert states["diary"].values == {"turns": 2}


async def test_a_stop_is_told_as_one(start_stack: StackFactory, thread: str) -> None:
    """With the words that had streamed."""
    diary = Diary()
    stack = await start_stack(agent(diary))
    await stack.client.send(thread, "hang")
    await eventually(lambda: _streams(stack, thread))
    await stack.client.interrupt(thread)
    await eventually(lambda: diary.told)
    assert diary.told == [(1, "cancel", "well")]


async def test_the_next_turn_waits_for_the_hooks_for_a_moment_only(start_stack: StackFactory, thread: str) -> None:
    """It is answered while a hook hangs; that one goes on, and the next turn's comes after it."""
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(agent(diary))
    await stack.client.ask(thread, "one")
    await eventually(lambda: diary.running)
    asked = asyncio.create_task(stack.client.ask(thread, "two"))
    assert await asyncio.wait_for(asked, 4 * HOOKS_PATIENCE.total_seconds()) == "you said two"
    assert (diary.told, diary.running) == ([], 1)
    diary.may_go_on.set()
    await eventually(lambda: len(diary.told) == 2)
    assert [turn for turn, *_ in diary.told] == [1, 2]


async def test_a_stop_does_not_wait_for_hooks(start_stack: StackFactory, thread: str) -> None:
    """Words that come while the next turn waits for a hook of the last one are taken at once."""
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(agent(diary))
    await stack.client.ask(thread, "one")
    await eventually(lambda: diary.running)
    accepted = await stack.client.send(thread, "two")
    await stack.client.interrupt(thread)
    turn = await asyncio.wait_for(
        stack.client.wait_settled(thread, accepted.message_id), HOOKS_PATIENCE.total_seconds() / 2
    )
    assert turn.status.reason == "cancelled"
    diary.may_go_on.set()


async def test_a_hook_that_fails_is_tried_again_and_undoes_nothing(start_stack: StackFactory, thread: str) -> None:
    """The answer stands meanwhile; of two providers only the one that failed runs again."""
    steady, shaky = Diary("steady"), Diary("shaky")
    shaky.broken = 1
    stack = await start_stack(agent(steady, shaky))
    assert await stack.client.ask(thread, "hi") == "you said hi"
    await eventually(lambda: shaky.told, timeout=20)
    assert [diary.told for diary in (steady, shaky)] == [[(1, "success", "you said hi")]] * 2
    assert (await stack.client.status(thread)).problems == ()


async def test_hooks_that_are_given_up_are_a_problem_that_says_so_and_no_more(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say that they are tried again."""
    monkeypatch.setattr(policy.AFTER_TURN.retry, "maximum_attempts", 1)
    broken = Diary()
    broken.broken = 1
    stack = await start_stack(agent(broken))
    await stack.client.ask(thread, "hi")

    async def problems() -> tuple[str, ...]:
        return (await stack.client.status(thread)).problems

    await eventually(problems)
    why = "Context provider 'diary' failed after turn 1: ConnectionError: the diary is locked away."
    assert await problems() == (f"Hooks after turn 1 were given up: {why}",)


async def test_hooks_that_work_again_are_no_problem_any_more(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then there is one, however many turns they have failed after: the newest, with their number."""
    monkeypatch.setattr(policy.AFTER_TURN.retry, "maximum_attempts", 1)
    broken, steady = Diary("broken"), Diary("steady")
    broken.broken = 12
    stack = await start_stack(agent(broken, steady))
    for number in range(12):
        await stack.client.ask(thread, f"{number}")

    async def problems() -> tuple[str, ...]:
        return (await stack.client.status(thread)).problems

    async def are_counted() -> bool:
        (told,) = await problems() or ("",)
        return told.startswith("Hooks after turn 12 were given up: ") and told.endswith("(12 like this so far.)")

    await eventually(are_counted)
    await stack.client.ask(thread, "again")
    await eventually(lambda: (13, "success", "you said again") in broken.told)

    async def are_over() -> bool:
        return await problems() == ()

    await eventually(are_over)


class Odd(Diary):
    """Leaves in its state what cannot be stored."""

    @override
    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        await super().after_run(run, outcome)
        run.state["odd"] = object()


async def test_hooks_that_went_wrong_for_good_are_told_all(start_stack: StackFactory, thread: str) -> None:
    """Of one turn none hides the other, and none is run again."""
    one, two = Odd("one"), Odd("two")
    stack = await start_stack(agent(one, two))
    await stack.client.ask(thread, "hi")

    async def told() -> list[str]:
        (*_, last) = (await stack.client.status(thread)).problems or ("",)
        return [name for name in ("'one'", "'two'") if name in last]

    await eventually(told)
    assert await told() == ["'one'", "'two'"]
    assert [len(diary.told) for diary in (one, two)] == [1, 1]


class Mistaken:
    """A provider that returns what is no context."""

    name = "hints"

    def __init__(self) -> None:
        self.asked = 0

    async def before_run(self, _: ProviderRun) -> str:
        """A text and not a Context."""
        self.asked += 1
        return "a hint"


async def test_a_provider_that_returns_no_context_fails_its_turn_at_once(
    start_stack: StackFactory, thread: str
) -> None:
    """With a sentence that names it, after one try."""
    mistaken = Mistaken()
    stack = await start_stack(agent(mistaken))
    accepted = await stack.client.send(thread, "hi")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "error")
    assert "Context provider 'hints' failed: it returned str, not a Context or None." in (turn.status.detail or "")
    assert mistaken.asked == 1


class Quiet:
    """A provider without any hook."""

    name = "quiet"


@pytest.mark.parametrize("providers", [(), (Quiet(),)], ids=["none", "one without a hook"])
async def test_agents_without_hooks_pay_nothing(
    start_stack: StackFactory, thread: str, providers: tuple[Quiet, ...]
) -> None:
    """No activity is scheduled for a turn that nobody wants to be told of."""
    stack = await start_stack(agent(*providers))
    await stack.client.ask(thread, "hi")
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        async for event in stack.handle(thread).fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled == ["complete"]


async def _streams(stack: Stack, thread: str) -> bool:
    return bool((await stack.store.snapshot(thread)).chunks)


async def test_only_so_many_turns_wait_for_a_hook_that_hangs(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More would fill what a run hands to the next one: the thread says whose hooks were given up, and goes on."""
    monkeypatch.setattr("workflows.hooks.PENDING", 2)
    monkeypatch.setattr("workflows.hooks.HOOKS_PATIENCE", HOOKS_PATIENCE * 0.01)
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(agent(diary))
    for number in range(3):
        await stack.client.ask(thread, f"{number}")
    (problem,) = await eventually(lambda: _problems(stack, thread))
    assert problem == "Hooks after turn 3 were given up: those of 2 turns before it are not over."
    diary.may_go_on.set()
    await eventually(lambda: len(diary.told) == 2)


async def _problems(stack: Stack, thread: str) -> tuple[str, ...]:
    return (await stack.client.status(thread)).problems
