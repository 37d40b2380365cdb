"""Bodies that come packed, and URLs as servers write them."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.bodies import is_untouched, result
from tests.gateway.served import LIMIT, Served
from tests.gateway.waiting import WaitingThread

GZIP = {"Content-Encoding": "gzip"}


def packed(waiting: WaitingThread, **fields: Any) -> bytes:
    """A result of the first call, as gzip."""
    return gzip.compress(json.dumps(result(waiting, **fields)).encode())


async def texts(served: Served, waiting: WaitingThread) -> list[str]:
    """What has reached the thread."""
    return [signalled["content"] for _, signalled in await served.signals(waiting.thread_id)]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZip", "identity", ""])
async def test_a_body_may_be_packed(served: Served, waiting: WaitingThread, coding: str) -> None:
    """As gzip, under any name that this has, or not at all."""
    body = packed(waiting) if "zip" in coding.lower() else json.dumps(result(waiting)).encode()
    answer = await served.post(waiting.thread_id, waiting.calls[0], body, headers={"Content-Encoding": coding})
    assert (answer.status_code, await texts(served, waiting)) == (200, ["sunny"])


async def test_several_members_are_one_body(served: Served, waiting: WaitingThread) -> None:
    """As gzip has it; and they may come in pieces of any size."""
    body = json.dumps(result(waiting)).encode()
    whole = gzip.compress(body[:10]) + gzip.compress(b"") + gzip.compress(body[10:])

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 7):
            yield whole[at : at + 7]

    answer = await served.post(waiting.thread_id, waiting.calls[0], pieces(), headers=GZIP)
    assert (answer.status_code, await texts(served, waiting)) == (200, ["sunny"])


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip"])
async def test_what_cannot_be_unpacked_is_said(served: Served, waiting: WaitingThread, coding: str) -> None:
    """415, with the codings that can; nothing has changed."""
    answer = await served.post(
        waiting.thread_id, waiting.calls[0], packed(waiting), headers={"Content-Encoding": coding}
    )
    assert answer.status_code == 415
    assert answer.json()["error"] == f"The body is packed as {coding!r}; this gateway takes it as it is, or as gzip."
    assert await is_untouched(served, waiting)


@pytest.mark.parametrize("damage", ["cut", "no gzip", "something behind it", "wrong sum"])
async def test_what_is_no_gzip_is_refused(served: Served, waiting: WaitingThread, damage: str) -> None:
    """400 with a sentence, whatever is wrong with it; nothing has changed."""
    whole = packed(waiting)
    body = {
        "cut": whole[:-1],
        "no gzip": json.dumps(result(waiting)).encode(),
        "something behind it": whole + b"more",
        "wrong sum": whole[:-8] + bytes(8),
    }[damage]
    answer = await served.post(waiting.thread_id, waiting.calls[0], body, headers=GZIP)
    assert answer.status_code == 400
    assert answer.json()["error"] == "The body is not gzip, as its Content-Encoding says that it is."
    assert await is_untouched(served, waiting)


async def test_the_size_limit_is_that_of_what_is_unpacked(served: Served, waiting: WaitingThread) -> None:
    """One byte more is refused with 413, however small it comes; what fits exactly is taken."""
    empty = len(json.dumps(result(waiting, text="")).encode())
    above = packed(waiting, text="x" * (LIMIT - empty + 1))
    assert len(above) < LIMIT // 100
    answer = await served.post(waiting.thread_id, waiting.calls[0], above, headers=GZIP)
    assert answer.status_code == 413
    assert "above 200,000 bytes" in answer.json()["error"]
    assert await is_untouched(served, waiting)
    exact = packed(waiting, text="x" * (LIMIT - empty))
    assert (await served.post(waiting.thread_id, waiting.calls[0], exact, headers=GZIP)).status_code == 200


async def test_a_bomb_is_not_unpacked(served: Served, waiting: WaitingThread) -> None:
    """What would be 300 MB is refused when it is above the limit, and costs no more memory than that."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    zeros = bytes(1_000_000)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(300)), packer.flush()])
    assert len(bomb) > LIMIT, "it is above the limit packed, too: what of it comes first is the bomb"

    async def pieces() -> AsyncIterator[bytes]:
        yield bomb[: LIMIT // 2]

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        answer = await served.post(waiting.thread_id, waiting.calls[0], pieces(), headers=GZIP)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert answer.status_code == 413
    assert peak < 20 * LIMIT
    assert await is_untouched(served, waiting)


@pytest.mark.parametrize(("members", "status"), [(99, 200), (100, 400), (50_000, 413)])
async def test_members_without_content_are_bounded(
    served: Served, waiting: WaitingThread, members: int, status: int
) -> None:
    """They hold nothing and cost work all the same. As many as anybody has a use for are taken."""
    body = gzip.compress(b"") * members + packed(waiting)
    assert (await served.post(waiting.thread_id, waiting.calls[0], body, headers=GZIP)).status_code == status
    assert await is_untouched(served, waiting) is (status != 200)


async def test_a_slash_behind_the_url_is_no_other_url(served: Served, waiting: WaitingThread) -> None:
    """It is taken there and then, without a redirect; the token still counts, and two slashes are another path."""
    url = await served.url(waiting.thread_id, waiting.calls[0])
    wrong = await served.url(waiting.thread_id, waiting.calls[0], token="x" * 43)
    for place, status in ((f"{wrong}/", 403), (f"{url}//", 404), (f"{url}/", 200)):
        answer = await served.http.post(place, json=result(waiting), follow_redirects=False)
        assert answer.status_code == status, place
    assert await texts(served, waiting) == ["sunny"]
    assert (await served.http.get(f"{url}/")).status_code == 405
