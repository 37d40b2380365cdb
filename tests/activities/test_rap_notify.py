"""What RAP servers are told of calls and threads that end."""

import asyncio
from collections.abc import Iterable

import pytest

from activities import rap_client
from activities.rap_client import RapClient
from activities.rap_notify import NotifyActivities
from perdure.contract import NotifyRequest
from perdure.errors import UnknownAgent
from tests.activities.rap_calls import calling
from tests.eventually import eventually
from tests.fakes.rap_server import CANCEL, CLOSE, Answer, FakeRapServer, FakeTool

TOOL = FakeTool("plain")


def serving(*clients: RapClient) -> NotifyActivities:
    """The activities of a worker that serves an agent `a` with these servers."""

    def of(agent: str) -> Iterable[RapClient]:
        if agent != "a":
            raise UnknownAgent(f"There is no agent {agent!r}.")
        return clients

    return NotifyActivities(of)


async def test_every_server_is_told_of_every_call_and_of_the_thread() -> None:
    """Used or not, below its base URL, with the credentials of its toolset."""
    first, second = FakeRapServer(TOOL), FakeRapServer(TOOL, prefix="/tools")
    async with first, second, calling(first, headers={"X-Key": "k"}) as one, calling(second) as two:
        request = NotifyRequest(thread_id="t", agent="a", call_ids=("c1", "c2"), closed=True)
        await serving(one.client, two.client).notify(request)
        for server, prefix in ((first, ""), (second, "/tools")):
            cancelled = [request.json for request in server.received(prefix + CANCEL)]
            assert sorted(body["tool_call_id"] for body in cancelled) == ["c1", "c2"]
            assert all(body.keys() == {"thread_id", "tool_call_id"} for body in cancelled)
            assert [request.json for request in server.received(prefix + CLOSE)] == [{"thread_id": "t"}]
            assert len(server.requests) == 3
        assert all(request.headers["x-key"] == "k" for request in first.requests)
        assert all("x-key" not in request.headers for request in second.requests)


async def test_a_thread_that_goes_on_is_not_called_closed() -> None:
    """Only calls that were given up are told."""
    async with FakeRapServer(TOOL) as server, calling(server) as caller:
        await serving(caller.client).notify(NotifyRequest(thread_id="t", agent="a", call_ids=("c",)))
        assert [request.path for request in server.requests] == [CANCEL]


async def test_no_server_keeps_another_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is gone, one hangs, one fails, one has no such route: each is tried once, and nothing is raised."""
    monkeypatch.setattr(rap_client, "NOTICE_S", 0.3)
    gone, hangs, fails, lacks, well = (FakeRapServer(TOOL) for _ in range(5))
    async with gone, hangs, fails, lacks, well:
        hangs.script(CANCEL, Answer(hold=asyncio.Event()))
        fails.script(CANCEL, Answer(status=500))
        lacks.script(CANCEL, Answer(status=404))
        async with (
            calling(gone) as a,
            calling(hangs) as b,
            calling(fails) as c,
            calling(lacks) as d,
            calling(well) as e,
        ):
            await gone.stop()
            activities = serving(*(caller.client for caller in (a, b, c, d, e)))
            await activities.notify(NotifyRequest(thread_id="t", agent="a", call_ids=("c",)))
        assert [len(server.received(CANCEL)) for server in (gone, hangs, fails, lacks, well)] == [0, 1, 1, 1, 1]


async def test_servers_are_told_at_once() -> None:
    """The first one answers only after the last one was told."""
    told = asyncio.Event()
    first, last = FakeRapServer(TOOL), FakeRapServer(TOOL)
    async with first, last, calling(first) as one, calling(last) as two:
        first.script(CANCEL, Answer(hold=told))
        activities = serving(one.client, two.client)
        notice = asyncio.create_task(activities.notify(NotifyRequest(thread_id="t", agent="a", call_ids=("c",))))
        await eventually(lambda: last.received(CANCEL))
        assert not notice.done()
        told.set()
        await notice


async def test_an_agent_that_is_not_served_here_has_nobody_to_tell() -> None:
    """Nothing is raised: nobody waits for it, and it is not tried again."""
    await serving().notify(NotifyRequest(thread_id="t", agent="gone", closed=True))
