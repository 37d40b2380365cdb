"""What is read of conversations in memory: paths, trees, snapshots, changes, summaries."""

from collections.abc import AsyncGenerator, Collection, Iterator

from perdure.errors import ContentConflict, UnknownMessage
from perdure.messages import Message
from perdure.records import Change, Counts, Path, Snapshot, StoredTree, Summary, TreeMessage
from stores.memory_records import StoredMessage, kept
from stores.memory_state import MemoryState


class MemoryPaths(MemoryState):
    """The reading half of `perdure.ports.ConversationStore`. `_owners` are the threads of messages, by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, str] = {}
        self._summaries: dict[str, Summary] = {}
        self._answers: dict[str, bool] = {}
        self._told: dict[str, int] = {}

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound, UnknownMessage."""
        return self._path(thread_id, known, message_id, whole=whole)

    async def load_tree(self, thread_id: str, *, parts: bool = True) -> StoredTree:
        """See `perdure.ports.ConversationStore`."""
        thread = self._thread(thread_id)
        own = thread.messages
        remembered = [(name, stored.remembered) for name, stored in own.items()]
        return StoredTree(
            head_id=thread.record.head_id if thread.record.head_id in own else None,
            messages=tuple(
                TreeMessage(
                    message=stored.whole() if parts else stored.message,
                    parent_id=stored.message.parent_id if stored.message.parent_id in own else None,
                    place=stored.place,
                    created_at=stored.created_at,
                    given_id=stored.given_id,
                )
                for stored in own.values()
            ),
            remembered=tuple((name, child) for name, child in ((None, thread.remembered), *remembered) if child),
            calls=thread.ordered_calls(),
        )

    async def get_message_counts(self, thread_id: str) -> Counts:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        roles = [stored.message.role for stored, _ in self._upward(*self._end(thread_id))]
        return Counts(
            total=len(roles),
            user=roles.count("user"),
            assistant=roles.count("assistant"),
            event=roles.count("event"),
            visible=len(self._path(thread_id).messages),
        )

    async def snapshot(self, thread_id: str) -> Snapshot:
        """See `perdure.ports.ConversationStore`."""
        thread = self._thread(thread_id)
        at = max(thread.steps, default=None)
        live = thread.steps[at] if at else None
        return Snapshot(
            thread=thread.record,
            path=self._path(thread_id),
            live=live.as_step(*at) if live and at else None,
            chunks=tuple(chunk for _, chunk in live.chunks) if live else (),
            calls=tuple(
                # Those of other turns wait for their branch to be shown.
                call
                for call in thread.ordered_calls()
                if call.message_id == thread.record.head_id or thread.messages[call.message_id].state == "running"
            ),
            seq=thread.record.seq,
            choices=thread.waiting_choices(),
            views=thread.shown_views(),
        )

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """See `perdure.ports.ConversationStore`."""
        thread = self._threads.get(thread_id)
        summaries = (one for one in self._summaries.values() if one.thread_id == thread_id and one.id in self._told)
        told = (Change(seq=self._told[one.id], summary=one) for one in summaries)
        changes = sorted((*(thread.changes() if thread else ()), *told), key=lambda change: change.seq)
        return tuple(change for change in changes if change.seq > after)[:limit]

    def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """See `perdure.ports.ConversationStore`."""
        return self._hints.listen(thread_id)

    # -- summaries ---------------------------------------------------------------------------------------------

    async def add_summary(self, summary: Summary) -> bool:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound, and ContentConflict if the id is taken.

        What it has cost counts in any case. Readers are told: what was said stays, and so does what else they show.
        """
        thread = self._thread(summary.thread_id)
        if summary.id in self._answers:
            if self._summaries.get(summary.id, summary) != summary:
                raise ContentConflict(f"The summary {summary.id!r} is there with other content, which stays.")
            return self._answers[summary.id]
        self._answers[summary.id] = self._holds(summary)
        thread.spend(summary.usage)
        if self._answers[summary.id]:
            self._summaries[summary.id] = kept(summary)
            owner = self._threads[self._owners[summary.message_id]]
            before, owner.shape = owner.shape, owner.next_seq()
            owner.summed += owner.shape - before
            if owner is thread:
                self._told[summary.id] = owner.shape
                self._hints.wake(summary.thread_id)
        return self._answers[summary.id]

    def _holds(self, summary: Summary) -> bool:
        """Whether its point is there, and what it was made of: another summary of the thread itself changes that."""
        return summary.message_id in self._owners and summary.shape in (None, self._basis(summary.thread_id))

    def _void_summaries(self, changed: Collection[str]) -> None:
        """Those at or below these messages are used no more, and their text is gone."""
        for name, summary in list(self._summaries.items()) if changed else ():
            if any(stored.message.id in changed for stored, _ in self._upward(summary.message_id, None)):
                del self._summaries[name]

    def _summary_at(self, message_id: str, cut: int | None) -> Summary | None:
        at_message = [
            summary
            for summary in self._summaries.values()
            if summary.message_id == message_id and (cut is None or summary.parts <= cut)
        ]
        return max(reversed(at_message), key=lambda summary: summary.parts, default=None)

    # -- the way up --------------------------------------------------------------------------------------------

    def _path(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        messages: list[Message] = []
        summary: Summary | None = None
        extends: str | None = None
        for stored, cut in self._upward(*self._end(thread_id, message_id)):
            if stored.message.id == known:
                extends = known
                break
            parts = stored.whole().parts[:cut]
            summary = None if whole else self._summary_at(stored.message.id, cut)
            if summary is not None:
                parts = parts[summary.parts :]
            if summary is None or parts:
                messages.append(stored.message.with_(parts=parts))
            if summary is not None:
                break
        return Path(
            messages=tuple(reversed(messages)),
            summary=summary,
            extends=extends,
            seq=self._thread(thread_id).record.seq,
            shape=self._shape(thread_id),
            basis=self._basis(thread_id),
            model=self._thread(thread_id).record.model,
        )

    def _shape(self, thread_id: str) -> int:
        return sum(thread.shape for thread in self._line(thread_id))

    def _basis(self, thread_id: str) -> int:
        own = self._thread(thread_id).summed
        return own + sum(thread.shape - thread.summed for thread in self._line(thread_id))

    def _end(self, thread_id: str, message_id: str | None = None) -> tuple[str | None, int | None]:
        """Where the path ends, with the number of parts that are inherited, None for all."""
        thread = self._thread(thread_id)
        if message_id is not None:
            if message_id not in thread.messages:
                raise UnknownMessage(f"There is no message {message_id!r} in this thread.")
            return message_id, None
        record = thread.record
        return (record.head_id, None) if record.head_id else (record.spawn_message_id, record.spawn_parts)

    def _upward(self, message_id: str | None, cut: int | None) -> Iterator[tuple[StoredMessage, int | None]]:
        """The path from its end to the root."""
        while message_id is not None:
            stored = self._threads[self._owners[message_id]].messages[message_id]
            yield stored, cut
            message_id, cut = stored.message.parent_id, stored.message.parent_parts
