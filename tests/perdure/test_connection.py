"""The way to Temporal: what a client brings along, and one sentence for each way in which there is none."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from perdure import connection
from perdure.connection import (
    connect_temporal,
    has_search_attributes,
    may_not_administer,
    missing_search_attributes,
    process_identity,
)
from perdure.connection import register_search_attributes as register
from perdure.converter import data_converter
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError
from perdure.search_attributes import AGENT, SEARCH_ATTRIBUTES
from tests.eventually import eventually


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[TemporalServer]:
    """A Temporal server without our search attributes."""
    async with TemporalServer(search_attributes=()) as server:
        yield server


@pytest.fixture
async def client(server: TemporalServer) -> Client:
    """A client of it."""
    return await connect_temporal({"target_host": server.address})


async def test_a_client_speaks_our_payloads_and_has_a_short_name(client: Client) -> None:
    """The data converter is ours; the identity, which every event carries, is the process and the host."""
    assert client.data_converter == data_converter
    assert client.identity == process_identity() == f"{os.getpid()}@{socket.gethostname().partition('.')[0]}"


async def test_the_environment_leads_to_the_server(server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a configuration of the caller's, this process's is used."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.delenv("TEMPORAL_NAMESPACE", raising=False)
    assert (await connect_temporal()).service_client.config.target_host == server.address


async def test_search_attributes_are_registered_once_and_usable_at_once(server: TemporalServer, client: Client) -> None:
    """All are added, a second time there is nothing to add, and a workflow may carry one right away."""
    names = {key.name for key in SEARCH_ATTRIBUTES}
    assert set(await missing_search_attributes(client)) == names
    assert not await has_search_attributes(client)
    assert set(await register(client)) == names
    assert await register(client) == ()
    await eventually(lambda: has_search_attributes(client))
    await client.start_workflow(
        "Any",
        id="attributed",
        task_queue="none",
        search_attributes=TypedSearchAttributes([SearchAttributePair(AGENT, "weather")]),
    )
    description = await client.get_workflow_handle("attributed").describe()
    assert description.typed_search_attributes[AGENT] == "weather"


async def test_a_missing_namespace_says_how_to_make_it(server: TemporalServer) -> None:
    """A namespace that does not exist is named, with the command that creates it."""
    with pytest.raises(ConfigurationError, match=r"no namespace 'nowhere': .*operator namespace create nowhere"):
        await connect_temporal({"target_host": server.address, "namespace": "nowhere"})


@pytest.mark.parametrize("address", ["127.0.0.1:9", "no-such-host.invalid:7233", ""])
async def test_no_server_says_where_it_was_looked_for(address: str) -> None:
    """A port nobody listens on, a host that does not exist and an empty address: one sentence with the address."""
    with pytest.raises(ConfigurationError, match=rf"^Temporal is not reachable at {address}: .*TEMPORAL_ADDRESS\.$"):
        await connect_temporal({"target_host": address})


async def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port on which something listens and stays silent is given up after a bounded time."""
    monkeypatch.setattr(connection, "_PATIENCE", timedelta(seconds=0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"not reachable at {address}"):
            await asyncio.wait_for(connect_temporal({"target_host": address}), 10)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RPCStatusCode.PERMISSION_DENIED, True),
        (RPCStatusCode.UNIMPLEMENTED, True),
        (RPCStatusCode.INVALID_ARGUMENT, False),
        (None, False),
    ],
)
def test_who_may_not_administer(status: RPCStatusCode | None, expected: bool) -> None:
    """Only a refusal of operator's rights is one that a worker may live with."""
    error = ConfigurationError("The search attributes cannot be registered.")
    error.__cause__ = None if status is None else RPCError("no", status, b"")
    assert may_not_administer(error) is expected
