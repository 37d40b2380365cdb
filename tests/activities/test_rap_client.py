"""Calls of RAP servers over HTTP: what is sent, how often, and what comes of what goes wrong."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from activities import rap_client
from activities.rap_client import UNCERTAIN
from activities.tool_output import Pending, ToolOutput
from perdure.contract import DispatchRequest
from perdure.errors import StoreUnavailable
from perdure.rap.token import CALLBACK_KEY, verify
from perdure.records import OpenCall, ThreadRecord
from perdure.tools import Tool
from stores.memory import MemoryStore
from tests.activities.rap_calls import DELAYS_S, GATEWAY, calling
from tests.eventually import eventually
from tests.fakes.rap_server import Answer, FakeRapServer, FakeTool
from tests.fakes.rap_tools import get_time

TRIES = len(DELAYS_S) + 1
PLAIN = FakeTool("plain")
SAFE = FakeTool("safe", annotations={"idempotent": True})
SOON = timedelta(seconds=0.2)
MAYBE = Pending(UNCERTAIN.total_seconds())


async def test_a_call_is_the_message_of_the_protocol() -> None:
    """Of a root thread without a user: no ancestors, and no user at all. Numbers are exact."""
    async with FakeRapServer(get_time(), path="/invoke") as server, calling(server) as caller:
        arguments = '{"timezone":"Europe/London","n":12345678901234567890123}'
        assert await caller.call(caller.tool(), arguments) == Pending()
        (request,) = server.received("/invoke")
        assert request.method == "POST"
        assert request.headers["content-type"] == "application/json"
        body = request.json
        callback_url = body.pop("callback_url")
        assert body == {
            "operation": "get_time",
            "arguments": {"timezone": "Europe/London", "n": 12345678901234567890123},
            "id": "call_1",
            "call_id": None,
            "group_id": "root",
            "thread_ancestors": None,
        }
        before, token = callback_url.rsplit("/", 1)
        assert before == f"{GATEWAY}/callbacks/root/call_1"
        assert verify(await caller.store.get_key(CALLBACK_KEY), "root", "call_1", token)


async def test_a_child_names_its_ancestors_and_the_user_of_the_root() -> None:
    """Root first, itself excluded; what a child's own metadata says of a user does not count."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        await caller.store.set_metadata("root", {"user_id": "user_42"})
        await caller.store.set_metadata("grandchild", {"user_id": "somebody"})
        await caller.call(caller.tool(), thread_id="grandchild")
        body = (await server.invoked()).body
        assert (body["group_id"], body["thread_ancestors"]) == ("grandchild", ["root", "child"])
        assert body["user_id"] == "user_42"


@pytest.mark.parametrize("user", [None, "", 42, ["x"]])
async def test_a_user_that_is_no_text_is_left_out(user: object) -> None:
    """Absent is what the protocol has for unknown."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        await caller.store.set_metadata("root", {"user_id": user})
        await caller.call(caller.tool())
        assert "user_id" not in (await server.invoked()).body


async def test_who_calls_is_read_once() -> None:
    """What a root's metadata hold besides its user may be large, and neither user nor ancestors ever change."""

    class Counting(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.read: list[str] = []

        async def get_metadata(self, thread_id: str) -> dict[str, Any]:
            self.read.append(thread_id)
            return await super().get_metadata(thread_id)

    store = Counting()
    async with FakeRapServer(PLAIN) as server, calling(server, store=store) as caller:
        await store.create_thread(ThreadRecord(thread_id="other", agent="a"))
        await store.set_metadata("root", {"user_id": "user_42"})
        for thread_id in ("grandchild", "child", "root", "other") * 2:
            await caller.call(caller.tool(), thread_id=thread_id)
        told = [(one.group_id, one.body["thread_ancestors"], one.body.get("user_id")) for one in server.invocations]
        assert told == 2 * [
            ("grandchild", ["root", "child"], "user_42"),
            ("child", ["root"], "user_42"),
            ("root", None, "user_42"),
            ("other", None, None),
        ]
        assert store.read == ["root", "other"]


async def test_a_thread_with_any_id_gets_its_callbacks() -> None:
    """An id with a slash is quoted in the URL and goes as it is into the message."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        await caller.store.create_thread(ThreadRecord(thread_id="a/b ü", agent="a"))
        await caller.call(caller.tool(), thread_id="a/b ü")
        invocation = await server.invoked()
        assert invocation.group_id == "a/b ü"
        assert invocation.callback_url.startswith(f"{GATEWAY}/callbacks/a%2Fb%20%C3%BC/call_1/")


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_any_2xx_acknowledges(status: int) -> None:
    """Whatever its body; the call then waits as long as the toolset says, which may be for ever."""
    body = b"" if status == 204 else b"\xff" * 100_000
    async with FakeRapServer(PLAIN) as server, calling(server, expires=timedelta(hours=2)) as caller:
        server.script("/", Answer(status=status, body=body))
        assert await caller.call(caller.tool()) == Pending(7200.0)
        assert len(server.invocations) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422, 429])
async def test_a_refused_call_is_an_error_and_not_sent_again(status: int) -> None:
    """It names the operation and the status; the endpoint, which may be secret, is not the model's to know."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        server.script("/", Answer(status=status, body=b"at http://internal/secret"))
        output = await caller.call(caller.tool())
        assert output == ToolOutput(f"The call of plain was refused with HTTP status {status}.", "error")
        assert len(server.received("/")) == 1


async def test_a_server_that_fails_for_a_while_is_asked_again() -> None:
    """With the same id, so that it can tell."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        server.script("/", Answer(status=500), Answer(status=503))
        assert await caller.call(caller.tool()) == Pending()
        requests = server.received("/")
        assert len(requests) == 3
        assert len({request.body for request in requests}) == 1
        assert len(server.invocations) == 1


async def test_a_server_that_goes_on_failing_makes_an_error() -> None:
    """After so many tries nobody expects a callback any more."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        server.script("/", *[Answer(status=502)] * TRIES)
        output = await caller.call(caller.tool())
        assert isinstance(output, ToolOutput)
        assert (output.outcome, "plain failed with HTTP status 502" in output.content) == ("error", True)
        assert len(server.received("/")) == TRIES


async def test_a_server_that_is_away_is_asked_until_it_is_back() -> None:
    """Nothing has reached it, so any call may be sent again."""
    async with FakeRapServer(PLAIN) as server, calling(server, retry_delays_s=[0.02] * 500) as caller:
        tool, port = caller.tool(), server.port
        await server.stop()
        call = asyncio.create_task(caller.call(tool))
        async with FakeRapServer(PLAIN, port=port) as again:
            assert await call == Pending()
            assert len(again.invocations) == 1


async def test_a_server_that_stays_away_makes_an_error() -> None:
    """It says that the call was not carried out, which the model can count on."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        tool = caller.tool()
        await server.stop()
        output = await caller.call(tool)
        assert output == ToolOutput("The server of plain cannot be reached. The call was not carried out.", "error")
        assert server.origin.removeprefix("http://") not in str(output)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(reset="after"),
        Answer(reset="before"),
        Answer(hold=asyncio.Event(), taken=True),
        Answer(status=200, headers={"content-length": "nonsense"}, taken=True),
    ],
    ids=["reset after", "reset before", "never answers", "answers nonsense"],
)
async def test_a_call_that_may_have_arrived_waits_for_its_result_and_is_not_sent_again(answer: Answer) -> None:
    """For a while: the result may still come, and must not come twice."""
    async with FakeRapServer(PLAIN) as server, calling(server, timeout=SOON) as caller:
        server.script("/", answer)
        assert await caller.call(caller.tool()) == MAYBE
        assert len(server.received("/")) == 1


async def test_an_idempotent_call_is_sent_again_when_it_may_have_arrived() -> None:
    """With the same id; if nobody ever acknowledges it, it waits like any other."""
    async with FakeRapServer(SAFE) as server, calling(server, timeout=SOON) as caller:
        tool = caller.tool()
        server.script("/", Answer(reset="after"), Answer(hold=asyncio.Event()))
        assert await caller.call(tool) == Pending()
        assert [invocation.id for invocation in server.invocations] == ["call_1"] * 3
        server.script("/", *[Answer(reset="after")] * TRIES)
        assert await caller.call(tool) == MAYBE


async def test_a_call_that_may_have_arrived_stays_open_though_its_server_is_gone() -> None:
    """The last try says nothing about the first."""
    async with FakeRapServer(SAFE) as server, calling(server) as caller:
        tool = caller.tool()
        hold = asyncio.Event()
        server.script("/", Answer(hold=hold, reset="after"))
        call = asyncio.create_task(caller.call(tool))
        await server.invoked()
        await server.stop()
        assert await call == MAYBE


async def test_an_uncertain_call_waits_no_longer_than_a_certain_one() -> None:
    """The toolset's own limit counts where it is shorter."""
    async with FakeRapServer(PLAIN) as server, calling(server, expires=timedelta(seconds=30)) as caller:
        server.script("/", Answer(reset="after"))
        assert await caller.call(caller.tool()) == Pending(30.0)


async def test_a_second_execution_sends_only_what_does_no_harm() -> None:
    """The worker of the first one died, and nobody knows how far it came."""
    async with FakeRapServer(PLAIN, SAFE) as server, calling(server) as caller:
        assert await caller.call(caller.tool("plain"), started=2) == MAYBE
        assert server.received("/") == []
        assert await caller.call(caller.tool("safe"), started=2) == Pending()
        assert [invocation.operation for invocation in server.invocations] == ["safe"]


async def test_results_may_come_before_the_acknowledgement() -> None:
    """The server has done its work when it answers; that is no other case."""
    async with FakeRapServer(get_time()) as server, FakeRapServer(PLAIN) as gateway:
        server.result_first = True
        async with calling(server, gateway_url=gateway.url) as caller:
            assert await caller.call(caller.tool()) == Pending()
            (callback,) = gateway.requests
            assert callback.path.startswith("/callbacks/root/call_1/")
            assert callback.json["text"].startswith("Current time in UTC")


async def test_without_a_gateway_nothing_is_sent() -> None:
    """A result would have nowhere to go; the model is told what its people have to do."""
    async with FakeRapServer(PLAIN) as server, calling(server, gateway_url=None) as caller:
        output = await caller.call(caller.tool())
        assert isinstance(output, ToolOutput)
        assert "PERDURE_GATEWAY_URL" in output.content
        assert server.received("/") == []


@pytest.mark.parametrize("status", [307, 308])
async def test_a_call_follows_its_server_on_the_same_host(status: int) -> None:
    """As a proxy sends one to the right path."""
    async with FakeRapServer(PLAIN, path="/new") as server, calling(server) as caller:
        server.manifest["endpoint"] = server.origin + "/old"
        server.script("/old", Answer(status=status, headers={"location": "/new"}))
        assert await caller.call(caller.tool()) == Pending()
        assert len(server.invocations) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_call_does_not_follow_elsewhere(status: int) -> None:
    """Arguments, the user's id and the right to call back stay with the server; nor does a POST become a GET."""
    async with FakeRapServer(PLAIN) as server, FakeRapServer(PLAIN) as other, calling(server) as caller:
        server.script("/", Answer(status=status, headers={"location": other.url}))
        output = await caller.call(caller.tool())
        assert output == ToolOutput(f"The call of plain was answered with a redirect (HTTP status {status}).", "error")
        assert other.requests == []


@pytest.mark.parametrize("location", ["/", "http://[", "javascript:x", "", "http://user:password@127.0.0.1/"])
async def test_a_redirect_that_leads_nowhere_ends(location: str) -> None:
    """In a circle, or to what is no address."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        server.script("/", *[Answer(status=307, headers={"location": location})] * 20)
        output = await caller.call(caller.tool())
        assert isinstance(output, ToolOutput)
        assert "redirect" in output.content
        assert len(server.received("/")) == (6 if location == "/" else 1)


async def test_credentials_go_to_the_own_host_and_to_trusted_ones_alone() -> None:
    """A manifest may send calls anywhere; what was given for one server is not for another."""
    headers = {"Authorization": "Bearer s3cret"}
    async with FakeRapServer(PLAIN) as server, FakeRapServer(PLAIN) as other:
        async with calling(server, headers=headers) as caller:
            await caller.call(caller.tool())
            server.manifest["endpoint"] = other.endpoint
            await caller.call(caller.tool())
        assert all(request.headers["authorization"] == "Bearer s3cret" for request in server.requests)
        assert "authorization" not in (other.requests[0].headers)
        trusted = [other.origin.removeprefix("http://")]
        async with calling(server, headers=headers, trusted_hosts=trusted) as caller:
            await caller.call(caller.tool())
        assert other.requests[1].headers["authorization"] == "Bearer s3cret"


async def test_a_store_that_is_away_delays_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is counted already: had it failed here, the next attempt would take it for sent."""

    class Away(MemoryStore):
        away = 3

        async def get_ancestor_chain(self, thread_id: str) -> tuple[ThreadRecord, ...]:
            self.away -= 1
            if self.away >= 0:
                raise StoreUnavailable("The database cannot be reached.")
            return await super().get_ancestor_chain(thread_id)

    monkeypatch.setattr(rap_client, "_STORE_DELAYS_S", (0.001, 0.001))
    async with FakeRapServer(PLAIN) as server, calling(server, store=Away()) as caller:
        assert await caller.call(caller.tool()) == Pending()
        assert len(server.invocations) == 1


async def test_a_call_that_nobody_waits_for_stops_at_once() -> None:
    """Its connection is closed, and nothing is tried again."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        server.script("/", Answer(hold=asyncio.Event(), taken=True))
        call = asyncio.create_task(caller.call(caller.tool()))
        await server.invoked()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(server.received("/")) == 1


async def test_many_calls_go_out_at_once() -> None:
    """None waits for another's acknowledgement."""
    hold = asyncio.Event()
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        tool = caller.tool()
        server.script("/", *[Answer(hold=hold, taken=True)] * 150)
        calls = [asyncio.create_task(caller.call(tool, call_id=f"call_{number}")) for number in range(150)]
        await eventually(lambda: len(server.invocations) == 150)
        hold.set()
        assert set(await asyncio.gather(*calls)) == {Pending()}


async def test_a_tool_of_another_kind_is_a_bug() -> None:
    """Nothing else knows an endpoint."""
    async with FakeRapServer(PLAIN) as server, calling(server) as caller:
        call = OpenCall(call_id="c", message_id="m", turn=1, step=0, index=0, tool="x")
        tool = Tool(name="x", description="", parameters={}, kind="client")
        with pytest.raises(TypeError, match="bug: x is no tool of a RAP server"):
            await caller.client.call(tool, call, DispatchRequest(thread_id="root", agent="a", call_id="c"))


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither arguments nor tokens; the operation, the time and the outcome of each call are."""
    async with FakeRapServer(PLAIN) as server, calling(server, headers={"Authorization": "s3cret"}) as caller:
        with caplog.at_level("DEBUG"):
            await caller.call(caller.tool(), '{"password": "pa55word"}')
            await caller.client.cancel("root", "call_1")
        token = (await server.invoked()).callback_url.rsplit("/", 1)[1]
        logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
        assert not any(secret in logged for secret in ("s3cret", "pa55word", token))
        record: Any = next(record for record in caplog.records if "a call of a RAP server" in record.getMessage())
        assert (record.operation, record.outcome) == ("plain", "HTTP status 200")
        assert record.seconds >= 0
