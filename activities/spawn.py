"""The activities `spawn` and `stop_children`: child threads are made in the store, and stopped.

A child inherits its parent's path by reference: its first message hangs on the parent's, cut where the parent's open
calls begin. So making one costs the same under any parent. That first message is the call that made it, copied, with an
answer that is the child's own.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import cast

from temporalio import activity

from activities.approval_policy import check_approved
from activities.catalog import ToolCatalog
from activities.store_call import store_call
from activities.thread_mail import ORIGIN, ThreadMail
from perdure import ids
from perdure.agent import Agents
from perdure.batch import AppendMessage, SyncBatch
from perdure.builtins import SPAWN_THREAD, Threads
from perdure.codec import clip, digest, dumps, loads_object
from perdure.contract import (
    NAME_CHARS,
    SPAWN,
    STOP_CHILDREN,
    SpawnRequest,
    SpawnResult,
    StopChildrenRequest,
    ThreadStart,
)
from perdure.errors import CallNotOpen, SpawnPointNotFound, StaleWriter
from perdure.inputs import Event
from perdure.large_text import MISSING
from perdure.messages import EventPart, Message, Part, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.thread_texts import event_task, spawned, task, wrong_stack

_OPEN = ("running", "requires_action")

_GIVEN_UP = "The call was given up before it could spawn a thread."

_AT_ONCE = 20
"""Signals that are under way at the same time when many children are stopped."""


@dataclass(frozen=True)
class _Seed:
    """What a child begins with."""

    child: ThreadRecord
    origin_call_id: str
    parts: tuple[Part, ...]
    content: str


class SpawnActivities:
    """Makes child threads and stops them. All of it may run any number of times with the same effect."""

    def __init__(self, store: Store, agents: Agents, catalog: ToolCatalog, mail: ThreadMail) -> None:
        self._store = store
        self._agents = agents
        self._catalog = catalog
        self._mail = mail

    @activity.defn(name=SPAWN)
    async def spawn(self, request: SpawnRequest) -> SpawnResult:
        """Make the child in the store; the workflow starts it. The same call or event makes the same child."""
        chain = await store_call(self._store.get_ancestor_chain(request.thread_id))
        if request.event is None:
            refusal, instructions, call = await self._checked(request, chain)
            if refusal is not None or call is None:
                return SpawnResult(error=refusal)
            seed = _for_call(request, chain, call, instructions)
        else:
            closes = any(isinstance(toolset, Threads) for toolset in self._agents[request.agent].toolsets)
            seed = _for_event(request, chain, request.event, closes)
        if not await self._plant(seed):
            return SpawnResult(error=_GIVEN_UP)
        start = ThreadStart(
            title=seed.child.title,
            kind=seed.child.kind,
            parent_thread_id=seed.child.parent_thread_id,
            root_thread_id=seed.child.root_thread_id,
        )
        return SpawnResult(thread_id=seed.child.thread_id, start=start, content=seed.content)

    @activity.defn(name=STOP_CHILDREN)
    async def stop_children(self, request: StopChildrenRequest) -> None:
        """Interrupt the children that are not closed; each of them passes it on to its own (case B11)."""
        children = await store_call(self._store.get_children(request.thread_id))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def stop(child: ThreadRecord) -> None:
            async with turns:
                await self._mail.stop(child, request.reason)

        await asyncio.gather(*(stop(child) for child in children if request.child in (None, child.thread_id)))

    async def _checked(
        self, request: SpawnRequest, chain: tuple[ThreadRecord, ...]
    ) -> tuple[str | None, str, ToolCallPart | None]:
        """Why the call spawns nothing, or its instructions and the call."""
        agent = self._agents[request.agent]
        threads = (await self._catalog.of(agent, request.thread_id)).threads
        try:
            call = await self._store.get_call(request.thread_id, request.call_id)
        except CallNotOpen:
            return _GIVEN_UP, "", None
        check_approved(call)
        arguments = loads_object(call.arguments)
        stack = [thread.thread_id for thread in chain]
        given = _ids(arguments.get("child_of"))
        if given != stack:
            return wrong_stack(given, stack), "", None
        if threads is None or len(stack) > threads.max_depth:
            depth = threads.max_depth if threads else 0
            return (
                f"No thread was spawned: threads may be nested only {depth} deep, and this one is that deep already.",
                "",
                None,
            )
        part = ToolCallPart(call_id=call.call_id, tool=call.tool, arguments=call.arguments)
        return None, str(arguments["instructions"]), part

    async def _plant(self, seed: _Seed) -> bool:
        """Make the thread and its first message. Ids are those of the cause, so a repetition finds them.

        False if there is none, since the turn that asked for it was deleted meanwhile.
        """
        child = await store_call(self._made(seed.child))
        if child is None:
            return False
        await store_call(self._store.set_metadata(child.thread_id, {ORIGIN: seed.origin_call_id}))
        message = Message(
            id=ids.input_message_id(child.thread_id, "seed"),
            thread_id=child.thread_id,
            role="event",
            parts=seed.parts,
            input_id="seed",
        )
        batch = SyncBatch(
            thread_id=child.thread_id,
            number=1,
            sync_id="spawn",
            operations=(AppendMessage(message=message, digest=digest(dumps(seed.parts))),),
        )
        try:
            report = await self._store.append_messages(batch)
        except StaleWriter:
            # It runs already: an attempt before this one has planted it.
            return True
        if report.refused and any(isinstance(part, EventPart) and part.blob for part in seed.parts):
            # The event's words are not stored: the child is told so, and its event is not lost without a word.
            return await self._plant(replace(seed, parts=tuple(_without_blob(part) for part in seed.parts)))
        return True

    async def _made(self, child: ThreadRecord) -> ThreadRecord | None:
        """The thread in the store; None if it is not wanted any more.

        What it was to hang on may have been deleted since. With a call its turn is gone, and nobody waits for it. But
        an event that was taken in is to be handled: its child hangs on what its parent shows now.
        """
        while True:
            try:
                return await self._store.create_thread(child)
            except SpawnPointNotFound:
                if child.kind != "event" or child.parent_thread_id is None:
                    return None
                tail = await self._store.load_tail(child.parent_thread_id, processed=0)
                parent, is_open = tail.thread, tail.last is not None and tail.last.state in _OPEN
                # Of a turn that is not over a child inherits nothing: what it asks for has no answers yet.
                child = child.with_(
                    spawn_message_id=parent.head_id or parent.spawn_message_id,
                    spawn_parts=parent.spawn_parts if parent.head_id is None else 0 if is_open else None,
                )


def _without_blob(part: Part) -> Part:
    return part.with_(content=MISSING, blob=None) if isinstance(part, EventPart) else part


def _ids(value: object) -> list[str]:
    """The ids that were given as a stack; none if it is no list of texts."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else []


def _for_call(request: SpawnRequest, chain: tuple[ThreadRecord, ...], call: ToolCallPart, instructions: str) -> _Seed:
    child = _child(request, chain, request.call_id, instructions)
    stack = (*(thread.thread_id for thread in chain), child.thread_id)
    result = ToolResultPart(call_id=call.call_id, content=task(child.thread_id, stack, instructions))
    return _Seed(child, request.call_id, (call, result), spawned(child.thread_id))


def _for_event(request: SpawnRequest, chain: tuple[ThreadRecord, ...], event: Event, closes: bool) -> _Seed:
    child = _child(request, chain, f"event:{event.id}", event.content)
    stack = (*(thread.thread_id for thread in chain), child.thread_id)
    call = ToolCallPart(
        call_id=ids.call_id(child.thread_id, 0, 0, 0),
        tool=SPAWN_THREAD,
        arguments=dumps({"instructions": "Handle the event.", "child_of": list(stack[:-1])}),
    )
    told = EventPart(
        event_id=event.id,
        origin_call_id=event.call_id,
        content="" if event.blob else event.content,
        blob=event.blob,
        origin_tool=request.origin.tool if request.origin else None,
        origin_arguments=request.origin.arguments if request.origin else None,
    )
    result = ToolResultPart(call_id=call.call_id, content=event_task(child.thread_id, stack, closes=closes))
    return _Seed(child, event.call_id, (call, result, told), child.thread_id)


def _child(request: SpawnRequest, chain: tuple[ThreadRecord, ...], cause: str, title: str) -> ThreadRecord:
    parent = chain[-1]
    return ThreadRecord(
        thread_id=ids.child_thread_id(parent.thread_id, cause),
        agent=parent.agent,
        tenant=parent.tenant,
        kind="child" if request.event is None else "event",
        title=clip(" ".join(title.split()), NAME_CHARS) or None,
        parent_thread_id=parent.thread_id,
        root_thread_id=chain[0].thread_id,
        spawn_message_id=request.message_id,
        spawn_parts=request.parts,
    )
