"""The activity `tell_parent`: a parent learns that a person has closed its child.

All else a thread tells its parent by calls of its own model (`activities.thread_tools`).
"""

from temporalio import activity

from activities.store_call import store_call
from activities.thread_mail import ThreadMail
from perdure.contract import TELL_PARENT, TellParentRequest
from perdure.ports import Store
from perdure.thread_texts import child_dismissed


class ParentActivities:
    """Tells parents of the end of their children."""

    def __init__(self, store: Store, mail: ThreadMail) -> None:
        self._store = store
        self._mail = mail

    @activity.defn(name=TELL_PARENT)
    async def tell_parent(self, request: TellParentRequest) -> None:
        """Send the event, whose id is always the same. Safe to repeat.

        A parent that is closed, or has given the child up itself, is told nothing: the event would only wake it.
        """
        child = await store_call(self._store.get_thread(request.thread_id))
        origin = await self._mail.origin(child.thread_id)
        if child.parent_thread_id is None or not origin:
            return
        parent = await store_call(self._store.get_thread(child.parent_thread_id))
        if parent.closed_at is None:
            text = child_dismissed(child.thread_id)
            await self._mail.tell(parent.thread_id, f"closed:{child.thread_id}", origin, text, "child")
