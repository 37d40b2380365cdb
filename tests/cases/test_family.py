"""Child threads and summaries when the branches of the parent change, on real threads."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from typing_extensions import override

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.errors import UsageError
from perdure.messages import EventPart
from perdure.records import Snapshot, Summary, ThreadRecord
from perdure.testing import Call, Reply
from perdure.watch import View
from stores.database import Database
from stores.postgres import PostgresStore
from tests.cases.conversation import results_of, text_of
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory, start_stack, thread
from tests.workflows.family import ROOT, Family, Me, child_of, is_idle, made, reported, reporting, reports, shown, spawn

__all__ = ["start_stack", "thread"]


class GatedStore(PostgresStore):
    """Holds up the making of child threads while `holds` is set."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.holds = False
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()

    @override
    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        if self.holds and thread.parent_thread_id:
            self.reached.set()
            await self.gate.wait()
        return await super().create_thread(thread)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[GatedStore]:
    """A store over a database of its own."""
    store = await GatedStore.connect(database_url)
    yield store
    await store.close()


def root(who: Me) -> Reply | str:
    """Spawn a child when told to go."""
    return spawn(who, "one") if who.asked.user_text == "go" and not who.heard else f"noted {who.asked.user_text}"


def child(who: Me) -> Reply | str:
    """Report what the user says to it, and else wait."""
    if who.asked.user_text.startswith("report") and not who.heard.startswith("The report"):
        return reporting(who.asked.user_text)
    return "I wait"


class Kin:
    """A parent that has said `first` and `go`, upon which it has spawned a child, which waits."""

    def __init__(self, stack: Stack, model: Family, parent: str) -> None:
        self.stack = stack
        self.client = stack.client
        self.model = model
        self.parent = parent
        self.child = child_of(parent, turn=2)

    async def begin(self) -> None:
        """Say those words, and wait for the child."""
        for text in ("first", "go"):
            await self.client.ask(self.parent, text)
        await made(self.stack, self.child)
        await eventually(lambda: self._has_said("I wait"))

    async def ids(self, thread_id: str) -> list[str]:
        """The ids of what a thread shows."""
        return [message.id for message in await self.client.history(thread_id)]

    async def request(self, text: str) -> str:
        """What the child's model is asked when these words come."""
        await self.client.ask(self.child, text)
        return str(shown(self.model.requests_of(self.child)[-1].messages))

    async def summarise(self, message_id: str, text: str) -> None:
        """Hang a summary on a message of the parent; a worker that has read the path before it would not look."""
        await self.client.store.add_summary(
            Summary(id="s", thread_id=self.parent, message_id=message_id, parts=1, text=text)
        )
        await self.stack.restart_worker()

    async def _has_said(self, text: str) -> bool:
        return text_of((await self.client.history(self.child))[-1]) == text


@pytest.fixture
async def kin(start_stack: StackFactory, thread: str) -> Kin:
    """The two."""
    model = Family({ROOT: root, "one": child})
    agent = Agent("a", model=model, toolsets=[Threads()])
    agent.client_tool("ask", description="Ask a person.", parameters={"type": "object", "properties": {}})

    @agent.tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    kin = Kin(await start_stack(agent), model, thread)
    await kin.begin()
    return kin


async def test_a_child_keeps_what_it_inherited(kin: Kin) -> None:
    """Whatever its parent edits, answers anew or shows: its model is asked with the same words as before."""
    inherited = (await kin.ids(kin.child))[:4]
    first, answer, *_ = await kin.ids(kin.parent)
    assert inherited == (await kin.ids(kin.parent))[:4]
    before = shown(kin.model.requests_of(kin.child)[-1].messages)
    await kin.client.edit(kin.parent, first, "rather this")
    await kin.client.wait_settled(kin.parent)
    regenerated = await kin.client.regenerate(kin.parent, answer)
    await kin.client.wait_settled(kin.parent, regenerated.message_id)
    assert await kin.ids(kin.parent) == [first, regenerated.message_id]
    await kin.client.switch_branch(kin.parent, answer)
    await kin.client.switch_branch(kin.parent, str(regenerated.message_id))
    assert (await kin.ids(kin.child))[:4] == inherited
    await kin.request("and now?")
    assert shown(kin.model.requests_of(kin.child)[-1].messages)[: len(before)] == before


async def test_of_what_a_child_inherited_exactly_what_was_deleted_is_missing(kin: Kin) -> None:
    """In what it shows and in what its model is asked."""
    before = await kin.ids(kin.child)
    assert "first" in await kin.request("one")
    after = await kin.ids(kin.child)
    await kin.client.delete_message(kin.parent, before[0])
    assert await kin.ids(kin.child) == after[1:]
    asked = await kin.request("two")
    assert "'first'" not in asked
    assert "noted first" in asked
    assert faults(await kin.client.history(kin.child)) == []


async def test_a_child_whose_turn_is_deleted_hangs_on_what_was_above(kin: Kin) -> None:
    """The turn that spawned it goes, with its call; the child goes on, and so do its reports."""
    first, answer, words, turn = await kin.ids(kin.parent)
    own = (await kin.ids(kin.child))[4:]
    await kin.client.delete_message(kin.parent, turn)
    assert await kin.ids(kin.child) == [first, answer, words, *own]
    await kin.request("report after all")
    await reported(kin.stack, kin.parent, "report after all")
    assert faults(await kin.client.history(kin.parent)) == []
    assert faults(await kin.client.history(kin.child)) == []


async def test_a_child_outlives_what_it_inherited(kin: Kin) -> None:
    """All of its parent's messages are deleted: it has its own."""
    own = (await kin.ids(kin.child))[4:]
    await kin.client.reset(kin.parent)
    assert await kin.ids(kin.child) == own
    assert "first" not in await kin.request("one")
    await kin.request("report after all")
    await reported(kin.stack, kin.parent, "report after all")
    assert len(await kin.client.history(kin.parent)) == 2


async def test_a_child_cannot_change_what_it_inherited(kin: Kin) -> None:
    """It is its parent's, to delete, to answer anew and to edit."""
    inherited = (await kin.ids(kin.child))[1]
    for change in (
        kin.client.delete_message(kin.child, inherited),
        kin.client.regenerate(kin.child, inherited),
        kin.client.edit(kin.child, inherited, "other words"),
        kin.client.switch_branch(kin.child, inherited),
        kin.client.reset(kin.child, inherited),
    ):
        with pytest.raises(UsageError):
            await change
    assert (await kin.ids(kin.parent))[1] == inherited


async def test_a_deletion_reaches_a_child_at_work(kin: Kin) -> None:
    """Between two of its steps: the second one is asked without the words, and the turn ends as ever."""
    first = (await kin.ids(kin.parent))[0]
    kin.model.roles["one"] = lambda who: "done" if who.asked.results else Reply(Call("ask"))
    await kin.client.send(kin.child, "work")
    (call,) = await eventually(lambda: kin.client.open_calls(kin.child))
    assert "'first'" in str(shown(kin.model.requests_of(kin.child)[-1].messages))
    await kin.client.delete_message(kin.parent, first)
    await kin.client.tool_result(kin.child, call.call_id, "42")
    turn = await kin.client.wait_settled(kin.child)
    assert (turn.status.state, text_of(turn)) == ("complete", "done")
    assert "'first'" not in str(shown(kin.model.requests_of(kin.child)[-1].messages))


async def test_who_watches_a_child_is_shown_a_deletion_above(kin: Kin) -> None:
    """What is gone in the parent is gone for the readers of its children too."""
    first = (await kin.ids(kin.parent))[0]
    view = View()

    async def follow() -> None:
        nonlocal view
        async for event in kin.client.watch(kin.child):
            if isinstance(event, Snapshot):
                view = View()
            view.apply(event)

    watching = asyncio.create_task(follow())
    await eventually(lambda: view.message(first))
    await kin.client.delete_message(kin.parent, first)
    try:
        await eventually(lambda: not view.message(first), timeout=2)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert [message.id for message in view.messages] == await kin.ids(kin.child)


# -- reports -------------------------------------------------------------------------------------------------------


async def test_a_report_reaches_the_branch_that_is_shown(kin: Kin) -> None:
    """Whichever that is: the spawning turn is on another one, and the report is answered where people look."""
    first, answer, *_ = await kin.ids(kin.parent)
    await kin.client.edit(kin.parent, first, "rather this")
    await kin.client.wait_settled(kin.parent)
    edited = await kin.ids(kin.parent)
    await kin.request("report one")
    await reported(kin.stack, kin.parent, "report one")
    assert (await kin.ids(kin.parent))[:2] == edited
    await kin.client.switch_branch(kin.parent, answer)
    assert await reports(kin.stack, kin.parent) == []
    await kin.request("report two")
    await reported(kin.stack, kin.parent, "report two")
    assert faults(await kin.client.history(kin.parent)) == []


async def test_a_report_waits_for_a_pause_that_is_shown(kin: Kin) -> None:
    """It cancels no question: it is told when the turn is over."""
    kin.model.roles[ROOT] = lambda who: Reply(Call("pay")) if not who.heard else "noted"
    await kin.client.send(kin.parent, "pay")
    (call,) = await eventually(lambda: kin.client.approvals(kin.parent))
    await kin.request("report one")

    async def waits() -> bool:
        return (await kin.client.status(kin.parent)).deferred == 1

    await eventually(waits)
    assert await reports(kin.stack, kin.parent) == []
    await kin.client.approve(kin.parent, call.call_id)
    await reported(kin.stack, kin.parent, "report one")
    turn = (await kin.client.history(kin.parent))[5]
    assert results_of(turn) == [("ok", "paid")]


async def test_a_report_passes_a_pause_that_rests_on_another_branch(kin: Kin) -> None:
    """It is told on the branch that is shown, and the question can be answered when its own is shown again."""
    kin.model.roles[ROOT] = lambda who: Reply(Call("pay")) if who.asked.user_text == "pay" and not who.heard else "ok"
    await kin.client.send(kin.parent, "pay")
    (call,) = await eventually(lambda: kin.client.approvals(kin.parent))
    paused = (await kin.ids(kin.parent))[-1]
    await kin.client.switch_branch(kin.parent, (await kin.ids(kin.parent))[0])
    await kin.client.edit(kin.parent, (await kin.ids(kin.parent))[0], "rather this")
    await kin.client.wait_settled(kin.parent)
    await kin.request("report one")
    await reported(kin.stack, kin.parent, "report one")
    await kin.client.switch_branch(kin.parent, paused)
    await kin.client.approve(kin.parent, call.call_id)
    settled = await kin.client.wait_settled(kin.parent, paused)
    assert (settled.status.state, results_of(settled)) == ("complete", [("ok", "paid")])


async def test_a_report_whose_event_is_deleted_does_not_come_again(kin: Kin) -> None:
    """It is known; its child is told the same as before."""
    await kin.request("report one")
    await reported(kin.stack, kin.parent, "report one")
    told = next(m for m in await kin.client.history(kin.parent) if any(isinstance(p, EventPart) for p in m.parts))
    await kin.client.delete_message(kin.parent, told.id)
    await kin.stack.restart_worker()
    await kin.request("report two")
    await reported(kin.stack, kin.parent, "report two")


async def test_an_event_whose_branch_goes_while_its_child_is_made_is_handled(kin: Kin, store: GatedStore) -> None:
    """The message that its child was to hang on is deleted in that moment: the child hangs on what was above."""
    kin.model.roles[ROOT] = lambda who: "noted" if who.heard else Reply(Call("ask"))
    await kin.client.send(kin.parent, "subscribe")
    (call,) = await eventually(lambda: kin.client.open_calls(kin.parent))
    await kin.client.tool_result(kin.parent, call.call_id, "subscribed", subscription=True)
    await kin.client.wait_settled(kin.parent)
    store.holds = True
    await kin.client.event(kin.parent, call.call_id, "rain", id="e1", associative=False)
    await store.reached.wait()
    *above, head = await kin.ids(kin.parent)
    await kin.client.delete_message(kin.parent, head)
    store.holds = False
    store.gate.set()

    async def handled() -> list[ThreadRecord]:
        return [one for one in await kin.client.children(kin.parent) if one.kind == "event"]

    (event,) = await eventually(handled)
    await eventually(lambda: is_idle(kin.stack, event.thread_id))
    assert (await kin.ids(event.thread_id))[: len(above)] == above
    assert (await kin.client.status(kin.parent)).problems == ()


async def test_a_turn_that_is_deleted_while_its_child_is_made_leaves_none(kin: Kin, store: GatedStore) -> None:
    """Nobody waits for the child any more, and nobody is told of trouble."""
    before = await kin.client.children(kin.parent)
    kin.model.roles[ROOT] = lambda who: spawn(who, "two") if who.asked.user_text == "another one" else "noted"
    store.holds = True
    await kin.client.send(kin.parent, "another one")
    await store.reached.wait()
    turn = (await kin.ids(kin.parent))[-1]
    await kin.client.delete_message(kin.parent, turn)
    store.holds = False
    store.gate.set()
    await eventually(lambda: is_idle(kin.stack, kin.parent))
    assert await kin.client.ask(kin.parent, "and now?", mode="queue")
    assert await kin.client.children(kin.parent) == before
    assert (await kin.client.status(kin.parent)).problems == ()


# -- summaries -----------------------------------------------------------------------------------------------------


async def test_a_summary_holds_on_paths_through_its_point_alone(kin: Kin) -> None:
    """Of the branch beside it every word is told; when its own is shown again it holds again."""
    first, answer, *_ = await kin.ids(kin.parent)
    await kin.summarise(answer, "a summary of it")

    async def asked(text: str) -> str:
        await kin.client.ask(kin.parent, text)
        return str(shown(kin.model.requests_of(kin.parent)[-1].messages))

    told = await asked("one")
    assert "a summary of it" in told
    assert "noted first" not in told
    await kin.client.edit(kin.parent, first, "rather this")
    await kin.client.wait_settled(kin.parent)
    told = await asked("two")
    assert "a summary of it" not in told
    assert "rather this" in told
    await kin.client.switch_branch(kin.parent, answer)
    assert "a summary of it" in await asked("three")
    assert "a summary of it" in await kin.request("one"), "the child inherits the path through it"


async def test_a_summary_is_void_after_a_deletion_above_it(kin: Kin) -> None:
    """It tells of what is gone: of what is left every word is told again, to the parent and to its child."""
    first, answer, *_ = await kin.ids(kin.parent)
    await kin.summarise(answer, "a summary of the first words")
    assert "a summary" in await kin.request("one")
    await kin.client.delete_message(kin.parent, first)
    await kin.client.ask(kin.parent, "two")
    for told in (str(shown(kin.model.requests_of(kin.parent)[-1].messages)), await kin.request("two")):
        assert "a summary" not in told
        assert "'first'" not in told
        assert "noted first" in told
