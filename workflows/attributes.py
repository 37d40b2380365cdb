"""The search attributes of a thread, upserted only when they change: every upsert costs an event."""

from typing import Literal

from temporalio import workflow
from temporalio.common import SearchAttributePair, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from perdure.records import ThreadRecord
    from perdure.search_attributes import AGENT, KIND, PARENT, ROOT, STATE, TENANT

State = Literal["idle", "running", "waiting", "closed"]


class Attributes:
    """What Temporal's list of workflows shows of a thread.

    A turn of a single model call stays `idle`: its state would cost as many events as it lasts seconds. From its first
    tool call on a turn is `running`, and `waiting` while it needs a result from outside.
    """

    def __init__(self, thread: ThreadRecord, *, enabled: bool) -> None:
        self.title = thread.title
        self._has_forgotten = False
        self._enabled = enabled
        self._fixed = {
            AGENT: thread.agent,
            TENANT: thread.tenant,
            KIND: thread.kind,
            PARENT: thread.parent_thread_id,
            ROOT: thread.root_thread_id or thread.thread_id,
        }

    @property
    def memo(self) -> dict[str, str | None] | None:
        """What the next run is to be called. Left out, it is called what this one was when it began."""
        return {"title": self.title} if self.title or self._has_forgotten else None

    def forget_title(self) -> None:
        """The thread has no title any more. What names the run goes too: it may be the words that woke it."""
        self.title = None
        if workflow.memo_value("title", None) is not None:
            workflow.upsert_memo({"title": None})
            self._has_forgotten = True

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
