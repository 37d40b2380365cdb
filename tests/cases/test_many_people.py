"""Many people who ask at once: each is answered, and one of those who contradict each other wins."""

import asyncio

import pytest

from perdure.agent import Agent
from perdure.errors import UsageError
from perdure.limits import Limits
from perdure.testing import ScriptedModel
from tests.cases.breaks import RUNS, limited
from tests.cases.conftest import Converse
from tests.cases.conversation import PAY, call_in, results_of


@pytest.mark.parametrize("limits", [Limits(), pytest.param(RUNS, marks=pytest.mark.slow)])
async def test_many_people_switch_and_delete_at_once(limits: Limits, converse: Converse) -> None:
    """Every request is answered, every deletion is done once, and what is shown is a branch that is there."""
    talk = await converse(agent=limited(limits=limits))
    client, thread = talk.client, talk.thread
    root = (await client.send(thread, "root", run=False)).message_id
    names = [(await client.send(thread, f"n{number}", run=False, parent_id=root)).message_id for number in range(10)]

    async def switch(name: str, person: int) -> str:
        try:
            return (await client.switch_branch(thread, name, id=f"s{person}-{name}")).disposition
        except UsageError:
            return "refused"

    async def delete(name: str, person: int) -> str:
        return (await client.delete_message(thread, name, id=f"d{person}-{name}")).disposition

    gone = names[::2]
    switches, deletions = await asyncio.gather(
        asyncio.gather(*(switch(name, person) for person, name in enumerate(names))),
        asyncio.gather(*(delete(name, person) for person in range(2) for name in gone)),
    )
    # Temporal gives up tasks when too many updates come at once: then a change was made whose answer is lost, and the
    # request, which is tried again, is told that it is known.
    for number, name in enumerate(gone):
        outcomes = sorted([deletions[number], deletions[number + len(gone)]])
        assert outcomes[1] == "duplicate", name
        assert outcomes[0] in ("changed", "duplicate"), name
    assert {what for name, what in zip(names, switches, strict=True) if name not in gone} <= {"changed", "duplicate"}
    stored = await client.tree(thread)
    assert {one.message.id for one in stored.messages} == {root, *names[1::2]}
    path = await talk.ids()
    assert path[0] == root
    assert path[-1] in names[1::2]
    again = await asyncio.gather(*(delete(name, person) for person in range(2) for name in gone))
    assert again == ["duplicate"] * 2 * len(gone), "whoever asks is told that it is gone"


async def test_the_same_deletion_from_many_is_done_once(converse: Converse) -> None:
    """Under one id: one changes the tree, the others are duplicates."""
    talk = await converse()
    words = (await talk.client.send(talk.thread, "go", run=False)).message_id
    outcomes = await asyncio.gather(
        *(talk.client.delete_message(talk.thread, words, id="d1") for _ in range(8)),
    )
    assert sorted(outcome.disposition for outcome in outcomes) == ["changed"] + ["duplicate"] * 7
    assert await talk.shown() == []


@pytest.mark.parametrize("limits", [Limits(), pytest.param(RUNS, marks=pytest.mark.slow)])
async def test_of_yes_and_no_at_once_one_wins(limits: Limits, converse: Converse) -> None:
    """The other is refused, and the tool runs or does not as the first one said."""
    ran = list[int]()

    def declare(model: ScriptedModel) -> Agent:
        agent = Agent("a", model=model)

        @agent.tool(approval="always")
        async def pay(amount: int = 0) -> str:
            """Pay."""
            ran.append(amount)
            return f"paid {amount}"

        return agent

    talk = await converse({"go": [PAY, "thanks"]}, agent=limited(declare, limits))
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()

    async def decide(approved: bool, by: str) -> bool | None:
        try:
            await talk.client.decide(talk.thread, call_id, approved, by=by)
        except UsageError:
            return None
        return approved

    said = await asyncio.gather(*(decide(number % 2 == 0, f"p{number}") for number in range(6)))
    (won,) = {one for one in said if one is not None}
    assert [one for one in said if one is None], "those who said the opposite are told"
    settled = await talk.until(turn, "complete")
    decision = call_in(settled).decision
    assert decision is not None
    assert decision.approved is won
    assert results_of(settled)[0][0] == ("ok" if won else "denied")
    assert ran == ([3] if won else [])
    assert len(talk.model.requests) == 2
