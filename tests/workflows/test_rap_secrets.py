"""What must not be kept: addresses that let somebody speak for a call, and links to sign in."""

import logging

import pytest
from temporalio.client import Client

from perdure.rap.toolset import RapToolset
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.fakes.rap_server import CHOICE, FakeRapServer
from tests.recorded import chain
from tests.stores.postgres_eye import columns_with
from tests.workflows.rap_stack import RapStack

LINK = "https://login.example/authorize?state=kept-by-nobody"
PASSWORD = "Bearer kept-by-nobody"


async def recorded_with(temporal: Client, thread: str, text: str) -> list[int]:
    """The events of the thread's workflow that hold a text."""
    return [event.event_id for event in await chain(temporal, thread) if text.encode() in event.SerializeToString()]


async def test_a_link_is_kept_no_longer_than_its_call(
    temporal: Client, store: PostgresStore, database_url: str, server: FakeRapServer, thread: str
) -> None:
    """While the call is open it is in the database, where clients read it; after that it is nowhere."""
    async with RapStack(temporal, store, server) as stack:
        call = await stack.called(thread, server, Call("ask"))
        await server.oauth(call, LINK)
        assert await columns_with(database_url, LINK) != []
        await server.result(call, "done")
        await stack.heard(thread, "heard done")
        assert await columns_with(database_url, LINK) == []
        assert await recorded_with(temporal, thread, LINK) == []
        # The control: what is said is found by the same search.
        assert await columns_with(database_url, "heard done") != []
        assert await recorded_with(temporal, thread, "heard done") != []


async def test_where_an_answer_goes_is_kept_no_longer_than_the_question(
    temporal: Client, store: PostgresStore, database_url: str, server: FakeRapServer, thread: str
) -> None:
    """Given up, a question leaves neither its words nor its address behind."""
    async with RapStack(temporal, store, server) as stack:
        call = await stack.called(thread, server, Call("ask"))
        await server.choice(call, "Which of the two?", "yes", "no")
        assert await columns_with(database_url, CHOICE) != []
        await stack.client.send(thread, "never mind", id="m")
        await stack.heard(thread, "never mind")
        assert await columns_with(database_url, CHOICE) == []
        assert await columns_with(database_url, "Which of the two?") == []
        assert await recorded_with(temporal, thread, CHOICE) == []


async def test_tokens_and_credentials_are_kept_nowhere(
    temporal: Client,
    store: PostgresStore,
    database_url: str,
    server: FakeRapServer,
    thread: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither in the database nor in Temporal nor in a log, of calls and events that are taken or refused.

    The HTTP client's own log, which names addresses, is off in our processes; here the fake server writes into it too.
    """
    caplog.set_level(logging.DEBUG)
    toolset = RapToolset(server.url, headers={"Authorization": PASSWORD})
    async with RapStack(temporal, store, toolset) as stack:
        subscription = await stack.subscribed(thread, server)
        assert server.requests[-1].headers["authorization"] == PASSWORD
        token = subscription.callback_url.rsplit("/", 1)[1]
        await server.event(subscription, "rain", associative=True, final=True)
        await stack.heard(thread, "heard rain")
        await server.event(subscription, "late", associative=True)
        await server.post(subscription, b"{")
        await stack.client.stop(thread)
        for secret in (token, PASSWORD):
            assert await columns_with(database_url, secret) == []
            assert await recorded_with(temporal, thread, secret) == []
            loggers = {record.name for record in caplog.records if secret in str(record.__dict__)}
            assert loggers <= {"httpx2"}
    assert {"temporalio.activity", "perdure.gateway"} & {record.name for record in caplog.records}
