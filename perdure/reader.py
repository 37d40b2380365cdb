"""Threads as they are read: everything comes from the store.

So reading wakes nothing, any number of readers costs the workflow nothing, and a conversation can be read while no
worker runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from perdure.approval import RememberedDecision
from perdure.errors import StoreUnavailable, UnknownMessage, UsageError, ViewOutdated
from perdure.large_text import LargeTexts
from perdure.messages import Message
from perdure.policy import REMEMBERED_DECISIONS
from perdure.ports import Store
from perdure.records import Change, Choice, Counts, Path, Snapshot, Spending, StoredTree, ThreadRecord
from perdure.stored_tree import Branch, beginning, leaf, shape
from perdure.transcript import transcript
from perdure.waiting import PendingApproval
from perdure.watch import View, WatchEvent

_RECONNECT_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_PAGE: Final = 1000
_AGAIN_S: Final = 0.05
"""What was changed while it was read is read again after this: the change is over by then, or the database is slow."""


class ThreadReader:
    """Reads and watches threads.

    Args:
        store: where the conversations are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._texts = LargeTexts(store)

    async def history(self, thread_id: str, *, whole: bool = True) -> list[Message]:
        """The conversation, oldest message first, with large texts in full. Raises ThreadNotFound.

        Without `whole`, only what no summary stands for: that is what the model reads after the summary.
        """
        path = await self.store.load_history_with_ancestors(thread_id, whole=whole)
        return [await self._texts.message(thread_id, message) for message in path.messages]

    async def transcript(self, thread_id: str) -> str:
        """The conversation as plain text, whole. Raises ThreadNotFound."""
        return transcript(await self.history(thread_id))

    async def counts(self, thread_id: str) -> Counts:
        """How many messages the conversation has, exactly: in all, of each role, and those that the model still reads.

        What a child thread inherits is counted too. Nothing need run. Raises ThreadNotFound.
        """
        return await self.store.get_message_counts(thread_id)

    async def usage(self, thread_id: str, turn: int | None = None) -> Spending:
        """What was spent so far: by the thread, its tree of threads, its tenant, and by a turn if one is named.

        Nothing need run; what streams at this moment is not in it. Raises ThreadNotFound.
        """
        return await self.store.get_spending(thread_id, turn)

    async def view(self, thread_id: str) -> View:
        """The thread as it is now, with what streams and what runs. Raises ThreadNotFound."""
        view = View()
        view.apply(await self._snapshot(thread_id))
        return view

    async def children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """The thread's child threads that are not closed, oldest first. Raises ThreadNotFound."""
        await self.store.get_thread(thread_id)
        return await self.store.get_children(thread_id)

    async def tree(self, thread_id: str, *, parts: bool = True) -> StoredTree:
        """All branches of the conversation, with large texts in full; without `parts` only the messages themselves.

        Raises ThreadNotFound. What a child thread inherits is not among them.
        """
        tree = await self.store.load_tree(thread_id, parts=parts)
        messages = [one.with_(message=await self._texts.message(thread_id, one.message)) for one in tree.messages]
        return tree.with_(messages=tuple(messages))

    async def branches(self, thread_id: str, message_id: str) -> tuple[Branch, ...]:
        """The message and those that stand beside it, in order. Raises ThreadNotFound, UnknownMessage."""
        while True:
            tree = shape(await self.store.load_tree(thread_id, parts=False))
            parent_id = tree.get(message_id).parent_id
            try:
                texts = [await self._beginning(thread_id, parent_id, name) for name in tree.branches(message_id)]
            except UnknownMessage:  # one was deleted since the tree was read
                await asyncio.sleep(_AGAIN_S)
                continue
            return tuple(
                Branch(
                    message_id=name,
                    role=tree.get(name).content.role,
                    status=tree.get(name).content.status,
                    text=text,
                    selected=name == tree.remembered(parent_id),
                )
                for name, text in zip(tree.branches(message_id), texts, strict=True)
            )

    async def _beginning(self, thread_id: str, parent_id: str | None, message_id: str) -> str:
        """The first words of a message, read with it alone: a tree may be large."""
        path = await self.store.load_history_with_ancestors(thread_id, parent_id, message_id, whole=True)
        return beginning(await self._texts.message(thread_id, path.messages[-1])) if path.messages else ""

    async def approvals(self, thread_id: str) -> tuple[PendingApproval, ...]:
        """What waits for somebody to approve it on the shown branch, in the order of the calls. Raises ThreadNotFound.

        `client.approve` and `client.deny` decide; each call by itself, by whomever.
        """
        return (await self.view(thread_id)).approvals

    async def lasting_decisions(self, thread_id: str) -> tuple[RememberedDecision, ...]:
        """What people have decided for calls to come, the oldest first. Raises ThreadNotFound."""
        # Those before the newest so many hold no longer, and the store may have them still.
        return (await self.store.load_tail(thread_id, processed=0)).remembered[-REMEMBERED_DECISIONS:]

    async def watch(self, thread_id: str, after: int | None = None) -> AsyncGenerator[WatchEvent, None]:
        """What happens in a thread from now on, without end: a snapshot first, then one change after the other.

        Where the conversation becomes another one (a branch is switched, a message deleted) there is a new snapshot,
        in the place of all changes up to it. Any number of readers may watch; nothing of it goes through Temporal.
        Snapshots hold the whole conversation; their summary is what the model reads in place of its beginning.
        With `after`, the sequence number of the last event that was seen, the first snapshot is left out and the
        changes go on from there. A database that is away is waited for, and no change is left out or told twice.
        `perdure.watch.View` folds the events.

        Raises:
            ThreadNotFound: if there is no such thread.
            StoreUnavailable: if the database cannot be reached at the start.
        """
        if after is None:
            snapshot = await self._snapshot(thread_id)
            yield snapshot
            after = snapshot.seq
        failures = 0
        while True:
            try:
                async with aclosing(self.store.listen(thread_id)) as hints:
                    async for _ in hints:
                        async with aclosing(self._since(thread_id, after)) as events:
                            async for event in events:
                                yield event
                                after = event.seq
                        failures = 0
            except StoreUnavailable:
                # Rows are the truth, and `after` says which of them were told: going on is only a matter of time.
                await asyncio.sleep(_RECONNECT_S[min(failures, len(_RECONNECT_S) - 1)])
                failures += 1

    async def _since(self, thread_id: str, after: int) -> AsyncGenerator[WatchEvent, None]:
        """What has happened until now."""
        more = True
        while more:
            changes = await self.store.read_changes(thread_id, after, _PAGE)
            more = len(changes) == _PAGE
            if any(change.tree for change in changes):
                # Also in the place of those before it in the page: they may belong to a path that nobody has shown.
                snapshot = await self._snapshot(thread_id)
                yield snapshot
                after = snapshot.seq
            else:
                for change in changes:
                    yield await self._told(thread_id, change)
                    after = change.seq

    async def _snapshot(self, thread_id: str) -> Snapshot:
        snapshot = await self._texts.snapshot(await self._whole(thread_id))
        return snapshot.with_(choices=tuple(map(asked, snapshot.choices)))

    async def _whole(self, thread_id: str) -> Snapshot:
        """A snapshot with what its summary stands for: a reader who joins later sees what all others see."""
        while True:
            snapshot = await self.store.snapshot(thread_id)
            if snapshot.path.summary is None:
                return snapshot
            path = await self.store.load_history_with_ancestors(thread_id, whole=True)
            if path.shape == snapshot.path.shape and (messages := _uncut(path, snapshot.path)) is not None:
                return snapshot.with_(path=snapshot.path.with_(messages=messages))
            # The conversation became another one between the two, or what was summed up has gone on.
            await asyncio.sleep(_AGAIN_S)

    async def _told(self, thread_id: str, change: Change) -> Change:
        told = await self._texts.change(thread_id, change)
        return told.with_(choice=asked(told.choice)) if told.choice else told

    async def _views(self, thread_id: str) -> AsyncGenerator[tuple[View, WatchEvent], None]:
        """The thread as a reader sees it, after each event."""
        while True:
            view = View()
            try:
                async with aclosing(self.watch(thread_id)) as events:
                    async for event in events:
                        view.apply(event)
                        yield view, event
            except ViewOutdated:
                continue

    async def _turn(
        self,
        thread_id: str,
        message_id: str | None,
        find: Callable[[View], Message | None],
        is_done: Callable[[Message], bool],
    ) -> Message:
        """Watch until the turn that `find` picks is done: on the shown branch, or on that of `message_id` (if given).

        Raises UsageError if that message, or its turn, is deleted.
        """
        is_there = is_answered = False
        async with aclosing(self._views(thread_id)) as views:
            async for shown, event in views:
                if message_id is None or shown.message(message_id):
                    view: View | None = shown
                elif isinstance(event, Snapshot) or event.message:
                    # Nothing else is told of other branches that could matter here.
                    view = await self._branch(thread_id, message_id)
                else:
                    continue
                turn = find(view) if view else None
                if is_answered and turn is None and view is shown and message_id is not None:
                    # The answer was read from the store, which is ahead of what was told of the shown branch so far.
                    view = await self._branch(thread_id, message_id)
                    turn = find(view) if view else None
                if turn and is_done(turn):
                    return turn
                if message_id is not None and ((is_there and view is None) or (is_answered and turn is None)):
                    raise UsageError(
                        f"The message {message_id!r} or its answer was deleted; it is waited for no longer."
                    )
                is_there, is_answered = view is not None, turn is not None
        raise AssertionError("bug: a watch ended by itself")

    async def _branch(self, thread_id: str, message_id: str) -> View | None:
        """A message that is not shown, with what is below it; None if there is none."""
        while True:
            tree = shape(await self.store.load_tree(thread_id, parts=False))
            if message_id not in tree:
                return None
            above, end = tree.get(message_id).parent_id, leaf(tree, message_id)
            try:
                path = await self.store.load_history_with_ancestors(thread_id, above, end, whole=True)
                break
            except UnknownMessage:  # it was deleted since the tree was read
                await asyncio.sleep(_AGAIN_S)
        view = View()
        view.show([await self._texts.message(thread_id, message) for message in path.messages])
        return view

    async def _until(self, thread_id: str, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Ask after each change of the thread, until the answer is yes."""
        async with aclosing(self.store.listen(thread_id)) as hints:
            async for _ in hints:
                if await is_done():
                    return


def _uncut(whole: Path, path: Path) -> tuple[Message, ...] | None:
    """The messages of a path together with those that its summary stands for; None if they do not belong together.

    Above the point of the summary all is as it was when the path was read, since its shape is. The message of the point
    may have gone on: of what it got after the path was read its changes tell, so none of that may be here already.
    """
    summary = path.summary
    assert summary is not None
    at = next((at for at, message in enumerate(whole.messages) if message.id == summary.message_id), None)
    if at is None:
        return None
    covered, below = whole.messages[at], path.messages
    if below and below[0].id == covered.id:
        first, below = below[0], below[1:]
        covered = first.with_(parts=covered.parts[: summary.parts] + first.parts)
    elif len(covered.parts) > summary.parts:
        return None
    return (*whole.messages[:at], covered, *below)


def asked(choice: Choice) -> Choice:
    """A question as readers see it: the address that its answer goes to is between the thread and the tool's server."""
    return choice.with_(response_url=None)
