"""Messages between threads: each goes as a signal to the other thread's workflow, and wakes it if it hibernates.

Nobody waits for an answer, so no thread can hold another one up. Each message has the id of the call or event that made
it; whoever sends it twice is understood once.
"""

from typing import Final

from temporalio.exceptions import ApplicationError

from activities.store_call import store_call
from perdure.contract import ThreadStart
from perdure.errors import Unreachable
from perdure.inputs import Control, Event, EventSource, Interrupt
from perdure.large_text import LargeTexts
from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.stored_status import open_turn
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls

ORIGIN: Final = "origin"
"""Metadata of a child thread: the call of its parent that its reports go back to. Without it nobody waits for them."""

MAIL_BYTES: Final = 512
"""Words up to this size travel in their signal. While the reader has a call open all mail waits in its inbox, which
holds 500 kB at most (`WAITING_EVENT_BYTES`): that is room for the reports of 500 children and more."""


class ThreadMail:
    """Signals from thread to thread.

    Args:
        store: where threads are, and texts that are too large for a signal.
        calls: the way to their workflows.
    """

    def __init__(self, store: Store, calls: ThreadCalls) -> None:
        self._store = store
        self._calls = calls
        self._texts = LargeTexts(store)

    async def tell(self, thread_id: str, message_id: str, call_id: str, text: str, source: EventSource) -> None:
        """Tell a thread something; `call_id` is the call of its own or of its parent that this goes back to.

        Safe to repeat. Raises ApplicationError if it is to be tried again.
        """
        inline, blob, sha256 = await store_call(self._texts.put(thread_id, text, MAIL_BYTES))
        event = Event(id=message_id, call_id=call_id, content=inline, blob=blob, sha256=sha256, source=source)
        try:
            await self._calls.signal_with_start(thread_id, "event", event)
        except Unreachable as error:
            raise _again(error) from error

    async def origin(self, child_id: str) -> str:
        """The call of its parent that a child's reports go back to; empty if nobody waits for them."""
        return str((await store_call(self._store.get_metadata(child_id))).get(ORIGIN, ""))

    async def stop(self, thread: ThreadRecord, reason: str | None) -> None:
        """Interrupt a thread. One that was made and never ran is closed, so that it never does. Safe to repeat."""
        interrupt = Interrupt(reason=reason)
        try:
            await self._calls.signal(thread.thread_id, "interrupt", interrupt)
        except NoRunningWorkflow:
            await self._stop_asleep(thread.thread_id, interrupt)
        except Unreachable as error:
            raise _again(error) from error

    async def _stop_asleep(self, thread_id: str, interrupt: Interrupt) -> None:
        tail = await store_call(self._store.load_tail(thread_id, processed=0))
        if tail.thread.turn == 0:
            await self._close(thread_id)
        elif open_turn(tail) is not None or tail.children:
            try:
                await self._calls.signal_with_start(thread_id, "interrupt", interrupt, ThreadStart())
            except Unreachable as error:
                raise _again(error) from error

    async def _close(self, thread_id: str) -> None:
        """Close a thread that never ran, also if its workflow is just about to start.

        One that loads the thread from now on finds it closed. One that has loaded it before was there before the
        signal, which it cannot miss; it takes it for a person's, but has nobody to tell any more.
        """
        await store_call(self._store.set_metadata(thread_id, {ORIGIN: None}))
        await store_call(self._store.close_thread(thread_id))
        try:
            await self._calls.signal(thread_id, "control", Control(action="close"))
        except NoRunningWorkflow:
            return
        except Unreachable as error:
            raise _again(error) from error


def _again(error: Unreachable) -> ApplicationError:
    return ApplicationError(str(error), type=type(error).__name__)
