"""How threads begin and how words are to be answered, as the client sends it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.attachments import Attachment
from perdure.contract import ThreadStart
from perdure.errors import BlobNotFound, ThreadClosed, ThreadNotFound, UsageError
from perdure.inputs import Accepted, UserMessage
from perdure.messages import FileRef, TurnOptions
from perdure.records import ThreadRecord
from perdure.words import ThreadWords
from stores.memory import MemoryStore
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

TAKEN = Accepted(message_id="m", disposition="started")


class BeginningCalls(RecordedCalls):
    """Calls to threads that are stored as soon as they are started."""

    store: MemoryStore

    async def start(self, thread_id: str, start: ThreadStart) -> None:
        """It is stored."""
        self.starts.append(start)
        record = ThreadRecord(thread_id=thread_id, agent=start.agent or "demo", title=start.title, model=start.model)
        await self.store.create_thread(record)

    async def until_loaded(self, thread_id: str) -> None:
        """It is."""


class Fixture:
    """A thread, and what the client sends to it."""

    def __init__(self, talk: Talk) -> None:
        self.store = talk.store
        self.calls = BeginningCalls(answers={"send": TAKEN})
        assert isinstance(talk.store, MemoryStore)
        self.calls.store = talk.store
        self.client = ThreadWords(talk.store, self.calls, timedelta(seconds=1))

    @property
    def sent(self) -> UserMessage:
        """The words that were sent last."""
        _, content = self.calls.sent[-1]
        assert isinstance(content, UserMessage)
        return content


@pytest.fixture
async def words() -> Fixture:
    """The thread and its client."""
    return Fixture(await Talk.begin(MemoryStore()))


@pytest.mark.parametrize("method", ["send", "post", "edit"])
async def test_words_say_how_they_are_to_be_answered(words: Fixture, method: str, tmp_path: Path) -> None:
    """By which model, with which settings, with which files; these are stored and travel as references."""
    (tmp_path / "a.txt").write_text("hello")
    how: dict[str, Any] = {"model": "openai:gpt-5", "settings": {"thinking": "high"}}
    of = ["u1"] if method == "edit" else []
    await getattr(words.client, method)(THREAD, *of, "hi", id="m1", files=[tmp_path / "a.txt"], **how)
    assert words.sent.options == TurnOptions(model="openai:gpt-5", settings={"thinking": "high"})
    (file,) = words.sent.files
    assert (file.media_type, file.name, file.size_bytes) == ("text/plain", "a.txt", 5)
    assert await words.store.get_blob(THREAD, file.blob) == b"hello"
    await getattr(words.client, method)(THREAD, *of, "hi", id="m2")
    assert "options" not in words.sent.stated(), "the control: nothing is said that was not"
    assert "files" not in words.sent.stated()
    await getattr(words.client, method)(THREAD, *of, "hi", settings={})
    assert words.sent.options == TurnOptions(settings={})


async def test_files_alone_are_a_message(words: Fixture) -> None:
    """Without any there has to be a word."""
    await words.client.send(THREAD, "", files=[Attachment(b"x", "image/png")])
    assert (words.sent.text, len(words.sent.files)) == ("", 1)
    with pytest.raises(UsageError, match="empty"):
        await words.client.send(THREAD, "")


async def test_a_new_thread_begins_before_its_first_file(words: Fixture) -> None:
    """The bytes need a thread to belong to. Words are its title; the name of a file is none, since it would stay."""
    await words.client.send("new", "look at this", files=[Attachment(b"x")])
    assert (await words.store.get_thread("new")).title == "look at this"
    assert await words.store.get_blob("new", words.sent.files[0].blob) == b"x"
    await words.client.post("wordless", "", files=[Attachment(b"x", name="secret.txt")])
    assert (await words.store.get_thread("wordless")).title is None
    assert [start.title for start in words.calls.starts] == ["look at this", "look at this", None, None]
    await words.client.post("plain", "hi")
    with pytest.raises(ThreadNotFound):
        await words.store.get_thread("plain")


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"model": ""}, UsageError, "cannot be the model"),
        ({"model": "x" * 201}, UsageError, "cannot be the model"),
        ({"settings": {"n": float("nan")}}, UsageError, "settings must be a JSON object"),
        ({"settings": {"n": "x" * 40_000}}, UsageError, "settings must be at most 32,768 bytes"),
        ({"files": ["/nowhere"]}, UsageError, "The file /nowhere cannot be read"),
        ({"files": [FileRef(media_type="a/b", blob="none")]}, BlobNotFound, "no blob 'none'"),
        ({"files": [Attachment(b"x")] * 21}, UsageError, "at most 20"),
    ],
)
async def test_what_cannot_go_along_is_refused_here(
    words: Fixture, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    """Before anything is sent."""
    for method in (words.client.send, words.client.post):
        with pytest.raises(error, match=reason):
            await method(THREAD, "hi", **options)
    assert words.calls.sent == []


async def test_a_thread_has_a_model_of_its_own(words: Fixture) -> None:
    """From its beginning, or set later; one that is there is not begun with another one."""
    assert await words.client.start("new", model="openai:gpt-5") == "new"
    assert (await words.store.get_thread("new")).model == "openai:gpt-5"
    assert await words.client.start("new", model="openai:gpt-5") == "new"
    assert await words.client.start("new") == "new", "it stays as it is"
    with pytest.raises(UsageError, match=r"is answered by 'openai:gpt-5'; `set_model` changes that"):
        await words.client.start("new", model="other")
    for model in ("other", "other", None):
        await words.client.set_model("new", model)
        assert (await words.store.get_thread("new")).model == model
    with pytest.raises(UsageError, match="has no model of its own"):
        await words.client.start("new", model="other")


async def test_a_model_that_cannot_be_set_is_said(words: Fixture) -> None:
    """A name that is none, a thread that is not there, or takes nothing more."""
    for name in ("", "x" * 201, "a\nb"):
        with pytest.raises(UsageError, match="`model` must be 1 to 200 characters"):
            await words.client.set_model(THREAD, name)
    with pytest.raises(ThreadNotFound):
        await words.client.set_model("nope", "other")
    await words.store.close_thread(THREAD)
    with pytest.raises(ThreadClosed):
        await words.client.set_model(THREAD, "other")


async def test_a_conversation_is_made_shorter_on_demand(words: Fixture) -> None:
    """The thread wakes for it; one that is not there, or is closed, has nothing to be made shorter."""
    await words.client.compact(THREAD)
    assert words.calls.last() == ("control", {"action": "compact"})
    with pytest.raises(ThreadNotFound):
        await words.client.compact("nope")
    await words.store.close_thread(THREAD)
    with pytest.raises(ThreadClosed):
        await words.client.compact(THREAD)
    assert len(words.calls.sent) == 1
