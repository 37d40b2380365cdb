"""What holds of messages that came from outside: they are a tree, and no turn of theirs is under way.

The rules are those of assistant-ui's local runtime when it loads a history, and one that only a server needs: a turn
that was under way when the file was written is not, so it is paused or settled. What they made of a file they leave
alone when it comes again. docs/reference/export-format.md says them all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from perdure import ids
from perdure.approval import Decision
from perdure.codec import digest, dumps
from perdure.errors import UsageError
from perdure.exported_message import ListedMessage
from perdure.exported_part import size_of
from perdure.import_fields import LeftOut, names
from perdure.message_content import Entry
from perdure.messages import Outcome, Status, ToolCallPart, ToolResultPart
from perdure.tree_export import TreeItem, parents_first
from perdure.turn import DENIED, FOLLOWED, UNDECIDED

ORPHANS: Final = "Messages whose parent is not in the file were left out, with all below them"
TWICE: Final = "Messages that are in the file more than once are as they stand there last"
UNFINISHED: Final = "The turn had not ended when it was exported."
CANCELLED: Final = "The call has no result: the conversation went on without it."
EXPIRED: Final = "The call did not run: nobody had approved it in time."


# -- the tree --------------------------------------------------------------------------------------------------


def kept(listed: Sequence[ListedMessage], left_out: LeftOut) -> list[ListedMessage]:
    """The messages that hang on the root, parents first and else in the order of the file.

    Of a message that is listed twice the last entry counts: that is how an append-only history tells what became of
    one. What is below a message that is left out goes to the next one above that stays.

    Raises:
        UsageError: messages are below each other; or there are some, and none stays.
    """
    messages = _last_entries(listed, left_out)
    rooted = _rooted(messages, left_out)
    above: dict[str, str | None] = {}
    staying: list[ListedMessage] = []
    for item in parents_first([TreeItem(one.id, one.parent_id, one) for one in rooted], ()):
        message = item.content
        if message.parent_id in above:
            message.parent_id = above[message.parent_id]
        if message.left_out is None:
            staying.append(message)
        else:
            above[message.id] = message.parent_id
            left_out.add(message.left_out, message.id)
    if listed and not staying:
        raise UsageError("The file cannot be imported: it has messages, and none of them can be taken over.")
    return staying


def head_of(head_id: str | None, listed: Sequence[ListedMessage], staying: Sequence[ListedMessage]) -> str | None:
    """The head that is given. If that is none, or none that stays, the leaf below what stays above it, listed last.

    Above nothing known is the root, so then it is the last leaf of all.
    """
    parents = {message.id: message.parent_id for message in listed}
    children: dict[str | None, list[str]] = {}
    for message in staying:
        children.setdefault(message.parent_id, []).append(message.id)
    known = {message.id for message in staying}
    passed: set[str] = set()
    while head_id is not None and head_id not in known and head_id not in passed:
        passed.add(head_id)
        head_id = parents.get(head_id)
    if head_id in known and not passed:
        return head_id
    places = {message.id: place for place, message in enumerate(listed)}
    below = (name for name in _below(head_id if head_id in known else None, children) if name not in children)
    return max(below, key=places.__getitem__, default=None)


def _last_entries(listed: Iterable[ListedMessage], left_out: LeftOut) -> dict[str, ListedMessage]:
    """By id, where the first entry stands, or the last one if that has another parent: it has moved there."""
    messages: dict[str, ListedMessage] = {}
    for message in listed:
        if (earlier := messages.get(message.id)) is not None:
            left_out.add(TWICE, message.id)
            if earlier.parent_id != message.parent_id:
                del messages[message.id]
        messages[message.id] = message
    return messages


def _rooted(messages: Mapping[str, ListedMessage], left_out: LeftOut) -> list[ListedMessage]:
    children: dict[str | None, list[str]] = {}
    orphans: list[str] = []
    for message in messages.values():
        children.setdefault(message.parent_id, []).append(message.id)
        if message.parent_id is not None and message.parent_id not in messages:
            orphans.append(message.id)
    rooted = set(_below(None, children))
    lost = {name for orphan in orphans for name in _below(orphan, children)}
    round_in_circles = [name for name in messages if name not in rooted and name not in lost]
    if round_in_circles:
        raise UsageError(f"The file cannot be imported: messages are below each other: {names(round_in_circles)}.")
    for name in messages:
        if name in lost:
            left_out.add(ORPHANS, name)
    return [message for name, message in messages.items() if name in rooted]


def _below(top: str | None, children: Mapping[str | None, list[str]]) -> Iterator[str]:
    """A message and all below it; all there are, for the root."""
    waiting = list(children.get(None, ())) if top is None else [top]
    while waiting:
        yield (name := waiting.pop())
        waiting.extend(children.get(name, ()))


# -- turns -----------------------------------------------------------------------------------------------------


def settled(content: list[Entry], status: Status | None, *, followed: bool) -> tuple[list[Entry], Status]:
    """The content and the status of a turn from outside: paused if it can go on, else settled with all its calls.

    Args:
        content: its entries.
        status: where it stands, None if that is not said.
        followed: whether a message stands below it.
    """
    if any(entry.is_open for entry in content):
        content = [_decided(entry) if entry.is_open else entry for entry in content]
    status = _standing(content, status, followed)
    if status.state == "complete" or status.state == "incomplete":
        content = [_closed(entry) if isinstance(entry.part, ToolCallPart) else entry for entry in content]
    return content, status


def distinct_calls(messages: Sequence[ListedMessage]) -> None:
    """Give each open call an id of its own: that is what results and decisions find it by, in the whole thread.

    Providers use theirs again, in other answers of the same conversation.
    """
    used = Counter(
        entry.part.call_id for one in messages for entry in one.content if isinstance(entry.part, ToolCallPart)
    )
    for message in messages:
        for entry in message.content:
            if entry.is_open and isinstance(entry.part, ToolCallPart) and used[entry.part.call_id] > 1:
                call_id = ids.CALL_PREFIX + digest(f"{message.id}\x1f{entry.part.call_id}")[:32]
                entry.part = entry.part.with_(call_id=call_id)
                entry.interim = entry.interim and entry.interim.with_(call_id=call_id)


def _standing(content: Sequence[Entry], status: Status | None, followed: bool) -> Status:
    calls = [(entry.part, entry.is_open) for entry in content if isinstance(entry.part, ToolCallPart)]
    waits = any(is_open for _, is_open in calls)
    stopped = any(is_open and call.interrupt is not None for call, is_open in calls)
    if status is None:
        asks = any(call.interrupt is not None or _is_undecided(call) for call, _ in calls)
        if not asks and not waits:
            return Status(reason="unknown")
        status = Status(state="requires_action", reason="interrupt" if asks else None)
    if status.state == "complete" or status.state == "incomplete":
        return status
    if followed:
        return Status(state="incomplete", reason="cancelled", detail=FOLLOWED)
    if not waits:
        # Nothing is left to act on. A client that shows it as paused would show that for ever.
        is_done = status.reason == "interrupt"
        return (
            Status(reason="unknown") if is_done else Status(state="incomplete", reason="cancelled", detail=UNFINISHED)
        )
    if status.state == "requires_action" and (status.reason != "interrupt" or stopped):
        return status
    return Status(state="requires_action")


def _decided(entry: Entry) -> Entry:
    """The entry, with the result that its decision or its fault is already."""
    call = entry.part
    assert isinstance(call, ToolCallPart)
    decision = call.decision
    if call.refusal is not None:
        return Entry(call, call.refusal)
    if decision is None or decision.approved:
        return entry
    if decision.resolution == "expired":
        return Entry(call, _result(call, "expired", EXPIRED))
    if decision.resolution == "cancelled":
        return Entry(call, _result(call, "cancelled", UNDECIDED))
    return Entry(call, _result(call, "denied", dumps({"error": decision.reason or decision.text or DENIED})))


def _closed(entry: Entry) -> Entry:
    """The entry of a turn that has ended: nobody can decide about it any more, and it has a result."""
    call = entry.part
    assert isinstance(call, ToolCallPart)
    undecided = _is_undecided(call)
    if undecided:
        call = call.with_(decision=Decision(resolution="cancelled"))
    result = entry.result or _result(call, "cancelled", UNDECIDED if undecided else CANCELLED)
    return Entry(call, result) if undecided or entry.result is None else entry


def _is_undecided(call: ToolCallPart) -> bool:
    return call.approval is not None and call.decision is None


def _result(call: ToolCallPart, outcome: Outcome, content: str) -> ToolResultPart:
    return ToolResultPart(
        call_id=call.call_id, outcome=outcome, content=content, size_bytes=size_of(content), step=call.step
    )
