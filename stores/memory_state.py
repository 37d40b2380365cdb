"""The state of threads in memory: tails, calls, subscriptions, metadata, choices, views, children and keys."""

import secrets
from collections.abc import Iterator
from typing import Any

from perdure.codec import dumps, loads
from perdure.errors import CallNotOpen, ThreadNotFound
from perdure.messages import ToolResultPart
from perdure.records import KEY_BYTES, MAX_UNSTARTED, Choice, Deadline, OpenCall, Subscription, Tail, ThreadRecord, View
from stores.hints import Hints
from stores.memory_batch import tree_of_thread
from stores.memory_records import StoredMessage
from stores.memory_thread import MemoryThread
from stores.tree_change import followers, is_hidden


class MemoryState:
    """`perdure.ports.StateStore`, and the threads by their ids."""

    def __init__(self) -> None:
        self._threads: dict[str, MemoryThread] = {}
        self._children: dict[str, list[str]] = {}
        self._keys: dict[str, bytes] = {}
        self._hints = Hints()

    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        """See `perdure.ports.StateStore`."""
        thread = self._thread(thread_id)
        head = thread.messages.get(thread.record.head_id or "")
        last = head.message.status if head and head.message.role == "assistant" else None
        answered = _answered(thread)
        message = thread.running() or (answered[0] if answered else head)
        calls = thread.ordered_calls(message.message.id) if message else ()
        tree = tree_of_thread(thread)
        processed_ids = tuple((input_id, digest or "") for input_id, digest in thread.inputs.items())
        children = self._open_children(thread_id)
        unstarted = [child.thread_id for child in children if (child.version, child.turn) == (1, 0)]
        return Tail(
            thread=thread.record,
            message=message.message if message else None,
            parts=len(message.parts) if message else 0,
            step=calls[-1].step if calls else _next_step(thread, message),
            attempt=thread.steps[max(thread.steps)].attempt if thread.steps else 0,
            calls=calls,
            subscriptions=tuple(thread.subscriptions.values()),
            processed=processed_ids[max(0, len(processed_ids) - processed) :],
            children=len(children),
            unstarted=tuple(unstarted[-MAX_UNSTARTED:]),
            last=last,
            followers=followers(tree, message.message.id) if message else 0,
            hidden=message is not None and is_hidden(tree, message.message.id),
            paused=last is not None and last.state == "requires_action",
            remembered=thread.decisions,
            answered=any(one is not message for one in answered),
            deadline=_deadline(thread, message),
        )

    async def get_processed_ids(self, thread_id: str, ids: tuple[str, ...]) -> dict[str, str]:
        """See `perdure.ports.StateStore`."""
        thread = self._threads.get(thread_id)
        known = thread.inputs if thread else {}
        return {input_id: known[input_id] or "" for input_id in ids if input_id in known}

    async def get_active_subscriptions(self, thread_id: str) -> tuple[Subscription, ...]:
        """See `perdure.ports.StateStore`. Oldest first."""
        return tuple(self._threads[thread_id].subscriptions.values()) if thread_id in self._threads else ()

    async def get_call(self, thread_id: str, call_id: str) -> OpenCall:
        """See `perdure.ports.StateStore`."""
        if thread_id not in self._threads:
            raise CallNotOpen(call_id)
        return self._threads[thread_id].open_call(call_id)

    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> OpenCall:
        """See `perdure.ports.StateStore`."""
        call = self._thread(thread_id).start_call(call_id, owner)
        self._hints.wake(thread_id)
        return call

    async def stage_result(self, thread_id: str, result: ToolResultPart) -> ToolResultPart:
        """See `perdure.ports.StateStore`."""
        staged = self._thread(thread_id).stage_result(result)
        self._hints.wake(thread_id)
        return staged

    async def get_metadata(self, thread_id: str) -> dict[str, Any]:
        """See `perdure.ports.StateStore`."""
        return loads(dumps(self._threads[thread_id].metadata)) if thread_id in self._threads else {}

    async def set_metadata(self, thread_id: str, values: dict[str, Any]) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound."""
        thread = self._thread(thread_id)
        merged = {**thread.metadata, **loads(dumps(values))}
        thread.metadata = {key: value for key, value in merged.items() if value is not None}

    # -- what people are asked and shown -----------------------------------------------------------------------

    async def put_choice(self, thread_id: str, choice: Choice) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound too."""
        self._thread(thread_id).put_choice(choice)
        self._hints.wake(thread_id)

    async def get_choices(self, thread_id: str) -> tuple[Choice, ...]:
        """See `perdure.ports.StateStore`."""
        return self._threads[thread_id].waiting_choices() if thread_id in self._threads else ()

    async def remove_choice(self, thread_id: str, choice_id: str) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound."""
        self._thread(thread_id).remove_choice(choice_id)
        self._hints.wake(thread_id)

    async def put_view(self, thread_id: str, view_type: str, content: str) -> None:
        """See `perdure.ports.StateStore`."""
        self._thread(thread_id).put_view(View(view_type=view_type, content=content))
        self._hints.wake(thread_id)

    # -- children and keys -------------------------------------------------------------------------------------

    async def get_children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """See `perdure.ports.StateStore`."""
        return self._open_children(thread_id)

    async def get_key(self, name: str) -> bytes:
        """See `perdure.ports.StateStore`."""
        return self._keys.setdefault(name, secrets.token_bytes(KEY_BYTES))

    def _open_children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        records = (self._threads[child].record for child in self._children.get(thread_id, ()))
        return tuple(record for record in records if record.closed_at is None)

    # -- threads by id -----------------------------------------------------------------------------------------

    def _thread(self, thread_id: str) -> MemoryThread:
        if thread_id not in self._threads:
            raise ThreadNotFound(thread_id)
        return self._threads[thread_id]

    def _line(self, thread_id: str) -> Iterator[MemoryThread]:
        """The thread, its parent, and so on."""
        next_id: str | None = thread_id
        while next_id is not None:
            thread = self._thread(next_id)
            yield thread
            next_id = thread.record.parent_thread_id


def _answered(thread: MemoryThread) -> list[StoredMessage]:
    """Turns that waited for people and whose calls have their results, the first one first."""
    lacking = {call.message_id for _, call in thread.calls.values() if call.result is None}
    answered = {call.message_id for _, call in thread.calls.values()} - lacking
    waited = [thread.messages[name] for name in answered if thread.messages[name].state == "requires_action"]
    return sorted(waited, key=lambda stored: (stored.message.turn, stored.message.id))


def _deadline(thread: MemoryThread, loaded: StoredMessage | None) -> Deadline | None:
    """The first one of turns that wait for people, besides the one that is loaded."""
    due = (
        Deadline(call_id=call.call_id, due=call.due)
        for _, call in thread.calls.values()
        if call.result is None and call.due is not None
        if thread.messages[call.message_id] is not loaded
        if thread.messages[call.message_id].state == "requires_action"
    )
    return min(due, key=lambda one: (one.due, one.call_id), default=None)


def _next_step(thread: MemoryThread, message: StoredMessage | None) -> int:
    # A step that was discarded or sealed leaves no part, one that was flushed without a turn buffer no mark.
    if message is None or message.message.role != "assistant":
        return 0
    marked = thread.done.get(message.message.turn, -1) + 1
    return max(marked, message.parts[-1][1].step + 1 if message.parts else 0)
