"""Conversations as people rearrange them: what the client sends for it, and what it makes of the answers."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.batch import AppendMessage
from perdure.branches import Imported, ThreadBranches
from perdure.codec import dumps
from perdure.contract import TreeChanged
from perdure.errors import ThreadClosed, ThreadNotFound, UsageError
from perdure.inputs import INLINE_BYTES, ROOT, Disposition
from perdure.large_text import MISSING
from perdure.messages import FilePart, Message, TextPart
from stores.memory import MemoryStore
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

CHANGED = TreeChanged(head_id="h")


class Fixture:
    """A thread u1 a1 with another branch u2 a2, which is shown, and what the client sends of it."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.calls = RecordedCalls(answers={"change_tree": CHANGED, "regenerate": CHANGED.with_(message_id="a3")})
        self.client = ThreadBranches(talk.store, self.calls, timedelta(seconds=1))

    async def ask(self, method: str, *arguments: Any, **options: Any) -> TreeChanged:
        """Call a method of the client, by its name, with the thread and what else is said."""
        changed = await getattr(self.client, method)(THREAD, *arguments, **options)
        assert isinstance(changed, TreeChanged)
        return changed


@pytest.fixture
async def branches() -> Fixture:
    """The thread and its client."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("one")
    await talk.commit((TextPart(text="first"),))
    await talk.say("two", beside="u1")
    await talk.commit((TextPart(text="second"),))
    return Fixture(talk)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "sent"),
    [
        ("switch_branch", ["u1"], {}, {"action": "switch", "message_id": "u1"}),
        ("delete_message", ["u1"], {}, {"action": "delete", "message_id": "u1"}),
        (
            "delete_message",
            ["u1"],
            {"replacement_id": ROOT},
            {"action": "delete", "message_id": "u1", "replacement_id": ROOT},
        ),
        ("reset", ["u1"], {}, {"action": "reset", "message_id": "u1"}),
        ("reset", [], {}, {"action": "reset", "message_id": ROOT}),
        (
            "annotate",
            ["a1", {"color": "red", "old": None}],
            {},
            {"action": "annotate", "message_id": "a1", "metadata": {"color": "red", "old": None}},
        ),
        (
            "feedback",
            ["a1", "positive", "nice"],
            {},
            {
                "action": "annotate",
                "message_id": "a1",
                "metadata": {"feedback": {"value": "positive", "comment": "nice"}},
            },
        ),
        (
            "feedback",
            ["a1", 0],
            {},
            {"action": "annotate", "message_id": "a1", "metadata": {"feedback": {"value": 0}}},
        ),
        (
            "feedback",
            ["a1", None],
            {},
            {"action": "annotate", "message_id": "a1", "metadata": {"feedback": None}},
        ),
    ],
)
async def test_changes_of_the_tree_go_through_the_thread(
    branches: Fixture, method: str, arguments: list[Any], options: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Each is one update, which wakes a thread that is asleep; the thread's answer is handed on."""
    assert await branches.ask(method, *arguments, **options) == CHANGED
    assert branches.calls.last() == ("change_tree", sent)
    assert len(branches.calls.starts) == 1


async def test_another_answer_is_asked_for_by_an_update_of_its_own(branches: Fixture) -> None:
    """The new message is named, so that it can be waited for."""
    assert (await branches.client.regenerate(THREAD, "a2")).message_id == "a3"
    assert branches.calls.last() == ("regenerate", {"message_id": "a2"})


async def test_the_answer_to_a_repeated_request_is_named_if_it_is_there(branches: Fixture) -> None:
    """A reply may be lost: whoever asks again under the same id has something to wait for all the same."""
    branches.calls.answers["regenerate"] = CHANGED.with_(disposition="duplicate")
    assert (await branches.client.regenerate(THREAD, "a2", id="r1")).message_id is None, "nothing says which it is"
    again = Message(id="a9", thread_id=THREAD, role="assistant", turn=9, input_id="r1")
    await branches.talk.sync(AppendMessage(message=again, answering="u2", input_id="r1"))
    assert (await branches.client.regenerate(THREAD, "a2", id="r1")).message_id == "a9"


async def test_a_repetition_is_known_by_its_id(branches: Fixture) -> None:
    """The same request under one id is the same to the thread; without an id it is another one each time."""
    for id in ("r1", "r1", None, None):
        await branches.client.switch_branch(THREAD, "u1", id=id)
    contents = [content for _, content in branches.calls.sent]
    assert contents[0] == contents[1]
    assert (contents[0].id, contents[0].digest) == ("r1", contents[2].digest)
    assert len({content.id for content in contents}) == 3


@pytest.mark.parametrize("disposition", ["conflict", "dropped", "refused"])
async def test_what_was_not_done_is_an_error(branches: Fixture, disposition: Disposition) -> None:
    """Nobody has to look at the answer for that; a duplicate has been done, and is none."""
    branches.calls.answers["change_tree"] = CHANGED.with_(disposition=disposition)
    with pytest.raises(UsageError, match=disposition):
        await branches.client.switch_branch(THREAD, "u1")
    branches.calls.answers["change_tree"] = CHANGED.with_(disposition="duplicate")
    assert (await branches.client.switch_branch(THREAD, "u1")).disposition == "duplicate"


async def test_refusals_are_told_in_the_threads_words(branches: Fixture) -> None:
    """As the workflow gives them."""
    branches.calls.answers["change_tree"] = UsageError("There is no message 'x' in this thread.")
    with pytest.raises(UsageError, match="There is no message 'x' in this thread"):
        await branches.client.delete_message(THREAD, "x")


async def test_a_thread_that_takes_nothing_is_told(branches: Fixture) -> None:
    """One that never was is not started, and one that closes while it is asked says the same as a closed one."""
    client = branches.client
    with pytest.raises(ThreadNotFound):
        await client.switch_branch("nope", "u1")
    branches.calls.answers["change_tree"] = CHANGED.with_(disposition="rejected")
    with pytest.raises(ThreadClosed):
        await client.switch_branch(THREAD, "u1")
    await branches.talk.store.close_thread(THREAD)
    branches.calls.sent.clear()
    for refused in (
        client.switch_branch(THREAD, "u1"),
        client.regenerate(THREAD, "a1"),
        client.import_thread(THREAD, {}),
    ):
        with pytest.raises(ThreadClosed):
            await refused
    assert branches.calls.sent == []


@pytest.mark.parametrize(
    ("method", "arguments", "options", "reason"),
    [
        ("switch_branch", [""], {}, "message_id"),
        ("regenerate", ["a\nb"], {}, "message_id"),
        ("switch_branch", ["u1"], {"id": "x" * 201}, "the id"),
        ("delete_message", ["u1"], {"replacement_id": "\x00"}, "replacement_id"),
        ("annotate", ["u1", {"x": {1, 2}}], {}, "JSON object"),
        ("annotate", ["u1", {"x": float("nan")}], {}, "JSON object"),
        ("annotate", ["u1", {"x": "y" * INLINE_BYTES}], {}, "32,768 bytes"),
        ("feedback", ["u1", 1, "y" * INLINE_BYTES], {}, "32,768 bytes"),
    ],
)
async def test_what_cannot_be_sent_is_refused_here(
    branches: Fixture, method: str, arguments: list[Any], options: dict[str, Any], reason: str
) -> None:
    """With a sentence that names what is wrong, and nothing is sent."""
    with pytest.raises(UsageError, match=reason):
        await branches.ask(method, *arguments, **options)
    assert branches.calls.sent == []


async def test_an_export_holds_all_branches_and_what_is_in_blobs(branches: Fixture) -> None:
    """Large words and files are inside; it is read from the store alone."""
    store = branches.talk.store
    large = "word " * 20_000
    words, image = (
        await store.put_blob(THREAD, large.encode()),
        await store.put_blob(THREAD, b"\x89PNG\xff", "image/png"),
    )
    await branches.talk.say("three")
    await branches.talk.commit((TextPart(blob=words), FilePart(media_type="image/png", blob=image, size_bytes=5)))
    export = await branches.client.export_thread(THREAD)
    contents = {item["message"]["id"]: item["message"]["content"] for item in export["messages"]}
    assert export["headId"] == "a3"
    assert export["perdure"] == {"agent": (await store.get_thread(THREAD)).agent}
    assert contents.keys() == {"u1", "a1", "u2", "a2", "u3", "a3"}
    assert contents["a3"][0]["text"] == large
    assert contents["a3"][1]["image"].startswith("data:image/png;base64,")
    assert branches.calls.sent == []
    with pytest.raises(ThreadNotFound):
        await branches.client.export_thread("nope")


async def test_an_export_says_which_content_is_missing(branches: Fixture) -> None:
    """A blob that was named and never stored does not keep the rest of a conversation from being carried away."""
    await branches.talk.say("three")
    await branches.talk.commit((TextPart(blob="0" * 64),))
    assert MISSING in dumps(await branches.client.export_thread(THREAD))


async def test_an_import_is_stored_first_and_sent_as_a_reference(branches: Fixture) -> None:
    """The same export under the same id is the same request; what is left out of it is said."""
    export = await branches.client.export_thread(THREAD)
    orphan: dict[str, Any] = {"parentId": "gone", "message": {"id": "o", "role": "user", "content": []}}
    export["messages"].append(orphan)
    store = branches.talk.store
    imported = await branches.client.import_thread(THREAD, export, id="i1")
    assert isinstance(imported, Imported)
    assert (imported.head_id, imported.disposition) == ("h", "changed")
    assert len(imported.warnings) == 1
    name, sent = branches.calls.last()
    assert (name, sent["action"]) == ("change_tree", "import")
    stored = await store.get_blob(THREAD, sent["blob"])
    assert (await branches.client.import_thread(THREAD, stored, id="i1")).warnings == imported.warnings
    assert (await branches.client.import_thread(THREAD, stored.decode(), id="i1")).warnings == imported.warnings
    assert branches.calls.sent[0] == branches.calls.sent[1] == branches.calls.sent[2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "messages is missing"),
        ({"messages": [{"parentId": None, "message": {"role": "user"}}]}, "cannot be imported"),
        ({"messages": {1, 2}}, "JSON object"),
        (b"{", "The file cannot be imported: it is not JSON"),
        (b"garbage", "The file cannot be imported: it is not JSON"),
        ("garbage", "The file cannot be imported: it is not JSON"),
        ("\ud800", "The file cannot be imported: it is not"),
        ([], "An export is a JSON object"),
        (None, "An export is a JSON object"),
        ({1: 2}, "An export is a JSON object"),
    ],
)
async def test_a_bad_export_is_refused_before_anything_is_sent(branches: Fixture, data: Any, reason: str) -> None:
    """The sentence says what is wrong and where."""
    with pytest.raises(UsageError, match=reason):
        await branches.client.import_thread(THREAD, data)
    assert branches.calls.sent == []
