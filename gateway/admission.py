"""Whether a thread still waits for what a tool server sends."""

from gateway.refusal import Refusal
from perdure.errors import CallNotOpen
from perdure.ports import Store
from perdure.rap.callback import Callback, EventCallback, ResultCallback, ViewCallback
from perdure.records import ThreadRecord


class Admission:
    """Judges callbacks whose token is right, by what is stored. So the call has existed: nobody else has tokens."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def thread(self, thread_id: str) -> ThreadRecord:
        """The thread.

        Raises:
            Refusal: 410 if it is closed.
            ThreadNotFound: if it is not stored any more.
        """
        thread = await self._store.get_thread(thread_id)
        if thread.closed_at is not None:
            raise Refusal(410, "The thread is closed; it takes nothing more.")
        return thread

    async def is_wanted(self, callback: Callback, thread_id: str, call_id: str) -> bool:
        """Whether it is to be delivered; False for the second result of a call.

        Raises:
            Refusal: 410 if the call neither waits nor has a subscription that goes on. One that is paused has its final
                event to send, no other.
        """
        if isinstance(callback, ViewCallback):
            return True
        is_open = await self._is_open(thread_id, call_id)
        if isinstance(callback, ResultCallback):
            return is_open
        if not is_open and isinstance(callback, EventCallback):
            # In this order: one transaction settles a call and makes it a subscription, so a call that is not open any
            # more and is to be one is one already. While it is open an event may have overtaken the confirming result.
            await self._check_subscription(callback, thread_id, call_id)
        elif not is_open:
            raise Refusal(410, "The call waits for nothing any more.")
        return True

    async def _is_open(self, thread_id: str, call_id: str) -> bool:
        try:
            return (await self._store.get_call(thread_id, call_id)).result is None
        except CallNotOpen:
            return False

    async def _check_subscription(self, event: EventCallback, thread_id: str, call_id: str) -> None:
        active = await self._store.get_active_subscriptions(thread_id)
        subscription = next((one for one in active if one.call_id == call_id), None)
        if subscription is None:
            raise Refusal(410, "This call has no subscription that goes on; its events are not wanted.")
        # The thread itself judges: it takes no more than this even if the row is older than its pause. The final event
        # goes to it all the same, since there will be no other one to end the subscription.
        if subscription.paused is not None and not event.final:
            raise Refusal(410, "This subscription is paused until a person resumes it; its events are not wanted now.")
