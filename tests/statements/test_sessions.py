"""Statements 36 to 43, 49 and 50: sessions, their files and their counts; the counts of threads too."""

import asyncio
from pathlib import Path

import pytest

from perdure.batch import AppendMessage, SetStatus, SyncBatch
from perdure.errors import ContentConflict, StoreError, UsageError
from perdure.history_provider import InMemoryHistoryProvider
from perdure.messages import Message, Role, Status, TextPart
from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.session import Session, UnknownVersion
from perdure.session_files import CorruptSession, FileSessionStore
from perdure.session_store import MemorySessionStore, SessionStore
from stores.memory import MemoryStore
from tests.stack import Stack
from tests.statements.requests import agent_of
from tests.workflows.conftest import StackFactory


def message(id: str, text: str = "words", role: Role = "user") -> Message:
    """A message with one text."""
    return Message(id=id, thread_id="s", role=role, parts=(TextPart(text=text),), metadata={"tags": ["x"]})


@pytest.fixture(params=["memory", "files"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    """Either store of sessions."""
    return MemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path)


async def test_s36_a_restored_session_sends_the_same_history(sessions: SessionStore) -> None:
    """And what the restored one takes in does not reach the original."""
    provider, session = InMemoryHistoryProvider(), Session("s", service_id="conv_1")
    await provider.on_invoked(session, [message("1", "hi"), message("2", "hello", "assistant")])
    await sessions.save(session)
    restored = await sessions.load("s")
    assert restored is not None
    assert await provider.on_invoking(restored) == await provider.on_invoking(session)
    assert restored.service_id == "conv_1"
    await provider.on_invoked(restored, [message("3")])
    restored.set_state("memory", {"k": 1})
    assert session.get_message_count() == 2
    assert session.provider_states == {}


async def test_s37_state_of_an_unknown_type_is_refused_before_anything_is_written(sessions: SessionStore) -> None:
    """The session that was saved before stays as it was; a new one is not there at all."""
    session = Session("s")
    await sessions.save(session)
    for odd in (session, Session("new")):
        await odd.add_messages_batch([message("1")])
        odd.set_state("memory", {"when": object()})
        with pytest.raises(UsageError, match="'memory': object is not JSON"):
            await sessions.save(odd)
    saved = await sessions.load("s")
    assert saved is not None
    assert saved.get_message_count() == 0
    assert await sessions.load("new") is None


async def test_s38_a_corrupt_snapshot_is_moved_aside_and_an_unknown_one_is_left(tmp_path: Path) -> None:
    """Both are errors, and neither file is deleted."""
    sessions = FileSessionStore(tmp_path)
    await sessions.save(Session("s"))
    (path,) = [one for one in tmp_path.rglob("*") if one.is_file()]
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(CorruptSession) as caught:
        await sessions.load("s")
    assert caught.value.aside.read_bytes() == whole[:-5]
    assert not path.exists()
    later = whole.replace(b'"version":1', b'"version":2')
    path.write_bytes(later)
    with pytest.raises(UnknownVersion):
        await sessions.load("s")
    assert path.read_bytes() == later


@pytest.mark.parametrize(
    "name", ["a/b", "../../up", "/etc/passwd", "..", "", "CON", "nul.json", "a\0b", "a" * 400, "Ä\\"]
)
async def test_s39_any_id_stays_inside_the_folder_and_comes_back(tmp_path: Path, name: str) -> None:
    """As an id and as a tenant; under it and nothing like it."""
    root = tmp_path / "root"
    sessions = FileSessionStore(root)
    await sessions.save(Session(name, tenant=name))
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) == 1
    assert files[0].resolve().is_relative_to(root.resolve())
    restored = await sessions.load(name, name)
    assert restored is not None
    assert (restored.id, restored.tenant) == (name, name)
    for other in (name.swapcase() + "x", name + "/"):
        assert await sessions.load(other, name) is None


async def test_s40_a_session_is_found_by_its_tenant_and_by_no_other(sessions: SessionStore) -> None:
    """Two tenants may use one id without meeting."""
    for tenant in ("x", "y"):
        session = Session("s", tenant=tenant)
        await session.add_messages_batch([message(tenant)])
        await sessions.save(session)
    for tenant in ("x", "y"):
        found = await sessions.load("s", tenant)
        assert found is not None
        assert [one.id for one in await found.get_messages()] == [tenant]
    assert await sessions.load("s", "z") is None


async def test_s41_counts_are_exact_whenever_they_are_asked_for(start_stack: StackFactory, thread: str) -> None:
    """While messages are written they rise one by one and are never 0 again; they equal the rows, for each role too."""
    agent, _ = agent_of(lambda asked: f"answer to {asked.user_text}")
    stack = await start_stack(agent)
    await stack.client.ask(thread, "first")
    writing = asyncio.create_task(_talk(stack, thread))
    seen: list[int] = []
    while not writing.done():
        seen.append((await stack.client.counts(thread)).total)
    await writing
    assert seen == sorted(seen)
    assert seen[0] >= 2
    assert len(set(seen)) > 2, "they are asked for in the middle"
    counts, path = await stack.client.counts(thread), await stack.client.history(thread)
    assert (counts.total, counts.user, counts.assistant, counts.visible) == (12, 6, 6, 12)
    assert counts.total == len(path)
    await stack.stop_worker()
    assert await stack.client.counts(thread) == counts, "nothing need run"


async def test_s41_counts_of_a_session_are_of_what_is_in_it() -> None:
    """In all and by role, in the middle of other tasks' batches too: a batch is there as a whole or not yet."""
    session = Session("s")
    batches = [[message(f"{n}u"), message(f"{n}a", role="assistant")] for n in range(20)]
    writing = [asyncio.create_task(session.add_messages_batch(batch)) for batch in batches]
    seen: list[int] = []
    while not all(task.done() for task in writing):
        seen.append(session.get_message_count())
        await asyncio.sleep(0)
    assert all(count % 2 == 0 for count in seen)
    assert (session.get_message_count(), session.get_message_count("user")) == (40, 20)
    assert session.get_message_count("assistant") == len([m for m in await session.get_messages() if m.role != "user"])


async def test_s42_a_cleared_session_goes_on_with_its_sequence() -> None:
    """None is left, and no number is given twice."""
    session = Session("s")
    await session.add_messages_batch([message("1"), message("2")])
    await session.clear()
    assert session.get_message_count() == 0
    await session.add_messages_batch([message("3")])
    assert [one.seq for one in await session.get_messages()] == [3]


async def test_s42_a_cleared_thread_goes_on_with_its_sequence(start_stack: StackFactory, thread: str) -> None:
    """The next message comes after all that there ever was, for readers who go on from a number."""
    agent, model = agent_of(lambda asked: f"answer to {asked.user_text}")
    stack = await start_stack(agent)
    await stack.client.ask(thread, "first")
    await stack.client.reset(thread)
    assert (await stack.client.counts(thread)).total == 0
    before = (await stack.store.get_thread(thread)).seq
    await stack.client.ask(thread, "second")
    path = await stack.client.history(thread)
    assert [one.turn for one in path if one.role == "assistant"] == [2]
    assert min(one.seq for one in path) > before
    assert [asked.user_text for asked in model.requests] == ["first", "second"]


async def test_s43_a_snapshot_holds_every_message_that_was_committed_before_it(sessions: SessionStore) -> None:
    """While another task goes on writing and saving."""
    session = Session("s")

    async def write(first: int) -> None:
        for number in range(first, first + 10):
            await session.add_messages_batch([message(str(number))])
            committed = {one.id for one in await session.get_messages()}
            await sessions.save(session)
            saved = await sessions.load("s")
            assert saved is not None
            assert committed <= {one.id for one in await saved.get_messages()}

    await asyncio.gather(*(write(first) for first in (0, 10, 20)))
    saved = await sessions.load("s")
    assert saved is not None
    assert saved.get_message_count() == 30


async def test_s49_a_message_that_is_edited_in_memory_changes_nothing_that_is_kept(sessions: SessionStore) -> None:
    """Neither the one that was given nor those that came out."""
    session = Session("s")
    given = message("1")
    await session.add_messages_batch([given])
    await sessions.save(session)
    assert given.metadata is not None
    given.metadata["tags"].append("edited")
    out = (await session.get_messages())[0]
    assert out.metadata is not None
    out.metadata["tags"].append("edited")
    kept = (await session.get_messages())[0]
    assert kept.metadata == {"tags": ["x"]}
    saved = await sessions.load("s")
    assert saved is not None
    assert (await saved.get_messages())[0].metadata == {"tags": ["x"]}


@pytest.mark.parametrize("kind", ["memory", "postgres"])
async def test_s49_an_edit_in_memory_reaches_no_store(kind: str, store: Store) -> None:
    """Of a thread: what is stored is what was appended."""
    store = MemoryStore() if kind == "memory" else store
    await store.create_thread(ThreadRecord(thread_id="s", agent="a"))
    given = message("1")
    await store.append_messages(_batch(1, given))
    assert given.metadata is not None
    given.metadata["tags"].append("edited")
    (kept,) = (await store.load_history_with_ancestors("s")).messages
    assert kept.metadata == {"tags": ["x"]}


async def test_s50_a_batch_is_in_a_session_as_a_whole_or_not_at_all() -> None:
    """150 messages, of which the last but one is refused. Control: without that one all are there."""
    session = Session("s")
    await session.add_messages_batch([message("known")])
    batch = [message(str(number)) for number in range(148)]
    with pytest.raises(ContentConflict):
        await session.add_messages_batch([*batch, message("known", "other words"), message("last")])
    assert session.get_message_count() == 1
    await session.add_messages_batch([*batch, message("known"), message("last")])
    assert session.get_message_count() == 150


@pytest.mark.parametrize("kind", ["memory", "postgres"])
async def test_s50_a_batch_is_in_a_thread_as_a_whole_or_not_at_all(kind: str, store: Store) -> None:
    """150 messages, and then something that cannot be; nothing of it is visible. Control: without that all are."""
    store = MemoryStore() if kind == "memory" else store
    await store.create_thread(ThreadRecord(thread_id="s", agent="a"))
    messages = [message(str(number)) for number in range(150)]
    broken = _batch(1, *messages)
    unknown = SetStatus(message_id="unknown", status=Status())
    with pytest.raises(StoreError):
        await store.append_messages(broken.with_(operations=(*broken.operations, unknown)))
    assert (await store.get_message_counts("s")).total == 0
    assert (await store.get_thread("s")).version == 0
    await store.append_messages(broken)
    assert (await store.get_message_counts("s")).total == 150


def _batch(number: int, *messages: Message) -> SyncBatch:
    operations = tuple(AppendMessage(message=one) for one in messages)
    return SyncBatch(thread_id="s", number=number, sync_id=f"s{number}", operations=operations)


async def _talk(stack: Stack, thread: str) -> None:
    for number in range(5):
        await stack.client.ask(thread, f"words {number}")
