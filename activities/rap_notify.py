"""The activity `notify`: RAP servers are told of what ends."""

import asyncio
from collections.abc import Callable, Iterable

from temporalio import activity

from activities.rap_client import RapClient
from perdure.contract import NOTIFY, NotifyRequest
from perdure.errors import UsageError

RapClients = Callable[[str], Iterable[RapClient]]
"""The RAP servers of the agent of a name; a UsageError if there is none of this name."""


class NotifyActivities:
    """Tells tool servers of calls that are given up and threads that are closed."""

    def __init__(self, clients: RapClients) -> None:
        self._clients = clients

    @activity.defn(name=NOTIFY)
    async def notify(self, request: NotifyRequest) -> None:
        """Tell every RAP server of the agent, used or not, at once. Each is told once, and none can make this fail."""
        try:
            clients = list(self._clients(request.agent))
        except UsageError:
            # An agent that is not served here any more has no servers that could be told.
            activity.logger.warning("no tool server is told of an end: the agent is unknown")
            return
        notices = [client.cancel(request.thread_id, call_id) for client in clients for call_id in request.call_ids]
        if request.closed:
            notices += [client.closed(request.thread_id) for client in clients]
        await asyncio.gather(*notices)
