"""The search attributes of a thread, upserted only when they change: every upsert costs an event."""

from typing import Literal

from temporalio import workflow
from temporalio.common import SearchAttributePair, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from perdure.ports import ThreadRecord
    from perdure.search_attributes import AGENT, KIND, PARENT, ROOT, STATE, TENANT

State = Literal["idle", "running", "waiting", "closed"]


class Attributes:
    """What Temporal's list of workflows shows of a thread.

    A turn of a single model call stays `idle`: its state would cost as many events as it lasts seconds. From its first
    tool call on a turn is `running`, and `waiting` while it needs a result from outside.
    """

    def __init__(self, thread: ThreadRecord, *, enabled: bool) -> None:
        self.title = thread.title
        self._enabled = enabled
        self._fixed = {
            AGENT: thread.agent,
            TENANT: thread.tenant,
            KIND: thread.kind,
            PARENT: thread.parent_thread_id,
            ROOT: thread.root_thread_id or thread.thread_id,
        }

    def show(self, state: State) -> None:
        """Set the state, and with the first call whatever the start of the workflow left out."""
        if self.title and workflow.memo_value("title", None) != self.title:
            workflow.upsert_memo({"title": self.title})
        if not self._enabled:
            return
        present = workflow.info().typed_search_attributes
        wanted = {**self._fixed, STATE: state}
        updates: list[SearchAttributeUpdate[str]] = [
            SearchAttributePair(key, value).key.value_set(value)
            for key, value in wanted.items()
            if value is not None and present.get(key) != value
        ]
        if updates:
            # The SDK leaves the type arguments of its updates open.
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]
