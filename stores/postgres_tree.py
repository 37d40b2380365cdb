"""Batches that change the message tree in PostgreSQL: what they come to is worked out here, and written as any other.

The thread's row is locked before its tree is read, and to the end. So the tree that the operations are applied to is
the one that they change, and a batch that is refused has written nothing.
"""

from collections import defaultdict
from itertools import takewhile
from typing import Any

from perdure.approval import Decision
from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    CloseThread,
    CommitResults,
    Decide,
    ImportMessages,
    Operation,
    Refused,
    SetStatus,
    SyncBatch,
    TreeReport,
    changes_tree,
)
from perdure.codec import dumps
from perdure.errors import StoreError, UnknownMessage, UsageError
from perdure.messages import Status, StatusState
from perdure.records import OpenCall
from stores import batch_sql, tree_sql
from stores.batch_sql import CoalescedSteps
from stores.database import Row, Transaction
from stores.imported_content import to_content, touched
from stores.left_turn import CLOSED, LEFT, awaits_decision, last_result
from stores.rows import decoded, encoded, to_call, to_parts, to_status
from stores.title import BEGINNING_BYTES, is_named_after, words_of
from stores.tree_change import Applied, Tree, TreeRow, apply, input_of, is_gone, of_tree, report, tree_of
from stores.tree_import import KnownMessages, named_in


def needs_lock(operation: Operation) -> bool:
    """Whether an operation must see what is stored before it can be written."""
    return changes_tree(operation) or isinstance(operation, AnnotateMessage)


class TreeBatch:
    """A batch under the lock of its thread.

    `written` are its operations as they are to be written. `changed`, `gone` and `replaced` are messages below which no
    summary holds, that are removed, and that get another content.
    """

    def __init__(self, transaction: Transaction, thread: Row, coalesced: CoalescedSteps) -> None:
        self._transaction = transaction
        self._thread = thread
        self._coalesced = coalesced
        self._tree: Tree | None = None
        self._states: dict[str, StatusState] = {}
        self._metadata: dict[str, dict[str, Any] | None] = {}
        self._calls: tuple[OpenCall, ...] = ()
        self._open_calls: dict[str, str] = {}
        self._touched: set[str] = set()
        self._turn: int = thread["turn"]
        self.written: list[dict[str, Any]] = []
        self.changed: list[str] = []
        self.gone: list[str] = []

    async def apply(self, batch: SyncBatch) -> Refused | None:
        """Work out all operations, in order; None, or what the tree does not allow."""
        if any(map(changes_tree, batch.operations)):
            self._tree = await self._load()
        for operation in batch.operations:
            try:
                await self._apply(operation)
            except UsageError as error:
                known = input_of(operation)
                if known is None:
                    raise StoreError(f"bug: nobody asked for what the tree does not allow. {error}") from error
                if is_gone(self._tree, operation) and await self._is_done(batch, *known):
                    return Refused(input_id=known[0])
                return Refused(input_id=known[0], detail=str(error))
        return None

    async def _is_done(self, batch: SyncBatch, input_id: str, digest: str | None) -> bool:
        """Whether the same was done before under another id, in this batch or in an earlier one."""
        earlier = takewhile(lambda one: one != (input_id, digest), filter(None, map(input_of, batch.operations)))
        if any(one[1] == digest for one in earlier):
            return True
        row = await self._transaction.row("is_done", batch.thread_id, digest)
        return row is not None and bool(row["done"])

    async def write(self, batch: SyncBatch) -> None:
        """Write it, with what follows for threads below, summaries and blobs of what was there before."""
        if self.changed:
            # First, while no message is locked.
            await self._transaction.rows("tell_below", self._thread["thread"], self.changed)
            await self._transaction.rows("void_summaries", self.changed)
        if self.gone and await self._names_thread():
            self.written.append({"kind": "forget_title"})
        named = await self._transaction.rows("named_blobs", self._thread["thread"], self.gone) if self.gone else []
        await self._transaction.rows(
            "append_messages",
            batch.thread_id,
            batch.number,
            batch.sync_id,
            dumps(batch_sql.inputs(batch)),
            dumps(self.written),
        )
        if named:
            await self._transaction.rows("purge_blobs", self._thread["thread"], [row["blob"] for row in named])

    async def _names_thread(self) -> bool:
        """Whether the title is made of words that go."""
        title = decoded(self._thread["title"])
        if title is None:
            return False
        words = words_of(to_parts(row["body"] for row in await self._transaction.rows("words", self.gone)))
        large = [part.blob for part in words if part.blob is not None]
        rows = (
            await self._transaction.rows("blob_beginnings", self._thread["thread"], large, BEGINNING_BYTES)
            if large
            else ()
        )
        beginnings = {row["blob"]: row["beginning"] for row in rows}
        return any(is_named_after(title, part, beginnings) for part in words)

    async def report(self, batch: SyncBatch) -> TreeReport:
        """How the tree stands, now that the batch is written or if it was before."""
        tree = await self._load() if self._tree is None else self._tree
        state = await self._transaction.row("tree_state", self._thread["thread"])
        assert state is not None, "bug: the thread is locked"
        status = to_status(state) if state["state"] is not None else None
        title = decoded(state["title"])
        return report(tree, status, state["running_id"], state["turn"], operations=batch.operations, title=title)

    async def _load(self) -> Tree:
        rows = await self._transaction.rows("tree", self._thread["thread"])
        self._states = {row["id"]: row["state"] for row in rows}
        remembered: dict[str | None, str] = {row["id"]: row["remembered"] for row in rows if row["remembered"]}
        if self._thread["remembered"] is not None:
            remembered[None] = self._thread["remembered"]
        nodes = (TreeRow(row["id"], row["parent_id"], row["place"], row["role"]) for row in rows)
        tree = tree_of(nodes, remembered, self._thread["head_id"])
        self._calls = tuple(map(to_call, await self._transaction.rows("open_calls", self._thread["thread_id"])))
        self._open_calls = {call.call_id: call.message_id for call in self._calls}
        return tree

    async def _apply(self, operation: Operation) -> None:
        in_tree = of_tree(operation)
        if isinstance(operation, AnnotateMessage):
            await self._annotate(operation)
        elif self._tree is not None and in_tree is not None:
            known = await self._known(self._tree, in_tree) if isinstance(in_tree, ImportMessages) else None
            applied = apply(self._tree, in_tree, self._thread["thread_id"], self._turn, known)
            self.changed += applied.changed
            self.gone += applied.delta.removed
            match in_tree:
                case AppendMessage():
                    await self._append(in_tree, applied)
                case ImportMessages():
                    self._import(in_tree, applied)
                case _:
                    self.written.append(tree_sql.change_tree(applied, input_id=in_tree.input_id))
        else:
            if isinstance(operation, CloseThread):
                for message_id in [name for name, state in self._states.items() if state == "requires_action"]:
                    await self._leave(message_id, CLOSED)
            self._note(operation)
            self.written.append(batch_sql.to_json(operation, self._coalesced))

    def _note(self, operation: Operation) -> None:
        """What later operations of the batch ask for, and would not find in what was loaded."""
        self._touched.update(touched(operation, self._open_calls))
        if isinstance(operation, SetStatus) and self._states.get(operation.message_id) in tree_sql.OPEN_STATES:
            self._states[operation.message_id] = operation.status.state
        elif isinstance(operation, AppendMessage):
            self._metadata[operation.message.id] = operation.message.metadata

    async def _append(self, operation: AppendMessage, applied: Applied) -> None:
        message, parent_id = operation.message, applied.parent_id
        if parent_id is not None and changes_tree(operation) and self._states[parent_id] == "requires_action":
            await self._leave(parent_id, LEFT)
        apart = operation.input_id if operation.input_id != message.input_id else None
        self.written += [
            tree_sql.append(operation, applied),
            tree_sql.change_tree(applied, (message.id,), apart),
        ]
        self._states[message.id] = message.status.state
        self._metadata[message.id] = message.metadata
        self._touched.add(message.id)
        self._turn = max(self._turn, message.turn)

    async def _leave(self, message_id: str, status: Status) -> None:
        """A turn that waits for people ends, since something follows it or nobody can answer it any more."""
        calls = [call for call in self._calls if call.message_id == message_id]
        row = await self._transaction.row("part_count", message_id)
        assert row is not None, "bug: a count is a row"
        results = CommitResults(
            message_id=message_id,
            start=row["parts"],
            call_ids=tuple(call.call_id for call in calls),
            results=tuple(map(last_result, calls)),
        )
        cancelled = Decision(resolution="cancelled")
        undecided = [call.call_id for call in calls if awaits_decision(call)]
        operations: list[Operation] = [Decide(call_id=call_id, decision=cancelled) for call_id in undecided]
        operations += [results, SetStatus(message_id=message_id, status=status)]
        for operation in operations:
            self._note(operation)
            self.written.append(batch_sql.to_json(operation, self._coalesced))

    async def _known(self, tree: Tree, operation: ImportMessages) -> KnownMessages:
        """What is there of what an import names, and what is in it, read in one statement and under the lock."""
        running = {name for name, state in self._states.items() if state == "running"}
        named = named_in(tree, operation, self._thread["thread_id"])
        ids = [name for name in named if name not in self._touched and name not in running]
        rows = await self._transaction.rows("message_content", ids) if ids else []
        calls: defaultdict[str, list[OpenCall]] = defaultdict(list)
        for call in self._calls:
            calls[call.message_id].append(call)
        return KnownMessages({row["id"]: to_content(row, calls.get(row["id"], ())) for row in rows}, running)

    def _import(self, operation: ImportMessages, applied: Applied) -> None:
        rows = applied.imported
        replaced = {row.message.id for row in rows if row.known}
        self._close({*replaced, *applied.delta.removed})
        for row in rows:
            for call_id in tree_sql.opened(row):
                if call_id in self._open_calls:
                    raise UsageError(f"The call {call_id!r} is open already, in another message.")
                self._open_calls[call_id] = row.message.id
            self._states[row.message.id] = row.message.status.state
            self._metadata[row.message.id] = row.message.metadata
            self._turn = max(self._turn, row.message.turn)
        self.gone += replaced
        self._touched.update(row.message.id for row in rows)
        new = {row.message.id for row in rows if not row.known}
        self.written += [
            tree_sql.import_messages(operation, applied),
            tree_sql.change_tree(applied, new, operation.input_id),
        ]

    def _close(self, message_ids: set[str]) -> None:
        self._open_calls = {name: owner for name, owner in self._open_calls.items() if owner not in message_ids}

    async def _annotate(self, operation: AnnotateMessage) -> None:
        message_id = operation.message_id
        if message_id not in self._metadata:
            row = await self._transaction.row("message_metadata", self._thread["thread"], message_id)
            if row is not None and (self._tree is None or message_id in self._tree):
                self._metadata[message_id] = decoded(row["metadata"])
        if message_id not in self._metadata or (self._tree is not None and message_id not in self._tree):
            raise UnknownMessage(f"There is no message {message_id!r} in this thread.")
        self._touched.add(message_id)
        merged = {**(self._metadata[message_id] or {}), **operation.metadata}
        kept = {key: value for key, value in merged.items() if value is not None}
        self._metadata[message_id] = kept
        self.written.append(
            {
                "kind": operation.kind,
                "message_id": message_id,
                "metadata": encoded(kept or None),
                "inputs": [operation.input_id],
            }
        )
