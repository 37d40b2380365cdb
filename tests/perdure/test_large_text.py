"""Texts in blobs: what becomes of those that somebody names and nobody stored."""

import hashlib

import pytest

from perdure.history import HistoryManager
from perdure.inputs import Disposition, Event, UserMessage
from perdure.large_text import MISSING, LargeTexts
from perdure.messages import EventPart, Message, Part, TextPart, ToolResultPart
from perdure.records import ThreadRecord
from stores.memory import MemoryStore

THREAD = "t"
NOWHERE = hashlib.sha256(b"never stored").hexdigest()


@pytest.fixture
async def store() -> MemoryStore:
    """A store with an empty thread."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
    return store


async def test_a_message_without_its_blob_is_dropped_and_nothing_else(store: MemoryStore) -> None:
    """The rest of its batch is stored, and its id stays free for the words when they are sent again."""
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    for message in (UserMessage(id="a", text="hi"), UserMessage(id="x", text="hi", blob="00")):
        history.handle_content(message)
    history.handle_content(UserMessage(id="b", text="ho"))
    assert await synced(store, history) == {"a": "started", "x": "dropped", "b": "started"}
    whole = UserMessage(id="x", text="hi", blob=await store.put_blob(THREAD, b"hi there"))
    history.handle_content(whole)
    assert await synced(store, history) == {"x": "interrupted"}
    path = await store.load_history_with_ancestors(THREAD)
    assert [message.input_id for message in path.messages if message.input_id] == ["a", "b", "x"]


async def test_an_event_without_its_blob_does_not_end_its_subscription(store: MemoryStore) -> None:
    """It is as if it had never come."""
    history = HistoryManager.from_tail(await store.load_tail(THREAD))
    history.track_subscription("c", "feed")
    history.handle_content(Event(id="e", call_id="c", blob=NOWHERE, final=True))
    assert await synced(store, history) == {"e": "dropped"}
    assert [one.call_id for one in await store.get_active_subscriptions(THREAD)] == ["c"]


async def test_what_cannot_be_read_is_told_in_its_place(store: MemoryStore) -> None:
    """A part whose blob is not there, or is no text, leaves the rest of the conversation readable."""
    texts = LargeTexts(store)
    words = await store.put_blob(THREAD, "Grüße \ud800".encode("utf-8", "surrogatepass"))
    picture = await store.put_blob(THREAD, b"\x89PNG\xff")
    parts: tuple[Part, ...] = (
        TextPart(text="plain"),
        TextPart(blob=words),
        TextPart(blob=NOWHERE),
        TextPart(blob=picture),
        EventPart(event_id="e", origin_call_id="c", blob="not a blob"),
    )
    read = await texts.message(THREAD, Message(id="m", thread_id=THREAD, role="user", parts=parts))
    contents = [part.content if isinstance(part, EventPart) else getattr(part, "text", None) for part in read.parts]
    assert contents == ["plain", "Grüße \ud800", MISSING, MISSING, MISSING]


async def test_what_the_model_reads_of_a_large_result_stays_so(store: MemoryStore) -> None:
    """People who read on ask for the whole of it; its beginning is no place for megabytes."""
    result = ToolResultPart(call_id="c", content="begin", blob=await store.put_blob(THREAD, b"begin and end"))
    assert await LargeTexts(store).part(THREAD, result) == result


async def synced(store: MemoryStore, history: HistoryManager) -> dict[str, Disposition]:
    """Sync until nothing is left; returns what became of the inputs."""
    while batch := history.take_pending("run"):
        history.synced(await store.append_messages(batch))
    return history.take_dispositions()
