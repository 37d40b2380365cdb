"""Callbacks of tool servers that are forged, belong to nothing, or cannot be read: they change nothing."""

import secrets
from typing import Any

import pytest

from perdure.ports import Store
from perdure.rap.token import callback_token
from tests.gateway.bodies import KINDS, is_untouched, result, view
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread

# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_forged_callback_changes_nothing(
    served: Served, store: Store, waiting: WaitingThread, kind: Any
) -> None:
    """The token of another call or thread, a changed one, none, and one of a former key are refused; its own works."""
    key = await store.get_key("callbacks")
    other = await WaitingThread.stored(store, f"{waiting.thread_id}-other")
    right = callback_token(key, waiting.thread_id, waiting.calls[0])
    forged = [
        callback_token(key, waiting.thread_id, waiting.calls[1]),
        callback_token(key, other.thread_id, other.calls[0]),
        callback_token(key, other.thread_id, waiting.calls[0]),
        callback_token(secrets.token_bytes(32), waiting.thread_id, waiting.calls[0]),
        right[:-1],
        right[:-1] + ("A" if right[-1] != "A" else "B"),
        right.swapcase(),
        "é",
    ]
    for token in forged:
        answer = await served.post(waiting.thread_id, waiting.calls[0], kind(waiting), token=token)
        assert answer.status_code == 403
        assert await is_untouched(served, waiting)
    assert (await served.post(waiting.thread_id, waiting.calls[0], kind(waiting))).status_code == 200
    assert not await is_untouched(served, waiting)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_callback_speaks_for_its_own_call_only(
    served: Served, store: Store, waiting: WaitingThread, kind: Any
) -> None:
    """With a right URL, a body that names another thread or call is refused, and neither of the two changes."""
    other = await WaitingThread.stored(store, f"{waiting.thread_id}-other")
    bodies = [kind(waiting, group_id=other.thread_id)]
    if kind is not view:  # it names no call
        bodies += [kind(waiting, id=waiting.calls[1], tool_call_id=waiting.calls[1]), kind(other)]
    for body in bodies:
        answer = await served.post(waiting.thread_id, waiting.calls[0], body)
        assert answer.status_code == 403
    assert await is_untouched(served, waiting)
    assert await is_untouched(served, other)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thread_that_is_not_stored_is_not_made(served: Served, thread: str, kind: Any) -> None:
    """404 although the token is right: a callback never begins a thread."""
    gone = WaitingThread(served.store, thread, calls=1)
    assert (await served.post(thread, gone.calls[0], kind(gone))).status_code == 404
    assert await served.signals(thread) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_thread_takes_nothing(served: Served, waiting: WaitingThread, kind: Any) -> None:
    """410 with a sentence that says so, whatever it is, and the thread is not woken."""
    await waiting.close()
    answer = await served.post(waiting.thread_id, waiting.calls[0], kind(waiting))
    assert answer.status_code == 410
    assert "closed" in answer.json()["error"]
    assert await is_untouched(served, waiting)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'"text"', "JSON object"),
        (b'{"type": "tool_result"}', "`group_id` is missing"),
        (b'{"group_id": "t", "id": "c"}', "`type`"),
        (b'{"type": "greeting", "group_id": "t"}', "greeting"),
        (b"[" * 100_000, "not JSON"),
        (b'{"type": "tool_result", "group_id": 1, "id": "c"}', "`group_id`"),
        (b"\xff\xfe", "not JSON"),
    ],
)
async def test_what_cannot_be_read_is_refused_in_one_sentence(
    served: Served, waiting: WaitingThread, body: bytes, said: str
) -> None:
    """400 and a sentence for whoever wrote the tool server; nothing changes."""
    answer = await served.post(waiting.thread_id, waiting.calls[0], body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert await is_untouched(served, waiting)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_only_post_is_taken(served: Served, waiting: WaitingThread, method: str) -> None:
    """Another method gets 405, which names the right one, in JSON."""
    url = await served.url(waiting.thread_id, waiting.calls[0])
    answer = await served.http.request(method, url, content=b"{}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "method" in answer.json()["error"]


async def test_an_unknown_path_is_not_found(served: Served) -> None:
    """404 in JSON, like every other error."""
    answer = await served.http.post(f"{served.base}/callback")
    assert (answer.status_code, answer.json()) == (404, {"error": "There is nothing at this path."})


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "a b?c#d", "é漢🐈", "../x", "a//b/"])
async def test_any_thread_id_works_in_a_path(served: Served, thread: str, name: str) -> None:
    """A thread's id is whatever people chose; its callbacks reach it and no other thread."""
    waiting = await WaitingThread.stored(served.store, f"{thread}-{name}")
    answer = await served.post(waiting.thread_id, waiting.calls[0], result(waiting))
    assert answer.status_code == 200, answer.text
    assert len(await served.signals(waiting.thread_id)) == 1
