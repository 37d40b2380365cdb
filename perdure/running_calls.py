"""Tool calls of a thread that is driven without Temporal: those that run here, and those that wait for the outside."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, Final

from temporalio.exceptions import ApplicationError

from perdure import policy
from perdure.contract import DispatchRequest, DispatchResult
from perdure.history_state import LiveCall, OpenTurn
from perdure.records import ThreadRecord
from perdure.retries import retried
from perdure.tools import ToolKind

Dispatch = Callable[[DispatchRequest], Awaitable[DispatchResult]]
"""Runs a tool call and stages its result in the store: `DispatchActivities.execute`."""

Outcome = DispatchResult | ApplicationError
"""What a run has returned, or the way in which it could not be run."""

WITHOUT_WORKFLOW: Final = frozenset[ToolKind]({"workflow", "thread", "activity"})
"""Kinds of tools that only a thread's workflow can carry out."""


class RunningCalls:
    """The calls of the open step, by their ids."""

    def __init__(self, thread: ThreadRecord, dispatch: Dispatch) -> None:
        self._thread = thread
        self._dispatch = dispatch
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._outside: set[str] = set()

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._tasks or call_id in self._outside

    @property
    def tasks(self) -> Collection["asyncio.Task[Outcome]"]:
        """What runs, to be waited for."""
        return self._tasks.values()

    def start(self, call_id: str, run: Coroutine[Any, Any, Outcome]) -> None:
        """Have a call run beside the loop."""
        self._tasks[call_id] = asyncio.create_task(run)

    def wait_outside(self, call_id: str) -> None:
        """Its result will come as an input."""
        self._outside.add(call_id)

    def are_outside(self, turn: OpenTurn) -> bool:
        """Whether all that the turn lacks are people and the outside."""
        unsettled = [call for call in turn.calls if not call.settled]
        return bool(unsettled) and all(call.awaits_approval or call.call_id in self._outside for call in unsettled)

    def take_done(self) -> Iterator[tuple[str, Outcome]]:
        """The calls that have run, with what came of them; each is forgotten here when it is handed out.

        One by one, since a run may have raised: what is behind it is handed out the next time.
        """
        for call_id in [call_id for call_id, task in self._tasks.items() if task.done()]:
            yield call_id, self._tasks.pop(call_id).result()

    async def run(self, call: LiveCall) -> Outcome:
        """Run a call. It is tried as often as Temporal would; a tool runs once, by what the store knows of it."""
        request = DispatchRequest(thread_id=self._thread.thread_id, agent=self._thread.agent, call_id=call.call_id)
        if call.outline.kind in WITHOUT_WORKFLOW:
            return ApplicationError(
                f"`{call.outline.tool}` is carried out by a thread's workflow, and this thread is driven without one.",
                type=policy.ErrorType.USAGE,
                non_retryable=True,
            )
        try:
            return await retried(lambda: self._dispatch(request), policy.DISPATCH.retry)
        except ApplicationError as error:
            return error

    async def give_up(self, call_ids: Iterable[str]) -> None:
        """Nobody waits for these any more."""
        given_up = list(call_ids)
        self._outside.difference_update(given_up)
        await give_up(self._tasks.pop(call_id) for call_id in given_up if call_id in self._tasks)

    async def stop(self) -> None:
        """Nothing runs any more; what waits for the outside goes on waiting."""
        await give_up(self._tasks.values())
        self._tasks.clear()


async def give_up(work: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel what nobody waits for any more, and see it end; the store refuses whatever it still writes."""
    tasks = list(work)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
