"""The activity `choose`: people's choices go to the tool servers that asked."""

from collections.abc import Awaitable, Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.rap_client import RapClient
from activities.store_call import store_call
from perdure.contract import CHOOSE, ChooseRequest
from perdure.errors import CallNotOpen, ToolsetUnavailable, UsageError
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.rap.manifest import RapTool
from perdure.records import Choice

FindTool = Callable[[str, str], Awaitable[tuple[RapClient, RapTool] | None]]
"""A thread's tool of a name (thread id, tool name) with the client of its server; None if it is no RAP tool now."""


class ChooseActivities:
    """Brings a choice to the server whose call asked, and to no other: another's credentials are not lent to it."""

    def __init__(self, store: Store, find_tool: FindTool) -> None:
        self._store = store
        self._find_tool = find_tool

    @activity.defn(name=CHOOSE)
    async def choose(self, request: ChooseRequest) -> None:
        """Post a choice, or the default if it is dismissed, and drop the question once the server has taken it.

        A question that is gone was answered before, or its call is settled: there is nothing to do. So a second answer
        changes nothing; one that meets the first under way may reach the server too, which takes the first.

        Raises:
            ApplicationError: with a sentence; the question stays.
        """
        choices = await store_call(self._store.get_choices(request.thread_id))
        choice = next((choice for choice in choices if choice.id == request.choice_id), None)
        if choice is None or choice.answered:
            return
        try:
            await self._answer(request, choice)
        except UsageError as error:
            raise ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True) from error
        except ToolsetUnavailable as error:
            raise ApplicationError(str(error), type=type(error).__name__) from error
        await store_call(self._store.remove_choice(request.thread_id, choice.id))

    async def _answer(self, request: ChooseRequest, choice: Choice) -> None:
        if choice.kind == "oauth":
            if request.selected is not None:
                raise UsageError("A link is not chosen from; open it, or dismiss it.")
            return
        selected = choice.default if request.selected is None else request.selected
        if not 0 <= selected < len(choice.choices):
            raise UsageError(f"There is no choice {selected}; they are numbered from 0 to {len(choice.choices) - 1}.")
        tool_name = await store_call(self._tool_name(request.thread_id, choice.call_id))
        if tool_name is None:
            return
        found = await self._find_tool(request.thread_id, tool_name)
        if found is None or choice.response_url is None:
            raise UsageError("The agent has no tool server any more that could be told. Stop the call instead.")
        client, tool = found
        await client.choose(tool, choice.response_url, choice.call_id, selected)

    async def _tool_name(self, thread_id: str, call_id: str) -> str | None:
        """The tool of the call that asked; None if it has been settled meanwhile."""
        try:
            return (await self._store.get_call(thread_id, call_id)).tool
        except CallNotOpen:
            return None
