"""The worker in this process: what its parts are given, and what they leave behind."""

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

import worker as worker_module
from activities.model_choice import Candidate, Chosen, ModelChoice
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError
from perdure.settings import Settings
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore
from tests.fakes.openai_server import Completion, FakeOpenAI
from worker import can_set_search_attributes, create_worker


@pytest.fixture(scope="module")
async def temporal() -> AsyncGenerator[Client]:
    """A client of a server without our search attributes."""
    async with TemporalServer(search_attributes=()) as server:
        yield await connect_temporal({"target_host": server.address})


def refusing(status: RPCStatusCode) -> object:
    """A registration that Temporal refuses."""

    async def register(client: Client) -> tuple[str, ...]:
        error = ConfigurationError("The search attributes cannot be registered.")
        raise error from RPCError("no", status, b"")

    return register


async def test_without_search_attributes_threads_run_all_the_same(temporal: Client) -> None:
    """Switched off, nothing is upserted: a namespace that lacks them would refuse every workflow task for ever."""
    settings = Settings(database_url=None, task_queue=f"plain-{uuid.uuid4()}", search_attributes=False)
    store = MemoryStore()
    agents = Agents([Agent("a", model=ScriptedModel(["fine", "fine"]))])
    async with create_worker(temporal, store, agents, settings):
        thread = f"t-{uuid.uuid4()}"
        client = PerdureClient(temporal, store, task_queue=settings.task_queue)
        # The state is shown at the end of a turn, so after the second one the first has been shown.
        assert [await client.ask(thread, "hi") for _ in range(2)] == ["fine", "fine"]
        handle: WorkflowHandle[object, object] = temporal.get_workflow_handle(ids.workflow_id(thread))
        kinds = {event.event_type async for event in handle.fetch_history_events()}
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds


async def test_who_may_not_register_them_goes_on_without(
    temporal: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are missing and this client is no operator: they are off, and a warning says so."""
    with monkeypatch.context() as patched:
        patched.setattr(worker_module, "register_search_attributes", refusing(RPCStatusCode.PERMISSION_DENIED))
        assert not await can_set_search_attributes(temporal)
        assert "search attributes are off" in capsys.readouterr().out
        patched.setattr(worker_module, "register_search_attributes", refusing(RPCStatusCode.INTERNAL))
        with pytest.raises(ConfigurationError, match="cannot be registered"):
            await can_set_search_attributes(temporal)


async def test_who_may_not_look_uses_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An administrator has added them: a worker without an operator's rights finds that out by a search."""
    async with TemporalServer() as server:
        client = await connect_temporal({"target_host": server.address})
        monkeypatch.setattr(worker_module, "register_search_attributes", refusing(RPCStatusCode.PERMISSION_DENIED))
        assert await can_set_search_attributes(client)


async def test_a_worker_that_ends_closes_the_connections_to_models(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of a model that was given by name is open for as long as the worker runs, and not longer."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    opened: list[Model[Any]] = []

    class Remembered(ModelChoice):
        async def open(self, candidate: Candidate) -> Chosen:
            chosen = await super().open(candidate)
            opened.append(chosen.model)
            return chosen

    monkeypatch.setattr(worker_module, "ModelChoice", Remembered)
    settings = Settings(database_url=None, task_queue=f"models-{uuid.uuid4()}", search_attributes=False)
    store = MemoryStore()
    async with FakeOpenAI([Completion("fine")]) as server:
        agents = Agents([Agent("a", model="openai:fake-model", settings={"base_url": server.url})])
        async with create_worker(temporal, store, agents, settings):
            client = PerdureClient(temporal, store, task_queue=settings.task_queue)
            assert await client.ask(f"t-{uuid.uuid4()}", "hi") == "fine"
            (model,) = opened
            assert isinstance(model, OpenAIChatModel)
            assert not model.client.is_closed()
        assert model.client.is_closed()
