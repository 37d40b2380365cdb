"""What an import does to the message tree, and which messages it adds or changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from perdure.batch import ImportedMessage, ImportMessages
from perdure.errors import UnknownMessage, UsageError
from perdure.ids import imported_message_id
from perdure.messages import Message, Role, ToolResultPart
from perdure.tree import MessageTree, TreeDelta
from perdure.tree_export import TreeExport, TreeItem
from stores.imported_content import StoredContent


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A message of an import, its ids and its parent those of the tree, None at the root; its turn is its own.

    One that was there already (`known`) keeps its role, its time, its input and its `given_id`; its turn too, unless
    the import says of it that it can go on: then it has a new one, which no late writer of the old one can reach, and
    `message.turn` is not 0. `interim` are preliminary results of its open calls.
    """

    message: Message
    known: bool
    created_at: datetime | None
    given_id: str | None
    interim: tuple[ToolResultPart, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownMessages:
    """Of messages that are there, what their content is, and which of them run.

    Those of which nothing is said here are taken for changed.
    """

    content: Mapping[str, StoredContent]
    running: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Import:
    """What an import did to the tree; `rows` and `changed` are as `Applied` has them."""

    delta: TreeDelta[Role]
    rows: tuple[ImportedRow, ...]
    changed: tuple[str, ...]
    moves_head: bool


def named_in(tree: MessageTree[Role], operation: ImportMessages, thread_id: str) -> tuple[str, ...]:
    """The messages of the thread that an import names."""
    return tuple({own: None for own in _own_ids(tree, operation, thread_id).values() if own in tree})


def import_messages(
    tree: MessageTree[Role], operation: ImportMessages, thread_id: str, turn: int, known: KnownMessages
) -> Import:
    """Apply an import to the tree; `turn` is the thread's newest.

    Ids of this thread's messages stay, and all others become ones of its own: a file may be imported twice. A message
    that is as the file tells it has no row, and one that runs has none either: its turn is being written.

    Raises UsageError: then the whole batch must be refused.
    """
    ids = _own_ids(tree, operation, thread_id)
    head_before, before = tree.head_id, frozenset(name for name in ids.values() if name in tree)
    # By their ids here: a file may name a message as it is known here and as files call it. The last one counts.
    last = {ids[item.message.id]: item for item in operation.messages}
    everything = () if last else tuple(tree)
    delta = tree.import_messages(_export(tree, operation, ids, thread_id))
    rows: list[ImportedRow] = []
    for own_id, item in last.items():
        told = _told(item, own_id, ids, tree, thread_id)
        is_known = own_id in before
        if is_known and (own_id in known.running or _is_as_told(known.content.get(own_id), told, item)):
            continue
        goes_on = told.status.state in ("running", "requires_action")
        answers = told.role == "assistant" and (goes_on or not is_known)
        turn += answers
        rows.append(
            ImportedRow(
                message=told.with_(turn=turn if answers else 0),
                known=is_known,
                created_at=None if item.created_at is None else _time(item.created_at, item.message.id),
                given_id=item.message.id if item.message.id != own_id else None,
                interim=item.interim,
            )
        )
    moved = (node.id for node in delta.nodes if node.id in before)
    changed = dict.fromkeys((*everything, *(row.message.id for row in rows if row.known), *moved))
    return Import(delta, tuple(rows), tuple(changed), tree.head_id != head_before)


def _own_ids(tree: MessageTree[Role], operation: ImportMessages, thread_id: str) -> dict[str, str]:
    """The ids here of those that the file has."""
    given = (item.message.id for item in operation.messages)
    return {name: name if name in tree else imported_message_id(thread_id, name) for name in given}


def _export(
    tree: MessageTree[Role], operation: ImportMessages, ids: Mapping[str, str], thread_id: str
) -> TreeExport[Role]:
    def own(given: str | None, what: str) -> str | None:
        if given is None or given in tree:
            return given
        imported = ids.get(given) or imported_message_id(thread_id, given)
        if given not in ids and imported not in tree:
            raise UnknownMessage(f"{what} {given!r} is neither in what is imported nor in this thread.")
        return imported

    listed = {item.message.id: item.message for item in operation.messages}
    for given, message in listed.items():
        there = tree.get(ids[given]) if ids[given] in tree else None
        if there is not None and there.content != message.role:
            raise UsageError(
                f"Message {given!r} is there with the role {there.content!r} and cannot become {message.role!r}."
            )
    items: list[TreeItem[Role]] = [
        TreeItem(ids[given], own(message.parent_id, "The parent"), message.role) for given, message in listed.items()
    ]
    return TreeExport(tuple(items), own(operation.head_id, "The message"))


def _told(
    item: ImportedMessage, own_id: str, ids: Mapping[str, str], tree: MessageTree[Role], thread_id: str
) -> Message:
    source = item.message.source_id
    return item.message.with_(
        id=own_id,
        thread_id=thread_id,
        parent_id=tree.get(own_id).parent_id,
        parent_parts=None,
        turn=0,
        source_id=ids.get(source, source) if source is not None else None,
        input_id=None,
    )


def _is_as_told(stored: StoredContent | None, told: Message, item: ImportedMessage) -> bool:
    return stored is not None and stored.equals(told, item.interim)


def _time(text: str, given: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"The time {text!r} of message {given!r} is not in the format of ISO 8601.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
