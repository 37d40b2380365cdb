"""What child threads and other branches see of a compaction, and points that were changed meanwhile."""

import asyncio

from perdure.batch import AppendMessage, DeleteMessage, SwitchBranch, TrackSubscription
from perdure.messages import Message, TextPart, ToolCallPart, ToolResultPart
from perdure.records import ThreadRecord
from perdure.summary_text import carried
from stores.memory import MemoryStore
from tests.compaction.driven import Held, Talk, agent, first_text
from tests.compaction.paths import RUNNING, call, result, text
from tests.perdure.view_rules import violations

SEED = (
    ToolCallPart(call_id="spawn", tool="spawn_thread", arguments="{}"),
    ToolResultPart(call_id="spawn", content='You are in the child thread child. Your task is "count".'),
)


async def parent_of(store: MemoryStore) -> Talk:
    """A thread with a few words, on this store."""
    talk = await Talk.begin(agent(keep=0.1), store)
    for number in range(3):
        await talk.user(f"u{number}", f"question {number} " + "x" * 200)
        await talk.answer(f"a{number}", f"answer {number}")
    return talk


async def child_of(talk: Talk, store: MemoryStore) -> Talk:
    """A child that inherits all of the conversation so far."""
    child = await Talk.begin(
        talk.agent,
        store,
        thread_id="child",
        kind="child",
        parent_thread_id="t",
        root_thread_id="t",
        spawn_message_id="a2",
    )
    await child.add("seed", "event", SEED, input_id="seed")
    return child


async def test_a_child_that_was_there_before_sees_what_it_inherited() -> None:
    """The parent is compacted at a later point: the child's path is as it was."""
    store = MemoryStore()
    talk = await parent_of(store)
    child = await child_of(talk, store)
    before = await child.view()
    await talk.user("u3", "more " + "y" * 200)
    await talk.answer("a3", call("c"), result("c"), text("more", 1))
    await talk.compact("a3")
    assert (await talk.summary()).message_id in ("u3", "a3")
    assert await child.view() == before


async def test_a_child_that_is_made_after_sees_the_summary() -> None:
    """Compaction shortens what is loaded for children too."""
    store = MemoryStore()
    talk = await parent_of(store)
    await talk.compact("a1")
    child = await child_of(talk, store)
    path = await child.path()
    assert path.summary == await talk.summary()
    assert violations(await child.view()) == []


async def test_a_compaction_of_a_child_is_none_of_its_parents() -> None:
    """What it inherited is left out at its own first message: the parent reads what it always read."""
    store = MemoryStore()
    talk = await parent_of(store)
    child = await child_of(talk, store)
    await child.user("cu", "and you?")
    await child.answer("ca", "counting")
    before = await talk.view()
    child.agent = agent(keep=0.3)
    assert (await child.compact("ca")).outcome == "done"
    summary = await child.summary()
    assert (summary.message_id, summary.parts) == ("seed", 0)
    assert summary.thread_id == "child"
    assert await child.kept() == ["seed", "cu", "ca"]
    assert await talk.view() == before
    assert (await talk.path()).summary is None
    assert "question 0" in summary.text
    assert violations(await child.view()) == []


async def test_a_child_never_forgets_who_it_is() -> None:
    """When the message that tells its task is left out too, the task is quoted, in every later summary."""
    store = MemoryStore()
    talk = await parent_of(store)
    child = await child_of(talk, store)
    child.agent = agent(keep=0.0)
    for number in range(3):
        await child.user(f"cu{number}", "go on")
        await child.answer(f"ca{number}", "counting")
        await child.compact(f"ca{number}")
        assert await child.kept() == []
        assert carried((await child.summary()).text).task == SEED[1].content
    await talk.compact("a2")
    assert carried((await talk.summary()).text).task == ""


async def test_a_grandchild_does_not_take_its_parents_task_for_its_own() -> None:
    """The task in a summary that was inherited is that of the thread above."""
    store = MemoryStore()
    child = await child_of(await parent_of(store), store)
    child.agent = agent(keep=0.0)
    await child.answer("ca", "counting")
    await child.compact("ca")
    below = await Talk.begin(
        child.agent,
        store,
        thread_id="below",
        kind="child",
        parent_thread_id="child",
        root_thread_id="t",
        spawn_message_id="ca",
    )
    await below.add("seed2", "event", (SEED[0], SEED[1].with_(content="You are below.")), input_id="seed")
    await below.answer("ba", "yes")
    assert (await below.compact("ba")).outcome == "done"
    assert carried((await below.summary()).text).task == "You are below."


async def test_other_branches_see_what_they_saw() -> None:
    """A summary below the fork is on one branch only; one above it is on both."""
    talk = await Talk.begin(agent(keep=0.0))
    await talk.user("u0", "root")
    await talk.answer("a0", "said")
    await talk.user("u1", "left")
    await talk.answer("a1", "left answer")
    await talk.compact("a1")
    assert (await talk.summary()).message_id == "a1"
    other = Message(id="u2", thread_id="t", role="user", parent_id="a0", parts=(TextPart(text="right"),))
    await talk.sync(AppendMessage(message=other, digest="u2"))
    await talk.answer("a2", "right answer")
    assert await talk.kept() == ["u0", "a0", "u2", "a2"]
    await talk.sync(SwitchBranch(message_id="a1", input_id="switch", digest=""))
    assert await talk.kept() == []


async def test_a_point_on_a_branch_that_was_left_is_void() -> None:
    """The head went elsewhere before the compaction began: the summariser is not asked."""
    talk = await Talk.begin(agent(keep=0.0))
    await talk.user("u0", "root")
    await talk.answer("a0", "said")
    await talk.user("u1", "left")
    await talk.answer("a1", "left answer")
    other = Message(id="u2", thread_id="t", role="user", parent_id="a0", parts=(TextPart(text="right"),))
    await talk.sync(AppendMessage(message=other, digest="u2"))
    assert (await talk.compact("a1")).outcome == "void"
    assert talk.summariser.requests == []
    assert (await talk.compact("u2")).outcome == "done", "control: a point on the path"


async def test_a_point_that_is_deleted_meanwhile_is_void() -> None:
    """Deleted before: nobody is asked. Deleted while the summariser works: what it says is thrown away."""
    held = Held()
    talk = await Talk.begin(agent(model=held.model, keep=0.0))
    await talk.user("u0", "secret")
    await talk.answer("a0", "said")
    await talk.user("u1", "more")
    await talk.answer("a1", "said more")
    compacting = asyncio.create_task(talk.compact("a1"))
    await held.reached.wait()
    await talk.sync(DeleteMessage(message_id="u0", input_id="gone", digest=""))
    held.release.set()
    assert (await compacting).outcome == "void"
    path = await talk.path()
    assert path.summary is None
    assert [message.id for message in path.messages] == ["a0", "u1", "a1"]
    await talk.sync(DeleteMessage(message_id="a1", input_id="gone2", digest=""))
    assert (await talk.compact("a1")).outcome == "void"


async def test_of_two_that_overlap_the_later_point_stays() -> None:
    """A compaction up to an earlier point that ends later is void: the path is another one by then."""
    held = Held()
    talk = await Talk.begin(agent(model=held.model, keep=0.0))
    for number in range(3):
        await talk.user(f"u{number}", f"q{number}")
        await talk.answer(f"a{number}", f"r{number}")
    slow = asyncio.create_task(talk.activities.execute(talk.request("a0")))
    await held.reached.wait()
    quick = Talk(talk.store, agent(keep=0.0))
    quick.compactions = 10
    assert (await quick.compact("a2")).outcome == "done"
    held.release.set()
    assert (await slow).outcome == "void"
    assert await talk.kept() == []
    assert (await quick.compact("a0")).outcome in ("nothing", "void"), "a summary stands for that already"


async def test_what_goes_on_is_named_with_its_id() -> None:
    """Active subscriptions and open child threads stand at the end; those that are closed do not."""
    store = MemoryStore()
    talk = await parent_of(store)
    for name, closed in (("open", False), ("shut", True)):
        await store.create_thread(
            ThreadRecord(thread_id=name, agent="a", kind="child", parent_thread_id="t", title=f"task of {name}")
        )
        if closed:
            await store.close_thread(name)
    await talk.sync(TrackSubscription(call_id="call_1", tool="watch_weather"))
    await talk.compact("a2")
    last = (await talk.summary()).text.split("\n")[-2:]
    assert last[0].endswith('call_1 ("watch_weather")')
    assert last[1].endswith('open ("task of open")')


async def test_words_whose_answer_is_under_way_are_quoted() -> None:
    """A turn that has grown too long is cut in its middle, and the words that it answers are in the summary exactly."""
    talk = await Talk.begin(agent(keep=0.1))
    await talk.user("u0", "hello")
    await talk.answer("a0", "hi")
    await talk.user("u1", 'find "all"\nof them')
    steps = [part for step in range(20) for part in (call(f"c{step}", step), result(f"c{step}", "r" * 500, step))]
    await talk.answer("a1", *steps, status=RUNNING)
    await talk.compact("a1")
    summary = await talk.summary()
    assert (summary.message_id, summary.parts % 2) == ("a1", 0)
    assert 0 < summary.parts < len(steps)
    assert 'still to be answered: "find \\"all\\"\\nof them"' in summary.text
    assert violations(await talk.view()) == []
    assert 'still to be answered: "find' in first_text(await talk.view())


async def test_a_compaction_of_the_parent_voids_none_of_a_child_that_is_under_way() -> None:
    """What both inherit was not touched: the child's lands. Its request stands for what the child had inherited."""
    store = MemoryStore()
    held = Held()
    talk = await parent_of(store)
    child = await child_of(talk, store)
    child.agent = agent(model=held.model, keep=0.0)
    await child.user("cu", "and you?")
    await child.answer("ca", "counting")
    compacting = asyncio.create_task(child.compact("ca"))
    await held.reached.wait()
    assert (await talk.compact("a1")).outcome == "done"
    held.release.set()
    assert (await compacting).outcome == "done"
    assert (await child.summary()).thread_id == "child"
    assert await child.kept() == []
    assert "question 0" in (await child.summary()).text
