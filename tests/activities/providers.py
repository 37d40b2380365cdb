"""Context providers that keep what happens to them, and a store that keeps what is read and written for them."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from typing_extensions import override

from perdure.context import Context, ProviderRun, RunOutcome
from perdure.records import ProviderState, ThreadRecord
from perdure.tools import Tool
from perdure.turn_context import TurnContext
from stores.memory import MemoryStore

Answer = Context | BaseException | str | None


class Teller:
    """Says one thing after the other, the last one again and again.

    Attributes:
        asked: the turns and steps in which it was asked, with the words that they answer.
        told: how turns ended.
        journal: of all providers that share it: `before NAME` and `after NAME`.
        failures: so many of the next hooks after a turn fail.
        hangs: the hook before a run never returns.
    """

    def __init__(
        self,
        name: str,
        *answers: Answer,
        journal: list[str] | None = None,
        required: bool = True,
        each_call: bool = False,
        write_only: bool = False,
        tools: Sequence[Tool] = (),
        timeout_s: float = 30,
        failures: int = 0,
        hangs: bool = False,
    ) -> None:
        self.name = name
        self.answers = answers or (None,)
        self.journal: list[str] = [] if journal is None else journal
        self.required = required
        self.each_call = each_call
        self.write_only = write_only
        self.tools = tuple(tools)
        self.timeout = timedelta(seconds=timeout_s)
        self.failures = failures
        self.hangs = hangs
        self.asked: list[ProviderRun] = []
        self.told: list[tuple[ProviderRun, RunOutcome]] = []

    async def before_run(self, run: ProviderRun) -> Context | None:
        """Say what comes next."""
        self.journal.append(f"before {self.name}")
        self.asked.append(run)
        if self.hangs:
            await asyncio.Event().wait()
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return Context(messages=[answer]) if isinstance(answer, str) else answer

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """Fail as often as said, then count the turns in the state."""
        self.journal.append(f"after {self.name}")
        if self.failures > 0:
            self.failures -= 1
            raise ValueError(f"{self.name} is broken")
        self.told.append((run, outcome))
        run.state["turns"] = run.state.get("turns", 0) + 1


class Silent(Teller):
    """Wants nothing after a turn."""

    after_run = None  # type: ignore[assignment]  # as if there were no such method


class WatchedStore(MemoryStore):
    """Keeps the names of the calls that are made for context providers, with the step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    @override
    async def get_thread(self, thread_id: str) -> ThreadRecord:
        self.calls.append("thread")
        return await super().get_thread(thread_id)

    @override
    async def get_turn_context(self, thread_id: str, turn: int, step: int) -> TurnContext | None:
        self.calls.append(f"get {step}")
        return await super().get_turn_context(thread_id, turn, step)

    @override
    async def put_turn_context(self, thread_id: str, turn: int, step: int, context: TurnContext) -> TurnContext:
        self.calls.append(f"put {step}")
        return await super().put_turn_context(thread_id, turn, step, context)

    @override
    async def get_provider_states(self, thread_id: str) -> dict[str, ProviderState]:
        self.calls.append("states")
        return await super().get_provider_states(thread_id)
