"""Imports: a batch names a file, and what is in it becomes the thread's."""

import base64
import json
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities import import_file
from activities.sync import SyncActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.batch import ImportMessages, Refused, SyncBatch, SyncReport
from perdure.contract import LoadRequest
from perdure.errors import StoreUnavailable
from perdure.inputs import INLINE_BYTES
from perdure.messages import FilePart, Message, Status, TextPart, ToolResultPart
from perdure.policy import ErrorType
from perdure.records import ThreadRecord
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore

THREAD = "t"
PNG = b"\x89PNG\r\n\x1a\n..."


def listed(id: str, parent: str | None, role: str, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message of a file."""
    return {"parentId": parent, "message": {"id": id, "role": role, "content": list(content), **fields}}


def text(words: str) -> dict[str, Any]:
    """A text in a file."""
    return {"type": "text", "text": words}


def call(**fields: Any) -> dict[str, Any]:
    """A tool call in a file."""
    return {"type": "tool-call", "toolCallId": "c", "toolName": "look", "args": {}, "argsText": "{}", **fields}


def file_of(*messages: dict[str, Any], head: str | None = None) -> bytes:
    """A file with these messages."""
    return json.dumps({"headId": head or messages[-1]["message"]["id"], "messages": list(messages)}).encode()


class Importer:
    """A thread that files are imported into."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.activities = SyncActivities(store, Agents([Agent("a", model=ScriptedModel([]))]))

    @classmethod
    async def start(cls, store: MemoryStore | None = None) -> "Importer":
        """A new thread."""
        importer = cls(store or MemoryStore())
        await importer.store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
        return importer

    async def batch(self, *files: bytes, number: int = 1, digest: str = "d") -> SyncBatch:
        """A batch that imports these files: their inputs are i0, i1 and so on."""
        operations = tuple(
            [
                ImportMessages(blob=await self.store.put_blob(THREAD, data), input_id=f"i{place}", digest=digest)
                for place, data in enumerate(files)
            ]
        )
        return SyncBatch(thread_id=THREAD, number=number, sync_id=f"s{number}", operations=operations)

    async def imported(self, *files: bytes) -> SyncReport:
        """What becomes of them."""
        return await self.activities.sync(await self.batch(*files))

    async def path(self) -> tuple[Message, ...]:
        """The conversation."""
        return (await self.store.load_history_with_ancestors(THREAD)).messages


@pytest.fixture
async def importer() -> Importer:
    """An empty thread."""
    return await Importer.start()


QUESTION = listed("u", None, "user", text("hi"))
ANSWER = listed("a", "u", "assistant", text("hello"), status={"type": "complete", "reason": "stop"})


async def test_the_messages_of_a_file_become_the_conversation(importer: Importer) -> None:
    """Under ids of the thread's own; the batch itself holds none of their words."""
    batch = await importer.batch(file_of(QUESTION, ANSWER))
    assert "hello" not in batch.model_dump_json()
    report = await importer.activities.sync(batch)
    assert (report.number, report.refused, report.detail) == (1, (), None)
    assert [(message.id, message.parts) for message in await importer.path()] == [
        (ids.imported_message_id(THREAD, "u"), (TextPart(text="hi"),)),
        (ids.imported_message_id(THREAD, "a"), (TextPart(text="hello"),)),
    ]


async def test_a_batch_that_is_sent_again_says_the_same(importer: Importer) -> None:
    """A local activity runs again when its workflow task is refused: its warnings too are told again."""
    batch = await importer.batch(file_of(QUESTION, listed("lost", "nobody", "user", text("x")), head="u"))
    first = await importer.activities.sync(batch)
    assert first.detail is not None
    assert "lost" in first.detail
    assert await importer.activities.sync(batch) == first
    assert len(await importer.path()) == 1


async def test_files_in_the_file_become_blobs_of_the_thread(importer: Importer) -> None:
    """They are stored before the messages that name them."""
    image = {"type": "image", "image": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}
    await importer.imported(file_of(listed("u", None, "user", text("look"), image)))
    (message,) = await importer.path()
    (file,) = [part for part in message.parts if isinstance(part, FilePart)]
    assert (file.media_type, file.size_bytes) == ("image/png", len(PNG))
    assert await importer.store.get_blob(THREAD, file.blob) == PNG


@pytest.mark.parametrize("words", ["x" * (2 * INLINE_BYTES), "\ud800" * INLINE_BYTES])
async def test_a_large_result_is_kept_as_any_other(importer: Importer, words: str) -> None:
    """A model reads its beginning; the whole of it is in a blob. A small one stays as it is, which is the control."""
    done = {"type": "complete", "reason": "stop"}
    large = listed("a", "u", "assistant", call(result=words), call(toolCallId="d", result="small"), status=done)
    await importer.imported(file_of(QUESTION, large))
    results = [part for part in (await importer.path())[-1].parts if isinstance(part, ToolResultPart)]
    assert results[0].blob is not None
    whole = (await importer.store.get_blob(THREAD, results[0].blob)).decode("utf-8", "surrogatepass")
    assert whole.startswith(results[0].content)
    assert len(results[0].content.encode("utf-8", "surrogatepass")) <= INLINE_BYTES
    assert (len(whole), results[0].size_bytes) == (len(words), len(whole.encode("utf-8", "surrogatepass")))
    assert (results[1].content, results[1].blob) == ("small", None)


async def test_a_file_that_cannot_be_read_refuses_the_batch_and_says_why(importer: Importer) -> None:
    """Whatever else is in it; nothing is written, and a thread with messages does not become an empty one."""
    await importer.imported(file_of(QUESTION, ANSWER))
    batch = await importer.batch(file_of(QUESTION), b"{", number=2, digest="e")
    batch = batch.with_(operations=tuple(one.with_(input_id=f"n{i}") for i, one in enumerate(batch.operations)))
    report = await importer.activities.sync(batch)
    assert report.number == 1
    (refused,) = report.refused
    assert (refused.input_id, refused.conflict, refused.missing) == ("n1", False, False)
    assert "it is not JSON" in (refused.detail or "")
    assert len(await importer.path()) == 2
    assert (await importer.store.get_thread(THREAD)).version == 1


async def test_a_file_that_is_not_stored_refuses_the_batch(importer: Importer) -> None:
    """The store must not see an import of nothing: that empties the thread."""
    await importer.imported(file_of(QUESTION, ANSWER))
    operation = ImportMessages(blob="0" * 64, input_id="n", digest="d")
    batch = SyncBatch(thread_id=THREAD, number=2, sync_id="s2", operations=(operation,))
    assert await importer.activities.sync(batch) == SyncReport(number=1, refused=(Refused(input_id="n", missing=True),))
    assert len(await importer.path()) == 2


async def test_an_import_is_known_after_its_file_is_gone(importer: Importer) -> None:
    """Sent again long after: a duplicate, or a conflict if it is another file's; not a file that is missing."""
    batch = await importer.batch(file_of(QUESTION, ANSWER))
    await importer.activities.sync(batch)
    (operation,) = batch.operations
    for digest, conflict in (("d", False), ("e", True)):
        gone = operation.with_(blob="0" * 64, digest=digest)
        again = SyncBatch(thread_id=THREAD, number=2, sync_id="s2", operations=(gone,))
        report = await importer.activities.sync(again)
        assert report == SyncReport(number=1, refused=(Refused(input_id="i0", conflict=conflict),))


async def test_a_batch_that_is_written_is_known_after_its_file_is_gone(importer: Importer) -> None:
    """The reply was lost, and the next batch has removed the file: the store still answers for what it wrote last."""
    batch = await importer.batch(file_of(QUESTION, ANSWER))
    first = await importer.activities.sync(batch)
    gone = batch.with_(operations=tuple(one.with_(blob="0" * 64) for one in batch.operations))
    assert await importer.activities.sync(gone) == first
    assert len(await importer.path()) == 2


async def test_what_the_tree_does_not_allow_is_the_stores_to_refuse(importer: Importer) -> None:
    """An id that is there with another role."""
    await importer.imported(file_of(QUESTION, ANSWER))
    (question, _) = await importer.path()
    other = file_of(listed(question.id, None, "assistant", text("x")))
    batch = (await importer.batch(other, number=2)).operations[0].with_(input_id="n")
    report = await importer.activities.sync(SyncBatch(thread_id=THREAD, number=2, sync_id="s2", operations=(batch,)))
    (refused,) = report.refused
    assert "cannot become 'assistant'" in (refused.detail or "")


PAUSED = {"type": "requires-action", "reason": "tool-calls"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([call(toolCallId=f"c{n}") for n in range(import_file.OPEN_CALLS + 1)], "has 101 open calls, and at most 100"),
        ([call(approval={"id": "c", "display": "questions"})], "The approval of call 'c' cannot be imported"),
        (
            [call(approval={"id": "c", "options": [{"id": f"{n:0200}", "kind": "allow-once"} for n in range(99)]})],
            "at most 8,000 characters",
        ),
    ],
)
async def test_a_turn_that_no_thread_could_be_loaded_with_is_refused(
    importer: Importer, content: list[dict[str, Any]], sentence: str
) -> None:
    """Temporal refuses answers above 2 MB for ever, so such a thread would be lost."""
    report = await importer.imported(file_of(QUESTION, listed("a", "u", "assistant", *content, status=PAUSED)))
    (refused,) = report.refused
    assert sentence in (refused.detail or "")


async def test_a_turn_that_waits_for_people_can_be_loaded(importer: Importer) -> None:
    """The control: as many open calls and as large a question as may be, and a status that says a lot."""
    options = [{"id": f"{n:0100}", "kind": "allow-once"} for n in range(40)]
    calls = [call(toolCallId=f"c{n}", approval={"id": f"c{n}", "options": options}) for n in range(100)]
    await importer.imported(file_of(QUESTION, listed("a", "u", "assistant", *calls, status=PAUSED)))
    loaded = await importer.activities.load(LoadRequest(thread_id=THREAD))
    assert len(loaded.tail.calls) == 100
    assert len(loaded.model_dump_json(exclude_defaults=True)) < 1_000_000


async def test_what_a_status_says_does_not_travel_whole(importer: Importer) -> None:
    """It is clipped as ours are."""
    await importer.imported(file_of(QUESTION, ANSWER))
    (_, answer) = await importer.path()

    class Saying(MemoryStore):
        async def load_tail(self, thread_id: str, processed: int = 200) -> Any:
            tail = await importer.store.load_tail(thread_id, processed)
            status = Status(state="incomplete", reason="error", detail="x" * 3_000_000)
            return tail.with_(message=answer.with_(status=status), last=status)

    activities = SyncActivities(Saying(), Agents([Agent("a", model=ScriptedModel([]))]))
    assert len((await activities.load(LoadRequest(thread_id=THREAD))).model_dump_json()) < 10_000


async def test_a_store_that_is_away_is_asked_again() -> None:
    """The control: that is no fault of the file's."""

    class Away(MemoryStore):
        async def get_blob(self, thread_id: str, blob: str) -> bytes:
            raise StoreUnavailable("The database cannot be reached.")

    importer = await Importer.start(Away())
    with pytest.raises(ApplicationError) as failure:
        await importer.imported(file_of(QUESTION))
    assert (failure.value.type, failure.value.non_retryable) == (ErrorType.STORE, False)
