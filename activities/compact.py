"""The activity `compact`: a conversation is made shorter for the model, up to a point that does not move.

It reads the path to the point, and nothing that comes after it is looked at: whatever arrives meanwhile hangs below the
point and stays (case B02). What it makes is one row that hangs on a place of the tree, so nothing is ever half done.

It may run any number of times with the same effect. The id of the row follows from the request; one that is on the path
already is returned without asking a model. If a worker dies before the row is there, nothing has happened.
"""

import asyncio
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.budgets import Budgets
from activities.heartbeat import heartbeating
from activities.lost_calls import LostCalls
from activities.model_choice import ModelChoice
from activities.model_errors import failure
from activities.path_cache import PathCache
from activities.summariser import Spent, Summariser
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.compaction import Compaction
from perdure.contract import COMPACT, CompactRequest, CompactResult, CompleteRequest
from perdure.errors import ContentConflict, UnknownMessage
from perdure.messages import Usage
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import Path, Summary, SummaryItem
from perdure.summary_plan import Plan, plan
from perdure.summary_text import composed
from perdure.summary_trace import trace

NOTHING_SAID: Final = "The summariser said nothing, so the conversation stays as it is."
OFF_PATH: Final = "The point is not on the path of the conversation any more."
OUTDATED: Final = "The conversation was changed above the point meanwhile, or another compaction was faster."


class CompactActivities:
    """Makes the conversations of the agents that a worker serves shorter for their models.

    Args:
        store: where they are.
        agents: say how.
        models: of the worker, so that connections are used again; None: its own.
        budgets: of the worker; None: its own.
    """

    def __init__(
        self, store: Store, agents: Agents, models: ModelChoice | None = None, budgets: Budgets | None = None
    ) -> None:
        self._store = store
        self._agents = agents
        self._models = models or ModelChoice()
        self._summariser = Summariser(self._models)
        self._lost = LostCalls(store)
        self._budgets = budgets or Budgets(store, self._lost)
        # Not the one of the model calls: a path to a point in the middle would push the whole one out of it.
        self._paths = PathCache(store, max_threads=1)

    @activity.defn(name=COMPACT)
    async def compact(self, request: CompactRequest) -> CompactResult:
        """Make the conversation shorter, or say why not. Safe to run again: see the module's docstring.

        A worker that shuts down hands it over to another one, which is never taken for a cancellation.
        """
        try:
            async with heartbeating():
                return await self.execute(request, activity.info().attempt)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.worker_shutdown and not details.cancel_requested:
                raise ApplicationError(
                    "The worker is shutting down; another one takes the compaction over.",
                    type=ErrorType.WORKER_SHUTDOWN,
                    category=ApplicationErrorCategory.BENIGN,
                ) from None
            raise

    async def execute(self, request: CompactRequest, attempt: int = 1) -> CompactResult:
        """The same outside of an activity, for callers that drive the loop themselves. Raises ApplicationError."""
        label = request.agent
        try:
            agent = self._agents[request.agent]
            model = agent.compaction.model if agent.compaction and agent.compaction.model else agent.model
            label = model if isinstance(model, str) else model.model_name
            return await self._compact(request, attempt, agent)
        except UnknownMessage:
            return CompactResult(outcome="void", detail=OFF_PATH)
        except Exception as error:  # one function decides what every failure becomes
            raise failure(error, label) from error

    async def close(self) -> None:
        """Wait for what is being counted, and close the connections."""
        await self._lost.close()
        await self._models.close()

    async def _compact(self, request: CompactRequest, attempt: int, agent: Agent) -> CompactResult:
        path = await self._paths.load(request.thread_id, request.message_id)
        if not await self._is_shown(request):
            return CompactResult(outcome="void", detail=OFF_PATH)
        name = _summary_id(request)
        if path.summary is not None and path.summary.id == name:
            return CompactResult(summary_id=name, covered=path.summary.covered)
        compaction = agent.compaction or Compaction()
        window = await self._summariser.window(agent, compaction, path, request)
        # Beside the event loop: of a long conversation it takes a while, and model calls of others stream meanwhile.
        made = await asyncio.to_thread(plan, path, request, compaction, window)
        if made is None:
            return CompactResult(outcome="nothing")
        spent = Spent()
        words = ""
        if compaction.strategy == "summary":
            if (crossed := await self._budgets.crossed_by_thread(agent, request.thread_id)) is not None:
                return CompactResult(outcome="failed", detail=crossed)
            words = await self._summed_up(agent, request, attempt, made, spent)
            if not words.strip():
                return CompactResult(outcome="empty", detail=NOTHING_SAID)
        summary = await self._summary(request, compaction, path, made, words, spent.usage)
        return await self._add(summary)

    async def _is_shown(self, request: CompactRequest) -> bool:
        """Whether the point is on the path to the head: of a branch that was left nobody needs a summary."""
        after = await self._store.load_history_with_ancestors(request.thread_id, request.message_id)
        return after.extends == request.message_id

    async def _summed_up(self, agent: Agent, request: CompactRequest, attempt: int, made: Plan, spent: Spent) -> str:
        words = ""
        try:
            words = await self._summariser.sum_up(agent, request, made, spent)
            return words
        finally:
            if not words.strip() and spent.usage != Usage():
                # What brings no summary is paid for all the same. No turn has a negative number.
                place = CompleteRequest(
                    thread_id=request.thread_id,
                    agent=request.agent,
                    turn=-request.number,
                    step=zlib.crc32(f"{request.message_id}:{request.parts}".encode()) >> 1,
                )
                self._lost.count(place, attempt, spent.usage)

    async def _summary(
        self, request: CompactRequest, compaction: Compaction, path: Path, made: Plan, words: str, usage: Usage
    ) -> Summary:
        """The row: the words, and at their end what is known exactly, as it is now."""
        thread_id = request.thread_id
        subscriptions, children, chain = await asyncio.gather(
            self._store.get_active_subscriptions(thread_id),
            self._store.get_children(thread_id),
            self._store.get_ancestor_chain(thread_id),
        )
        began = chain[0].created_at
        facts = made.facts.with_state(subscriptions, children)
        if began is not None:
            facts = replace(facts, since=began.date().isoformat(), until=datetime.now(UTC).date().isoformat())
        text = composed(words, facts)
        items: tuple[SummaryItem, ...] = ()
        if compaction.strategy == "trace":
            items = (*trace(made.cut.covered, made.limit), SummaryItem(role="user", text=text))
        return Summary(
            id=_summary_id(request),
            thread_id=thread_id,
            message_id=made.cut.message_id,
            parts=made.cut.parts,
            text=text,
            kind=compaction.strategy,
            items=items,
            covered=made.cut.messages,
            previous_id=path.summary.id if path.summary else None,
            shape=path.basis,
            usage=usage,
        )

    async def _add(self, summary: Summary) -> CompactResult:
        try:
            if not await self._store.add_summary(summary):
                return CompactResult(outcome="void", detail=OUTDATED)
        except ContentConflict:
            # An attempt that was given up for lost was not, and was faster. Its summary covers the same and stays.
            pass
        return CompactResult(summary_id=summary.id, covered=summary.covered)


def _summary_id(request: CompactRequest) -> str:
    return ids.summary_id(request.thread_id, request.message_id, request.parts, request.number)
