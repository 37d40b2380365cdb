"""An agent of tool servers with all that is around it: a worker, the gateway, fake servers, and a model that obeys."""

import itertools
from collections.abc import Iterable
from typing import Any, Self

from pydantic_ai.messages import ModelRequest, UserPromptPart
from temporalio.client import Client, WorkflowExecutionStatus

from perdure import ids
from perdure.agent import Agent
from perdure.compaction import Compaction
from perdure.contract import ThreadStatus
from perdure.errors import ThreadNotFound
from perdure.limits import Limits
from perdure.messages import EventPart, Part, ToolResultPart
from perdure.rap.toolset import RapToolset
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.tools import Tool, Toolset
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, Invocation
from tests.gateway.served import Served
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.soundness import failed_tasks


class RapStack(Stack):
    """A stack whose agent has the tools of some servers; it checks at its end that no workflow task has failed.

    The model makes the calls that `asked` wants and answers everything else with `heard ...`: results, or words.

    Attributes:
        model: that model.
        gateway: where the servers' callbacks go.
    """

    def __init__(
        self,
        temporal: Client,
        store: PostgresStore,
        *servers: FakeRapServer | RapToolset,
        toolsets: Iterable[Toolset] = (),
        tools: Iterable[Tool] = (),
        limits: Limits | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        self.model = ScriptedModel(self._reply)
        rap = [server if isinstance(server, RapToolset) else RapToolset(server.url) for server in servers]
        agent = Agent(
            "a", model=self.model, toolsets=[*rap, *toolsets], tools=tools, limits=limits, compaction=compaction
        )
        super().__init__(temporal, store, [agent], sandbox=False)
        self.gateway = Served(temporal, store, task_queue=self.settings.task_queue)
        self._moves: dict[str, Reply] = {}
        self._numbers = itertools.count(1)

    def _reply(self, asked: Asked) -> Reply:
        words = _new_words(asked)
        told = [*asked.results, words] if words else asked.results
        return self._moves.get(words) or Reply(f"heard {' | '.join(told)}")

    async def __aenter__(self) -> Self:
        await self.gateway.__aenter__()
        self.settings = self.settings.model_copy(update={"gateway_url": self.gateway.base})
        return await super().__aenter__()

    async def __aexit__(self, *failure: object) -> None:
        await super().__aexit__(*failure)
        await self.gateway.__aexit__(*failure)
        if failure[0] is None:
            failed = await self.failed_tasks()
            assert not failed, failed

    # -- what is done --------------------------------------------------------------------------------------------------

    async def asked(self, thread: str, *calls: Call, words: str = "do", mode: Any = "interrupt") -> str:
        """Have the model make these calls, all in one step; returns the id of the words that say so."""
        words = f"{words} {next(self._numbers)}"
        self._moves[words] = Reply(*calls)
        return (await self.client.send(thread, words, id=words, mode=mode)).message_id

    async def called(self, thread: str, server: FakeRapServer, *calls: Call) -> Invocation:
        """The same, with the first of the calls as the server got it, and the thread waiting for its result."""
        number = len(server.invocations) + 1
        await self.asked(thread, *calls)
        invocation = await server.invoked(number)
        await self.waiting(thread)
        return invocation

    async def subscribed(self, thread: str, server: FakeRapServer, tool: str = "subscribe") -> Invocation:
        """A subscription that is confirmed, and whose confirmation the model has read."""
        invocation = await self.called(thread, server, Call(tool))
        posted = await server.result(invocation, f"subscribed {invocation.id}", subscription=True)
        assert posted.status == 200
        await self.heard(thread, f"subscribed {invocation.id}")
        return invocation

    async def control(self, thread: str, action: str, call_id: str = "") -> None:
        """Send the signal `control`."""
        await self.handle(thread).signal("control", {"action": action, "call_id": call_id})

    async def terminate(self, thread: str) -> None:
        """End the workflow as an operator can, without telling it."""
        await self.handle(thread).terminate("a test")

    # -- what is waited for --------------------------------------------------------------------------------------------

    async def heard(self, thread: str, text: str, *, timeout: float = 20.0) -> None:
        """Wait until the last answer of the thread is complete and holds this text."""

        async def has_heard() -> bool:
            messages = await self.client.history(thread)
            return bool(messages) and messages[-1].status.state == "complete" and text in answer_text(messages[-1])

        await eventually(has_heard, timeout=timeout)

    async def waiting(self, thread: str) -> None:
        """Wait until the thread waits for results from outside."""

        async def is_waiting() -> bool:
            return await _is_known(self, thread) and (await self.client.status(thread)).state == "waiting"

        await eventually(is_waiting, timeout=20)

    async def asleep(self, thread: str) -> None:
        """Wait until the thread hibernates."""

        async def is_asleep() -> bool:
            return (await self.handle(thread).describe()).status is WorkflowExecutionStatus.COMPLETED

        await eventually(is_asleep, timeout=20)

    async def dropped(self, thread: str, count: int) -> None:
        """Wait until the thread has counted so many drops."""

        async def is_counted() -> bool:
            return (await self.client.status(thread)).dropped == count

        await eventually(is_counted, timeout=20)

    async def deferred(self, thread: str, count: int) -> ThreadStatus:
        """Wait until so many events wait."""

        async def waits() -> ThreadStatus | None:
            status = await self.client.status(thread)
            return status if status.deferred == count else None

        status = await eventually(waits, timeout=20)
        assert status is not None
        return status

    # -- what is seen --------------------------------------------------------------------------------------------------

    async def status(self, thread: str) -> ThreadStatus:
        """Where the thread stands."""
        return await self.client.status(thread)

    async def parts(self, thread: str) -> list[Part]:
        """All parts of the conversation, oldest first."""
        return [part for message in await self.client.history(thread) for part in message.parts]

    async def events(self, thread: str) -> list[str]:
        """The events in the conversation, oldest first."""
        return [part.content for part in await self.parts(thread) if isinstance(part, EventPart)]

    async def results(self, thread: str) -> list[ToolResultPart]:
        """The results in the conversation, oldest first."""
        return [part for part in await self.parts(thread) if isinstance(part, ToolResultPart)]

    async def stored(self, thread: str) -> tuple[Any, ...]:
        """Everything that the store and Temporal hold of the thread, to compare."""
        signals = await self.gateway.signals(thread)
        snapshot = await self.store.snapshot(thread)
        tail = await self.store.load_tail(thread)
        subscriptions = await self.store.get_active_subscriptions(thread)
        return snapshot, tail, subscriptions, await self.store.get_metadata(thread), signals

    async def runs(self, thread: str) -> int:
        """How many runs the thread's newest chain of runs has."""
        return len(await chained_runs(self.temporal, thread))

    async def failed_tasks(self) -> list[str]:
        """Workflow tasks of all threads that have failed, other than those that did nothing wrong."""
        found: list[str] = []
        async for run in self.temporal.list_workflows(f"TaskQueue = '{self.settings.task_queue}'"):
            handle = self.temporal.get_workflow_handle(run.id, run_id=run.run_id)
            events = [event async for event in handle.fetch_history_events()]
            found += [f"{ids.thread_id(run.id)}: {failure}" for failure in failed_tasks(events)]
        return found


def _new_words(asked: Asked) -> str:
    """What the user has said last, if nothing has come after it."""
    last = asked.messages[-1]
    texts = [part.content for part in last.parts if isinstance(part, UserPromptPart)]
    return str(texts[-1]) if isinstance(last, ModelRequest) and texts else ""


async def _is_known(stack: Stack, thread: str) -> bool:
    try:
        await stack.store.get_thread(thread)
    except ThreadNotFound:
        return False
    return True
