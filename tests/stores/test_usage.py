"""What model calls have cost: of a thread, of its turns, of trees and tenants."""

import asyncio
from datetime import UTC, datetime

import pytest

from perdure.batch import CommitStep, SetStatus
from perdure.errors import ThreadNotFound
from perdure.messages import Status, Usage
from perdure.ports import Store
from perdure.records import Spending, Spent, StepOutcome, ThreadRecord
from stores.postgres import PostgresStore
from tests.stores.builders import THREAD, assistant, call, delta, settle, started, text, user, write
from tests.stores.plans import numbers
from tests.stores.trees import delete, written

ONE = Usage(requests=1, input_tokens=1000, output_tokens=50, cached_tokens=900, nano_usd=2**40, unpriced=0)
OTHER = Usage(requests=1, input_tokens=7, unpriced=1)


def step(number: int, usage: Usage = ONE, message_id: str = "a", turn: int = 1) -> CommitStep:
    """A step that streamed nothing, and what it cost."""
    return CommitStep(message_id=message_id, start=0, turn=turn, step=number, usage=usage)


async def of_message(store: Store, message_id: str = "a") -> Usage | None:
    """What a message says of its cost."""
    (found,) = [one for one in (await store.load_tree(THREAD)).messages if one.message.id == message_id]
    return found.message.usage


async def test_steps_count_with_their_thread_and_their_turn(store: Store) -> None:
    """Whether the turn settles in the same batch or goes on, and however many steps a batch commits."""
    await started(store)
    assert await of_message(store) is None
    await write(store, 2, step(0))
    assert await of_message(store) == ONE
    await write(store, 3, step(1), step(2, OTHER), settle("a"))
    assert await of_message(store) == ONE + ONE + OTHER
    assert (await store.get_thread(THREAD)).usage == ONE + ONE + OTHER
    assert await of_message(store, "u") is None


async def test_a_settled_turn_counts_what_comes_later(store: Store) -> None:
    """The first status stays, the cost of a step that is committed with a second one is not lost."""
    await started(store)
    await write(store, 2, settle("a"))
    await write(store, 3, step(0), SetStatus(message_id="a", status=Status(state="incomplete", reason="cancelled")))
    path = await store.load_history_with_ancestors(THREAD)
    assert (path.messages[-1].usage, path.messages[-1].status.state) == (ONE, "complete")


async def test_a_batch_that_comes_again_counts_once(store: Store) -> None:
    """As everything in it."""
    await started(store)
    for _ in range(2):
        await write(store, 2, step(0), settle("a"))
    assert (await of_message(store), (await store.get_thread(THREAD)).usage) == (ONE, ONE)


async def test_a_step_that_cost_nothing_says_nothing(store: Store) -> None:
    """A message without usage stays without: nothing is written for it."""
    await started(store)
    await write(store, 2, step(0, Usage()), settle("a"))
    assert await of_message(store) is None


async def test_readers_see_the_cost_with_the_status(store: Store) -> None:
    """The change that tells of the end of a turn tells what it has cost."""
    await started(store)
    await write(store, 2, step(0), settle("a"))
    told = [change.message for change in await store.read_changes(THREAD, 0) if change.message]
    assert [(message.id, message.status.state, message.usage) for message in told][-1] == ("a", "complete", ONE)
    assert (await store.snapshot(THREAD)).path.messages[-1].usage == ONE


async def test_a_call_that_brought_nothing_counts_once(store: Store) -> None:
    """By its turn, step and attempt; another attempt is another call. Readers hear of it, though the turn is over."""
    await started(store)
    await write(store, 2, step(0), settle("a"))
    before = (await store.get_thread(THREAD)).seq
    for _ in range(2):
        await store.add_usage(THREAD, 1, 1, 1, OTHER)
    await store.add_usage(THREAD, 1, 1, 2, OTHER)
    assert (await store.get_thread(THREAD)).usage == ONE + OTHER + OTHER == await of_message(store)
    (change,) = await store.read_changes(THREAD, before)
    assert change.message is not None
    assert (change.message.status.state, change.message.usage) == ("complete", ONE + OTHER + OTHER)


@pytest.mark.parametrize("way", [{"sealed": True}, {"discard": True}], ids=str)
async def test_an_answer_that_was_stored_when_its_step_was_stopped_counts_once(
    store: Store, way: dict[str, bool]
) -> None:
    """With its turn, though whoever stopped it does not know of it; also if its writer, in doubt, counts it as well.

    Another attempt is another call.
    """
    await started(store)
    await store.finish_step(THREAD, 1, 0, 3, (text("so"), call("c")), StepOutcome(usage=ONE), [])
    for _ in range(2):
        await write(store, 2, step(0, Usage()).with_(**way), settle("a"))
    assert (await store.get_thread(THREAD)).usage == ONE == await of_message(store)
    await store.add_usage(THREAD, 1, 0, 3, ONE)
    assert (await store.get_thread(THREAD)).usage == ONE == await of_message(store)
    await store.add_usage(THREAD, 1, 0, 2, OTHER)
    assert (await store.get_thread(THREAD)).usage == ONE + OTHER
    path = await store.load_history_with_ancestors(THREAD)
    assert path.messages[-1].parts == ((text("so"),) if "sealed" in way else ())


@pytest.mark.parametrize("way", [{"sealed": True}, {"discard": True}], ids=str)
async def test_an_answer_whose_writer_has_counted_it_counts_no_more_when_its_step_is_stopped(
    store: Store, way: dict[str, bool]
) -> None:
    """The writer was in doubt whether it is stored, and was the first of the two."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 3, (text("so"),), StepOutcome(usage=ONE), [])
    await store.add_usage(THREAD, 1, 0, 3, ONE)
    await write(store, 2, step(0, Usage()).with_(**way), settle("a"))
    assert (await store.get_thread(THREAD)).usage == ONE == await of_message(store)


@pytest.mark.parametrize("way", [{"sealed": True}, {"discard": True}, {}], ids=str)
async def test_an_answer_whose_step_says_what_it_took_counts_once(store: Store, way: dict[str, bool]) -> None:
    """What is committed with its usage is not added from the turn buffer too; nor is what only streamed."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("so"),), StepOutcome(usage=ONE), [])
    await write(store, 2, step(0).with_(**way))
    await store.append_chunks(THREAD, 1, 1, 1, [delta("half")])
    await write(store, 3, step(1, Usage()).with_(sealed=True, start=0 if "discard" in way else 1), settle("a"))
    assert (await store.get_thread(THREAD)).usage == ONE == await of_message(store)


async def test_two_who_count_the_same_call_at_once(store: Store) -> None:
    """It counts once, while different calls all count."""
    await started(store)
    await asyncio.gather(*(store.add_usage(THREAD, 1, 0, attempt % 3, OTHER) for attempt in range(9)))
    assert (await store.get_thread(THREAD)).usage.requests == 3


async def test_a_call_of_a_turn_that_is_gone_counts_with_the_thread(store: Store) -> None:
    """Its message was deleted; the money was spent all the same."""
    await started(store)
    await write(store, 2, settle("a"))
    await written(store, delete("a"))
    await store.add_usage(THREAD, 1, 0, 1, ONE)
    assert (await store.get_thread(THREAD)).usage == ONE
    assert await store.get_spending(THREAD, 1) == await store.get_spending(THREAD)


async def test_deleted_turns_have_cost_what_they_cost(store: Store) -> None:
    """The sum of the thread stays when the message goes."""
    await started(store)
    await write(store, 2, step(0), settle("a"))
    await written(store, delete("a"))
    assert (await store.get_thread(THREAD)).usage == ONE


async def family(store: Store) -> None:
    """A root with a child and a grandchild; another thread of the tenant; one of another tenant."""
    for number, (name, parent, root, tenant) in enumerate(
        [
            ("r", None, None, "x"),
            ("c", "r", "r", "x"),
            ("g", "c", "r", "x"),
            ("other", None, None, "x"),
            ("far", None, None, "y"),
        ]
    ):
        record = ThreadRecord(
            thread_id=name,
            agent="demo",
            tenant=tenant,
            kind="child" if parent else "root",
            parent_thread_id=parent,
            root_thread_id=root,
            created_at=datetime(2026, 1, 1 + number, tzinfo=UTC),
        )
        await store.create_thread(record)
        await store.add_usage(name, 1, 0, 1, Usage(nano_usd=10**number))


async def test_spending_of_a_turn_a_thread_a_tree_and_a_tenant(store: Store) -> None:
    """Each by itself, with when it began; a tenant has no beginning."""
    await family(store)
    began = [datetime(2026, 1, 1 + number, tzinfo=UTC).timestamp() for number in range(4)]
    tenant = Spent(usage=Usage(nano_usd=1111))
    tree = Spent(usage=Usage(nano_usd=111), since=began[0])
    for name, number in (("r", 0), ("c", 1), ("g", 2)):
        thread = Spent(usage=Usage(nano_usd=10**number), since=began[number])
        assert await store.get_spending(name) == Spending(thread=thread, tree=tree, tenant=tenant)
    alone = Spent(usage=Usage(nano_usd=1000), since=began[3])
    assert await store.get_spending("other", 1) == Spending(thread=alone, tree=alone, tenant=tenant)
    assert await store.get_tenant_usage("x") == tenant.usage
    assert await store.get_tenant_usage("nobody") is None
    await store.create_thread(ThreadRecord(thread_id="first", agent="demo", tenant="new"))
    assert await store.get_tenant_usage("new") == Usage()


async def test_wider_spending_may_be_left_out(store: Store) -> None:
    """Nothing is summed up that nobody asked for."""
    await family(store)
    everything = await store.get_spending("c")
    assert await store.get_spending("c", tree=False) == everything.with_(tree=Spent())
    assert await store.get_spending("c", tenant=False) == everything.with_(tenant=Spent())
    assert await store.get_spending("c", tree=False, tenant=False) == Spending(thread=everything.thread)


async def test_spending_of_a_turn_is_that_of_its_message(store: Store) -> None:
    """Of the one that is asked for, whichever runs."""
    await started(store)
    await write(store, 2, step(0), settle("a"), user("u2"), assistant("a2", 2))
    await write(store, 3, step(0, OTHER, "a2", 2))
    for turn, usage, message_id in ((1, ONE, "a"), (2, OTHER, "a2")):
        found = (await store.get_spending(THREAD, turn)).turn
        (stored,) = [one for one in (await store.load_tree(THREAD)).messages if one.message.id == message_id]
        assert stored.created_at is not None
        assert found.usage == usage
        assert found.since == pytest.approx(stored.created_at.timestamp(), abs=1e-3)
    assert (await store.get_spending(THREAD, 3)).turn == Spent()
    assert (await store.get_spending(THREAD)).turn == Spent()


async def test_of_a_thread_that_is_not_there_nothing_is_counted(store: Store) -> None:
    """Neither written nor read."""
    with pytest.raises(ThreadNotFound):
        await store.add_usage("nobody", 1, 0, 1, ONE)
    with pytest.raises(ThreadNotFound):
        await store.get_spending("nobody")


async def test_a_new_thread_has_spent_nothing(store: Store) -> None:
    """Whatever its record says: usage is counted and not given."""
    created = await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo", usage=ONE))
    assert created.usage == Usage()


async def test_counting_updates_the_row_of_a_thread_in_place(own_database_url: str) -> None:
    """No index holds what changes: each update is a hot one. The control: the status of a message is in an index."""
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await started(store)
        for number in range(20):
            await store.add_usage(THREAD, 1, 0, number, ONE)
            await store.set_model(THREAD, f"m{number}")
        await write(store, 2, step(0), settle("a"))
        updates = {row["relname"]: (row["n_tup_upd"], row["n_tup_hot_upd"]) for row in await numbers(store)}
    assert updates["threads"][0] == updates["threads"][1] > 40
    assert updates["messages"][0] > updates["messages"][1]
