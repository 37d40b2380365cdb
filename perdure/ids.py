"""Deterministic ids. The same turn, step or input gives the same id in every process and on every replay.

Ids that a provider makes are kept as extra data only: they repeat between replies and between providers.
"""

import uuid

NAMESPACE = uuid.UUID("7d1f5c0e-54b4-5a8e-9a37-0d5b3c1e8f42")
WORKFLOW_PREFIX = "thread:"
CALL_PREFIX = "call_"


def workflow_id(thread_id: str) -> str:
    """The Temporal workflow id of a thread."""
    return WORKFLOW_PREFIX + thread_id


def thread_id(workflow_id: str) -> str:
    """The thread of a Temporal workflow id."""
    return workflow_id.removeprefix(WORKFLOW_PREFIX)


def input_message_id(thread: str, input_id: str) -> str:
    """The id of the message that an input becomes."""
    return _uuid(thread, "input", input_id)


def turn_message_id(thread: str, turn: int) -> str:
    """The id of the assistant message of a turn."""
    return _uuid(thread, "turn", str(turn))


def call_id(thread: str, turn: int, step: int, index: int) -> str:
    """The id of the `index`-th tool call of a step; letters, digits and `_`, 37 characters, as every provider takes."""
    return CALL_PREFIX + uuid.UUID(_uuid(thread, "call", str(turn), str(step), str(index))).hex


def imported_message_id(thread: str, given_id: str) -> str:
    """The id of a message that came into a thread from outside under another id."""
    return _uuid(thread, "import", given_id)


def child_thread_id(thread: str, cause: str) -> str:
    """The id of the child thread that a call or an event makes; `cause` is the id of that."""
    return _uuid(thread, "child", cause)


def compaction_id(thread: str) -> str:
    """The Temporal workflow id of a thread's compactions, of which there is one at a time."""
    return "compaction:" + thread


def summary_id(thread: str, message_id: str, parts: int | None, number: int) -> str:
    """The id of the summary that a compaction makes: the `number`-th that was asked for, up to this point."""
    return _uuid(thread, "summary", message_id, "" if parts is None else str(parts), str(number))


def _uuid(*names: str) -> str:
    # JSON-like quoting is not needed: the parts are joined by a character that no caller-given id may contain.
    return str(uuid.uuid5(NAMESPACE, "\x1f".join(names)))
