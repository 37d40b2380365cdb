"""A batch at work on a draft of its thread in memory, and what it does to the message tree."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from perdure.approval import Decision
from perdure.batch import (
    AppendMessage,
    CloseThread,
    CommitResults,
    Decide,
    ImportMessages,
    Operation,
    Refused,
    StoreLateResult,
    SyncBatch,
    TreeReport,
    changes_tree,
)
from perdure.codec import dumps
from perdure.errors import ContentConflict, StoreError, UsageError
from perdure.messages import Message, Status, ToolResultPart
from stores.blob_names import blobs_named
from stores.imported_content import StoredContent, touched
from stores.late_result import NoSuchCall
from stores.left_turn import CLOSED, LEFT, awaits_decision, last_result, unanswered
from stores.memory_records import StoredMessage, kept
from stores.memory_thread import MemoryThread
from stores.title import is_named_after, words_of
from stores.tree_change import Applied, Tree, TreeRow, apply, input_of, is_gone, of_tree, report, tree_of
from stores.tree_import import ImportedRow, KnownMessages, named_in

Anchor = tuple[str | None, int | None]
"""A message that a path goes on to, and how many of its parts are on the path, None for all."""


class MemoryBatch:
    """Applies operations to `draft`, in order, and notes what is to become of the other threads.

    `heirs` are removed messages, each with the one that child threads inherit up to instead; at and below `changed`, as
    it was before, no summary holds; `answered` have got a late result; `freed` may be names of blobs, which the content
    that is gone has named.
    """

    def __init__(self, draft: MemoryThread, batch: SyncBatch, taken: Collection[str]) -> None:
        self.draft = draft
        self.heirs: dict[str, str | None] = {}
        self.changed: set[str] = set()
        self.answered: set[str] = set()
        self.freed: set[str] = set()
        self._operations = batch.operations
        self._taken = taken
        self._touched: set[str] = set()
        self._tree = tree_of_thread(draft) if any(map(changes_tree, batch.operations)) else None
        if draft.spent_blob is not None:
            self.freed.add(draft.spent_blob)
            draft.spent_blob = None

    def run(self) -> Refused | None:
        """Apply everything; None, or what the tree does not allow: then the draft is of no use any more."""
        for operation in self._operations:
            known = input_of(operation)
            if known is not None:
                self.draft.inputs[known[0]] = known[1]
            try:
                self._apply(operation)
            except NoSuchCall as error:
                return error.refused
            except UsageError as error:
                if known is None:
                    raise StoreError(f"bug: nobody asked for what the tree does not allow. {error}") from error
                if is_gone(self._tree, operation) and self._is_done(*known):
                    return Refused(input_id=known[0])
                return Refused(input_id=known[0], detail=str(error))
        return None

    def _is_done(self, input_id: str, digest: str | None) -> bool:
        """Whether the same was done before under another id, in this batch or in an earlier one."""
        return any(name != input_id and known == digest for name, known in self.draft.inputs.items())

    def report(self) -> TreeReport | None:
        """How the tree stands now, if an operation concerned it."""
        return tree_report(self.draft, self._operations, self._tree) if self._tree is not None else None

    def anchor(self, message_id: str | None) -> Anchor:
        """What is stored for a parent in the tree: the root stands for what the thread inherits."""
        record = self.draft.record
        return (message_id, None) if message_id is not None else (record.spawn_message_id, record.spawn_parts)

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, AppendMessage) and (
            operation.message.id in self._taken or operation.message.id in self.draft.messages
        ):
            raise ContentConflict(f"This id is taken already; what is stored stays. Message {operation.message.id}")
        if isinstance(operation, CloseThread):
            for message_id, stored in list(self.draft.messages.items()):
                if stored.state == "requires_action":
                    self._leave(message_id, CLOSED)
        in_tree = of_tree(operation)
        if self._tree is not None:
            owners = {call_id: call.message_id for call_id, (_, call) in self.draft.calls.items()}
            self._touched.update(touched(operation, owners))
        if self._tree is None or in_tree is None:
            shape = self.draft.shape
            self.draft.apply(operation)
            if isinstance(operation, StoreLateResult) and operation.message_id and self.draft.shape != shape:
                self.answered.add(operation.message_id)
            return
        known = self._known(self._tree, in_tree) if isinstance(in_tree, ImportMessages) else None
        applied = apply(self._tree, in_tree, self.draft.record.thread_id, self.draft.record.turn, known)
        places = {node.id: node.place for node in applied.delta.nodes}
        if isinstance(operation, AppendMessage):
            self._append(operation, applied.parent_id, places[operation.message.id])
        for row in applied.imported:
            self._import(row, places.get(row.message.id))
        self._remove(applied)
        self._write(applied)
        if isinstance(operation, ImportMessages):
            self.draft.spent_blob = operation.blob

    def _append(self, operation: AppendMessage, parent_id: str | None, place: int) -> None:
        above = self.draft.messages.get(parent_id or "")
        if changes_tree(operation) and above is not None and above.state == "requires_action":
            self._leave(above.message.id, LEFT)
        self.draft.add_message(self._under(operation.message, parent_id), place)

    def _under(self, message: Message, parent_id: str | None) -> Message:
        stored_id, parts = self.anchor(parent_id)
        return message.with_(parent_id=stored_id, parent_parts=parts)

    def _leave(self, message_id: str, status: Status) -> None:
        self._touched.add(message_id)
        calls = self.draft.ordered_calls(message_id)
        for call in calls:
            if awaits_decision(call):
                self.draft.apply(Decide(call_id=call.call_id, decision=Decision(resolution="cancelled")))
        results = tuple(map(last_result, calls))
        call_ids = tuple(call.call_id for call in calls)
        start = len(self.draft.messages[message_id].parts)
        self.draft.apply(CommitResults(message_id=message_id, start=start, call_ids=call_ids, results=results))
        self.draft.set_status(message_id, status)

    # -- what an operation changed in the tree -----------------------------------------------------------------

    def _write(self, applied: Applied) -> None:
        draft, delta = self.draft, applied.delta
        for node in delta.nodes:
            stored = draft.messages[node.id]
            if stored.place != node.place:
                message = self._under(stored.message, node.parent_id)
                draft.messages[node.id] = replace(stored, message=message, place=node.place)
        for parent_id, child_id in delta.remembered:
            if parent_id is None:
                draft.remembered = child_id
            else:
                draft.messages[parent_id] = replace(draft.messages[parent_id], remembered=child_id)
        highest = max((node.place for node in delta.nodes), default=0)
        draft.record = draft.record.with_(head_id=delta.head_id, seq=max(draft.record.seq, highest))
        self.changed.update(applied.changed)
        if applied.redraws:
            draft.redraw(reshape=applied.reshapes)

    def _remove(self, applied: Applied) -> None:
        removed = set(applied.delta.removed)
        for message_id in removed:
            stored = self.draft.messages.pop(message_id)
            self._forget(stored)
            if stored.message.role == "assistant":
                self.draft.end_turn(stored.message.turn)
            if stored.message.input_id in self.draft.inputs:
                self.draft.inputs[stored.message.input_id] = None
        self.heirs = {name: applied.heir_id if heir in removed else heir for name, heir in self.heirs.items()}
        self.heirs.update(dict.fromkeys(removed, applied.heir_id))

    def _forget(self, stored: StoredMessage) -> None:
        """Nothing is kept of a message's content: no blob that only it names, no argument of its calls, no title."""
        words = words_of(part for _, part in stored.parts) if stored.message.role != "assistant" else ()
        if any(is_named_after(self.draft.record.title, part, self.draft.blobs) for part in words):
            self.draft.record = self.draft.record.with_(title=None)
        self.freed |= blobs_named(dumps(part) for _, part in stored.parts)
        for call in self.draft.ordered_calls(stored.message.id):
            self.freed |= blobs_named(dumps(result) for result in (call.result, call.interim))
        self.draft.drop_calls(stored.message.id)
        for _, part in stored.parts:
            if part.kind == "tool_call" and part.call_id in self.draft.subscriptions:
                known = self.draft.subscriptions[part.call_id]
                self.draft.subscriptions[part.call_id] = known.with_(arguments="{}")
        self.draft.forget_providers(stored.message.id, stored.message.turn)

    # -- imports -----------------------------------------------------------------------------------------------

    def _known(self, tree: Tree, operation: ImportMessages) -> KnownMessages:
        named = {name: self.draft.messages[name] for name in named_in(tree, operation, self.draft.record.thread_id)}
        running = {name for name, stored in named.items() if stored.state == "running"}
        content = {
            name: StoredContent(
                status=stored.message.status,
                parts=[dumps(part) for _, part in stored.parts],
                metadata=stored.message.metadata,
                source_id=stored.message.source_id,
                options=stored.message.options,
                calls=self.draft.ordered_calls(name),
            )
            for name, stored in named.items()
            if name not in running and name not in self._touched
        }
        return KnownMessages(content, running)

    def _import(self, row: ImportedRow, place: int | None) -> None:
        message = row.message
        self._touched.add(message.id)
        if row.known:
            self._replace(row)
        else:
            self.draft.add_message(self._under(message, message.parent_id), place)
            stored = self.draft.messages[message.id]
            self.draft.messages[message.id] = replace(stored, created_at=row.created_at, given_id=row.given_id)
        if message.role == "assistant" and message.status.state in ("running", "requires_action"):
            self._open_calls(message, {result.call_id: result for result in row.interim})

    def _open_calls(self, message: Message, interim: Mapping[str, ToolResultPart]) -> None:
        draft = self.draft
        for call in unanswered(message.parts):
            call_id = call.part.call_id
            if call_id in draft.calls:
                raise UsageError(f"The call {call_id!r} is open already, in another message.")
            draft.open(message.id, message.turn, call.part.step, call.index, call.position, call.part)
            if call_id in interim:
                seq, opened = draft.calls[call_id]
                draft.calls[call_id] = (seq, opened.with_(interim=kept(interim[call_id])))

    def _replace(self, row: ImportedRow) -> None:
        stored, new = self.draft.messages[row.message.id], row.message
        self._forget(stored)
        if new.turn and stored.message.turn != new.turn:
            self.draft.end_turn(stored.message.turn)
        message = stored.message.with_(
            turn=new.turn or stored.message.turn,
            status=new.status,
            metadata=new.metadata,
            source_id=new.source_id,
            options=new.options,
        )
        changed = self.draft.next_seq()
        self.draft.messages[new.id] = replace(stored, message=kept(message), changed=changed, parts=(), decided=())
        self.draft.add_parts(new.id, 0, new.parts)
        self.draft.record = self.draft.record.with_(turn=max(self.draft.record.turn, message.turn))


def tree_of_thread(thread: MemoryThread) -> Tree:
    """The thread's tree, its shape only."""
    rows = (
        TreeRow(name, stored.message.parent_id, stored.place, stored.message.role)
        for name, stored in thread.messages.items()
    )
    remembered: dict[str | None, str] = {
        name: stored.remembered for name, stored in thread.messages.items() if stored.remembered is not None
    }
    if thread.remembered is not None:
        remembered[None] = thread.remembered
    return tree_of(rows, remembered, thread.record.head_id)


def tree_report(thread: MemoryThread, operations: Iterable[Operation], tree: Tree | None = None) -> TreeReport:
    """How the thread's tree stands after these operations."""
    tree = tree_of_thread(thread) if tree is None else tree
    running = thread.running()
    head = thread.messages.get(tree.head_id or "")
    return report(
        tree,
        head.message.status if head else None,
        running.message.id if running else None,
        thread.record.turn,
        operations=operations,
        title=thread.record.title,
    )
