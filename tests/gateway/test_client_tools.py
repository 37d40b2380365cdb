"""Results of the user's side that come as HTTP requests, from whoever was given the call's URL."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure.dev.temporal_server import TemporalServer
from perdure.errors import CallNotOpen, ThreadClosed
from stores.postgres import PostgresStore
from tests.gateway.asking import Asking, results


@pytest.fixture
async def asking(
    temporal: Client, temporal_server: TemporalServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Asking]:
    """A stack whose agent asks one question, with the settings that find it and its gateway."""
    async with await PostgresStore.connect(database_url) as store, Asking(temporal, store) as asking:
        monkeypatch.setenv("PERDURE_GATEWAY_URL", asking.served.base)
        monkeypatch.setenv("PERDURE_DATABASE_URL", database_url)
        monkeypatch.setenv("PERDURE_TASK_QUEUE", asking.stack.settings.task_queue)
        monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
        yield asking


async def perdure(*arguments: str) -> tuple[int | None, str]:
    """A command: exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure", *arguments),
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_whoever_has_the_url_gives_the_result(asking: Asking, thread: str) -> None:
    """What the client hands out takes the result of that call as JSON over HTTP, and the turn goes on with it."""
    client, http = asking.stack.client, asking.served.http
    message_id, (call_id,) = await asking.begin(thread)
    url = await client.callback_url(thread, call_id)
    assert url == await client.callback_url(thread, call_id) == await asking.served.url(thread, call_id)
    body = {"type": "tool_result", "group_id": thread, "id": call_id, "text": "blue"}
    assert (await http.post(url, json=body | {"id": "another"})).status_code == 403
    answer = await http.post(url, json=body)
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert results(await client.wait_settled(thread, message_id)) == ["blue"]


async def test_a_browser_on_any_site_may_post_and_read_the_answer(asking: Asking, thread: str) -> None:
    """What browsers ask first is allowed, answers may be read, refusals too; other addresses of the gateway stay shut.

    No cookie or login lets a request in, only the URL, so it gives nothing to a page that does not have that.
    """
    http, origin = asking.served.http, {"Origin": "https://shop.example.com"}
    message_id, (call_id,) = await asking.begin(thread)
    url = await asking.stack.client.callback_url(thread, call_id)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    first = await http.options(url, headers=origin | asked)
    assert first.status_code == 204
    allowed = {name: first.headers[f"Access-Control-Allow-{name}"] for name in ("Origin", "Methods", "Headers")}
    assert allowed == {"Origin": "*", "Methods": "POST", "Headers": "*"}
    body = {"type": "tool_result", "group_id": thread, "id": call_id, "text": "blue"}
    refused = await http.post(url, json=body | {"id": "another"}, headers=origin)
    taken = await http.post(url, json=body, headers=origin)
    for answer, status in ((refused, 403), (taken, 200)):
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, "*")
        assert "Access-Control-Allow-Credentials" not in answer.headers
    assert results(await asking.stack.client.wait_settled(thread, message_id)) == ["blue"]
    health = await http.get(f"{asking.served.base}/health", headers=origin)
    assert "Access-Control-Allow-Origin" not in health.headers


async def test_a_url_is_handed_out_for_calls_that_wait(asking: Asking, thread: str) -> None:
    """Not for one that has its result, nor for one that never was; a closed thread says that it is closed."""
    client = asking.stack.client
    message_id, (call_id,) = await asking.begin(thread)
    with pytest.raises(CallNotOpen):
        await client.callback_url(thread, "call_x")
    await client.tool_result(thread, call_id, "blue")
    await client.wait_settled(thread, message_id)
    with pytest.raises(CallNotOpen):
        await client.callback_url(thread, call_id)
    await client.close_thread(thread)
    with pytest.raises(ThreadClosed):
        await client.callback_url(thread, call_id)


async def test_the_gateway_may_be_named(asking: Asking, thread: str) -> None:
    """A program that knows where the gateway is need not have that among its settings."""
    _, (call_id,) = await asking.begin(thread)
    url = await asking.stack.client.callback_url(thread, call_id, gateway_url="https://agents.example.com/a/")
    here = await asking.stack.client.callback_url(thread, call_id)
    assert url == here.replace(asking.served.base, "https://agents.example.com/a")


@pytest.mark.slow
async def test_the_command_prints_the_url(asking: Asking, thread: str) -> None:
    """`--url` prints it and nothing else, for the beginning of the call's id too; with a result it is refused."""
    _, (call_id,) = await asking.begin(thread)
    url = await asking.stack.client.callback_url(thread, call_id)
    assert await perdure("result", thread, call_id[:-1], "--url") == (0, f"{url}\n")
    assert await perdure("result", thread, call_id, "blue", "--url") == (
        2,
        "perdure: Give a result or --url, not both.\n",
    )
    assert await perdure("result", thread, call_id) == (
        2,
        "perdure: Give a result, or --url for where to post it.\n",
    )
    token = url.rsplit("/", 1)[1]
    assert token not in (await perdure("status", thread))[1]
