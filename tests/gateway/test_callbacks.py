"""Callbacks of tool servers: what is taken in, and what of it reaches Temporal or the store."""

import asyncio
import base64

import pytest

from perdure.codec import digest, dumps
from perdure.errors import BlobNotFound
from perdure.inbox import MAX_INPUT_BYTES
from perdure.inputs import INLINE_BYTES
from perdure.messages import ToolResultPart
from tests.gateway.bodies import counted, event, is_untouched, result
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


# -- results ---------------------------------------------------------------------------------------------------------


async def test_a_result_is_signalled_before_it_is_answered(served: Served, waiting: WaitingThread) -> None:
    """200 with `{"ok": true}`, and Temporal has the result, with the words and what tells them from an error."""
    answer = await served.post(waiting.thread_id, waiting.calls[0], result(waiting, call_id=None))
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert await served.signals(waiting.thread_id) == [
        ("tool_result", {"kind": "tool_result", "call_id": waiting.calls[0], "content": "sunny", "size_bytes": 5})
    ]


async def test_a_result_that_says_error_is_one(served: Served, waiting: WaitingThread) -> None:
    """The protocol's convention for failures becomes the outcome, and such a result opens no subscription."""
    text = "Error: no such city"
    await served.post(waiting.thread_id, waiting.calls[0], result(waiting, text=text, subscription=True))
    ((_, failed),) = await served.signals(waiting.thread_id)
    assert failed["outcome"] == "error"
    assert "subscription" not in failed
    other = result(waiting, id=waiting.calls[1], subscription=True)
    await served.post(waiting.thread_id, waiting.calls[1], other)
    _, (_, subscribed) = await served.signals(waiting.thread_id)
    assert "outcome" not in subscribed
    assert subscribed["subscription"]


async def test_images_are_stored_and_their_references_travel(served: Served, waiting: WaitingThread) -> None:
    """The texts of `content` are the words, in order; each image is a blob with its own bytes and type."""
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mediaType": "image/png"}
    odd = {**image, "mediaType": "not a type"}
    content = [{"type": "text", "text": "a cat"}, image, {"type": "text", "text": "and a dog"}, odd]
    answer = await served.post(waiting.thread_id, waiting.calls[0], result(waiting, content=content))
    assert answer.status_code == 200
    ((_, signalled),) = await served.signals(waiting.thread_id)
    assert signalled["content"] == "a cat\nand a dog"
    assert [(file["media_type"], file["size_bytes"]) for file in signalled["files"]] == [
        ("image/png", len(PNG)),
        ("application/octet-stream", len(PNG)),
    ]
    assert await served.store.get_blob(waiting.thread_id, signalled["files"][0]["blob"]) == PNG


async def test_an_image_that_is_not_base64_is_refused(served: Served, waiting: WaitingThread) -> None:
    """400 with a sentence, and nothing changes."""
    content = [{"type": "image", "data": "%%%", "mediaType": "image/png"}]
    answer = await served.post(waiting.thread_id, waiting.calls[0], result(waiting, content=content))
    assert answer.status_code == 400
    assert "base64" in answer.json()["error"]
    assert await is_untouched(served, waiting)


async def test_more_images_than_any_model_takes_are_refused(served: Served, waiting: WaitingThread) -> None:
    """413 for 101 images, whose references would not fit into a signal at some number; 100 are taken."""
    image = {"type": "image", "data": "eA==", "mediaType": "image/png"}
    many = await served.post(waiting.thread_id, waiting.calls[0], result(waiting, content=[image] * 101))
    assert many.status_code == 413
    assert await is_untouched(served, waiting)
    enough = await served.post(waiting.thread_id, waiting.calls[0], result(waiting, content=[image] * 100))
    assert enough.status_code == 200


async def test_large_words_are_stored_first(served: Served, waiting: WaitingThread) -> None:
    """Above the inline size the blob has them whole, and what the model will read of them travels."""
    words = "é" * INLINE_BYTES
    assert (await served.post(waiting.thread_id, waiting.calls[0], result(waiting, text=words))).status_code == 200
    ((_, signalled),) = await served.signals(waiting.thread_id)
    assert signalled["content"] == words[: INLINE_BYTES // 2]
    assert signalled["size_bytes"] == 2 * INLINE_BYTES
    assert (await served.store.get_blob(waiting.thread_id, signalled["blob"])).decode() == words


@pytest.mark.parametrize(("chars", "kept"), [(100, True), (INLINE_BYTES, False)])
async def test_what_people_are_shown_travels_unless_it_is_large(
    served: Served, waiting: WaitingThread, chars: int, kept: bool
) -> None:
    """Display segments go along; large ones are left out, and people see the words. The words are the same."""
    shown = [{"type": "diff", "content": {"path": "a", "patch": "x" * chars}}]
    await served.post(waiting.thread_id, waiting.calls[0], result(waiting, display_as=shown))
    ((_, signalled),) = await served.signals(waiting.thread_id)
    assert signalled["content"] == "sunny"
    assert ("display" in signalled) is kept


async def test_the_largest_result_is_one_that_a_thread_takes(served: Served, waiting: WaitingThread) -> None:
    """Words, segments and images that are all as large as can be, and all need escaping, fit into an input."""
    image = {"type": "image", "data": "eA==", "mediaType": "image/png"}
    content = [{"type": "text", "text": "\x00" * INLINE_BYTES}, *[image] * 100]
    shown = [{"type": "text", "content": '"' * (INLINE_BYTES // 4 - 100)}]
    async with Served(served.temporal, served.store, callback_bytes=1_000_000) as roomy:
        body = result(waiting, content=content, display_as=shown)
        assert (await roomy.post(waiting.thread_id, waiting.calls[0], body)).status_code == 200
        ((_, signalled),) = await roomy.signals(waiting.thread_id)
    assert len(dumps(signalled)) <= MAX_INPUT_BYTES


async def test_the_first_result_of_a_call_counts(served: Served, waiting: WaitingThread) -> None:
    """A result for a settled call is answered 200, since its server would send an error otherwise, and is dropped."""
    await waiting.settle()
    answer = await served.post(waiting.thread_id, waiting.calls[0], result(waiting))
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert await is_untouched(served, waiting)


async def test_a_result_after_one_that_waits_for_its_group_is_dropped(served: Served, waiting: WaitingThread) -> None:
    """A call whose result is stored while another call of its step runs takes no second one; the other call does."""
    staged = ToolResultPart(call_id=waiting.calls[0], content="first")
    await served.store.stage_result(waiting.thread_id, staged)
    assert (await served.post(waiting.thread_id, waiting.calls[0], result(waiting))).status_code == 200
    assert await is_untouched(served, waiting)
    assert (await served.store.get_call(waiting.thread_id, waiting.calls[0])).result == staged
    other = result(waiting, id=waiting.calls[1])
    assert (await served.post(waiting.thread_id, waiting.calls[1], other)).status_code == 200
    assert len(await served.signals(waiting.thread_id)) == 1


# -- events ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"associative": True}, {"final": True}, {"associative": True, "final": True}])
async def test_an_event_of_a_subscription_is_signalled(
    served: Served, waiting: WaitingThread, flags: dict[str, bool]
) -> None:
    """It goes to the thread with what it says about itself; unlike in the signal, associative is not the default."""
    await waiting.settle(subscribed=True)
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting, **flags))).status_code == 200
    ((name, signalled),) = await served.signals(waiting.thread_id)
    assert (name, signalled["call_id"], signalled["content"]) == ("event", waiting.calls[0], "rain")
    assert signalled.get("associative", True) is flags.get("associative", False)
    assert signalled.get("final", False) is flags.get("final", False)


async def test_an_event_may_overtake_the_confirmation(served: Served, waiting: WaitingThread) -> None:
    """While the subscribing call is open its events are taken."""
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting))).status_code == 200
    assert [name for name, _ in await served.signals(waiting.thread_id)] == ["event"]


async def test_an_event_of_a_plain_call_is_refused(served: Served, waiting: WaitingThread) -> None:
    """A call that ended without a subscription has no events: 410, nothing changes, and it is counted."""
    await waiting.settle()
    before = await counted(served, 410)
    answer = await served.post(waiting.thread_id, waiting.calls[0], event(waiting))
    assert answer.status_code == 410
    assert await is_untouched(served, waiting)
    assert await counted(served, 410) == before + 1


async def test_an_event_of_another_calls_subscription_is_refused(served: Served, waiting: WaitingThread) -> None:
    """The subscription of one call is not one of its neighbour."""
    await waiting.settle(subscribed=True)
    other = event(waiting, tool_call_id=waiting.calls[1])
    assert (await served.post(waiting.thread_id, waiting.calls[1], other)).status_code == 410
    assert await is_untouched(served, waiting)


async def test_an_event_after_the_end_is_refused(served: Served, waiting: WaitingThread) -> None:
    """After a subscription was cancelled, or sent its final event, its events are refused."""
    await waiting.settle(subscribed=True)
    await waiting.unsubscribe()
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting))).status_code == 410
    assert await is_untouched(served, waiting)


async def test_an_event_of_a_paused_subscription_is_refused(served: Served, waiting: WaitingThread) -> None:
    """410 says that a person must resume it; nothing is stored and nothing woken. The final event still ends it."""
    await waiting.settle(subscribed=True)
    await waiting.pause("too many")
    answer = await served.post(waiting.thread_id, waiting.calls[0], event(waiting, text="rain " * 10_000))
    assert answer.status_code == 410
    assert "paused until a person resumes it" in answer.json()["error"]
    assert await is_untouched(served, waiting)
    with pytest.raises(BlobNotFound):
        await served.store.get_blob(waiting.thread_id, digest("rain " * 10_000))
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting, final=True))).status_code == 200
    ((name, signalled),) = await served.signals(waiting.thread_id)
    assert (name, signalled["final"]) == ("event", True)


async def test_an_event_of_a_resumed_subscription_is_signalled(served: Served, waiting: WaitingThread) -> None:
    """The pause ends with its row; a paused subscription of another call holds nothing up."""
    await waiting.settle(subscribed=True)
    await waiting.pause("too many")
    await waiting.pause(None)
    await waiting.pause("too many", call=1)
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting))).status_code == 200
    assert [name for name, _ in await served.signals(waiting.thread_id)] == ["event"]


async def test_large_events_are_stored_first(served: Served, waiting: WaitingThread) -> None:
    """Above the inline size the blob has the words, and a beginning of them travels with their digest."""
    words = "rain " * 10_000
    assert (await served.post(waiting.thread_id, waiting.calls[0], event(waiting, text=words))).status_code == 200
    ((_, signalled),) = await served.signals(waiting.thread_id)
    assert len(signalled["content"]) < 100
    assert signalled["sha256"] == signalled["blob"]
    assert (await served.store.get_blob(waiting.thread_id, signalled["blob"])).decode() == words


async def test_equal_events_are_two(served: Served, waiting: WaitingThread) -> None:
    """The protocol gives events no identity, so the same words twice happened twice."""
    for _ in range(2):
        await served.post(waiting.thread_id, waiting.calls[0], event(waiting))
    first, second = [signalled["id"] for _, signalled in await served.signals(waiting.thread_id)]
    assert first != second


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Request-Id"])
async def test_a_request_id_makes_a_repeated_event_one(served: Served, waiting: WaitingThread, header: str) -> None:
    """The same id of a server is the same event, another id or the same one of another call is another event."""
    for call_id, key in [(0, "1"), (0, "1"), (0, "2"), (1, "1"), (0, "k" * 5000)]:
        body = event(waiting, tool_call_id=waiting.calls[call_id])
        answer = await served.post(waiting.thread_id, waiting.calls[call_id], body, headers={header: key})
        assert answer.status_code == 200
    one, again, two, other, long = [signalled["id"] for _, signalled in await served.signals(waiting.thread_id)]
    assert one == again
    assert len({one, two, other, long}) == 4
    assert len(long) < 200


async def test_what_a_chain_of_requests_shares_is_no_identity(served: Served, waiting: WaitingThread) -> None:
    """Proxies hand an `X-Request-Id` on, so different events may have the same one; equal ones are a repetition."""
    for text in ("rain", "snow", "rain"):
        body = event(waiting, text=text)
        headers = {"X-Request-Id": "1"}
        answer = await served.post(waiting.thread_id, waiting.calls[0], body, headers=headers)
        assert answer.status_code == 200
    rain, snow, again = [signalled["id"] for _, signalled in await served.signals(waiting.thread_id)]
    assert rain != snow
    assert rain == again


# -- many at once ----------------------------------------------------------------------------------------------------


async def test_events_sent_one_after_the_other_keep_their_order(served: Served, waiting: WaitingThread) -> None:
    """An answered event is before all that are sent after its answer."""
    for number in range(30):
        await served.post(waiting.thread_id, waiting.calls[0], event(waiting, text=str(number)))
    signals = await served.signals(waiting.thread_id)
    assert [signalled["content"] for _, signalled in signals] == [str(number) for number in range(30)]


async def test_many_callbacks_at_once_are_all_taken(served: Served, waiting: WaitingThread) -> None:
    """Two hundred at once, more than are worked on at once: each gets its 200 and its signal."""
    answers = await asyncio.gather(
        *(served.post(waiting.thread_id, waiting.calls[0], event(waiting, text=str(number))) for number in range(200))
    )
    assert {answer.status_code for answer in answers} == {200}
    signals = await served.signals(waiting.thread_id)
    assert sorted(int(signalled["content"]) for _, signalled in signals) == list(range(200))
