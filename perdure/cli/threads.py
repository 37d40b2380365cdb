"""The commands that do one thing to one thread: interrupt, stop, status, children, close."""

import asyncio
import getpass
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError
from temporalio.runtime import Runtime, TelemetryConfig

from perdure.cli.approval_words import call_line, request_lines
from perdure.cli.printable import one_line
from perdure.cli.questions import choice_lines
from perdure.client import PerdureClient
from perdure.codec import clip, dumps
from perdure.contract import Retry, SubscriptionStatus, ThreadStatus
from perdure.errors import ThreadNotFound, UsageError
from perdure.inputs import InputId
from perdure.ports import Store
from perdure.quantity import quantity
from perdure.records import Choice, ThreadRecord
from perdure.spending import usage_words
from perdure.stored_status import open_turn
from perdure.waiting import PendingApproval, call_state, ended_early, moment

_ID: Final = TypeAdapter[str](InputId)
_PATIENCE: Final = timedelta(seconds=30)
_TITLE_CHARS: Final = 60
_AT_ONCE: Final = 20
"""Threads that are asked for their status at the same time."""


def id_typed(text: str | None) -> str | None:
    """An id as it was typed, checked before anything is asked for it; None if it was left out.

    Raises:
        UsageError: if it cannot be one.
    """
    try:
        return None if text is None else _ID.validate_python(text)
    except ValidationError as error:
        shown = clip(text or "", _TITLE_CHARS)
        raise UsageError(
            f"{shown!r} cannot be an id: it has 1 to 200 characters, and no control characters."
        ) from error


Thread = Annotated[str, typer.Argument(help="The thread's id.", callback=id_typed)]
Json = Annotated[bool, typer.Option("--json", help="As JSON Lines: one JSON object in each line.")]


def interrupt(
    thread: Thread, reason: Annotated[str | None, typer.Option(help="Why, for whoever reads the thread.")] = None
) -> None:
    """Stop what a thread is doing, without waiting for it."""

    async def run(client: PerdureClient) -> None:
        # Looked for before: afterwards it may have ended already.
        turn, working = await _turn(client.store, thread), await _working_below(client.store, thread)
        await client.interrupt(thread, reason)
        if turn is None:
            typer.echo("The thread has not begun yet; it is told to stop as soon as a worker takes it up.")
        else:
            typer.echo(_stopped_words(turn, "is being stopped", working))

    with_client(run)


def stop(thread: Thread) -> None:
    """Stop what a thread is doing, and wait until the turn is settled. Its child threads are told to stop as well."""

    async def run(client: PerdureClient) -> None:
        typer.echo(await stop_thread(client, thread))

    with_client(run)


async def stop_thread(client: PerdureClient, thread_id: str) -> str:
    """Stop a thread, and say what was: its turn has ended, while its child threads end by themselves a little later."""
    # Looked for before: afterwards they may have ended already. What begins in between is stopped and not counted.
    working = await _working_below(client.store, thread_id)
    stopped = await client.stop(thread_id)
    return _stopped_words(stopped.turn, "is stopped", working)


def _stopped_words(turn: int, what: str, working: int) -> str:
    """What became of a turn, 0 if none was under way, and of so many threads below it that work."""
    told = f"told to stop: {quantity(working, 'child thread')} below it."
    if turn:
        return f"Turn {turn} {what}" + (f"; {told}" if working else ".")
    return f"No turn was running here; {told}" if working else "Nothing was running."


async def _turn(store: Store, thread_id: str) -> int | None:
    """The turn that is under way, as the store knows it; 0 if none is, None of a thread that was never taken up."""
    try:
        message = open_turn(await store.load_tail(thread_id, processed=0))
    except ThreadNotFound:
        return None
    return message.turn if message else 0


async def _working_below(store: Store, thread_id: str) -> int:
    """How many of the threads below one have a turn under way; the store knows it, so no worker is needed."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def below(parent: str) -> int:
        async with at_once:
            children = await store.get_children(parent)
        return sum(await asyncio.gather(*(at(child.thread_id) for child in children)))

    async def at(child: str) -> int:
        async with at_once:
            tail = await store.load_tail(child, processed=0)
        return (open_turn(tail) is not None) + (await below(child) if tail.children else 0)

    return await below(thread_id)


def status(
    thread: Thread, json: Annotated[bool, typer.Option("--json", help="As one JSON object, in one line.")] = False
) -> None:
    """Show what a thread is doing. One that hibernates is not woken for it."""

    async def run(client: PerdureClient) -> None:
        typer.echo(dumps(await client.status(thread)) if json else await show_status(client, thread))

    with_client(run)


def close(thread: Thread) -> None:
    """Close a thread for good: its turn is stopped, its subscriptions end, and it takes nothing more."""

    async def run(client: PerdureClient) -> None:
        before = await client.store.get_thread(thread)
        await client.close_thread(thread)
        typer.echo("The thread is closed." if before.closed_at is None else "The thread was closed already.")

    with_client(run)


def children(
    thread: Thread,
    json: Annotated[bool, typer.Option("--json", help="As JSON Lines: one thread in each line.")] = False,
) -> None:
    """Show the child threads of a thread as a tree, with what each does; closed ones are left out."""

    async def run(client: PerdureClient) -> None:
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def show(parent: str, depth: int) -> None:
            records = await client.children(parent)
            if not records and not depth and not json:
                typer.echo("No child threads.")

            async def state(record: ThreadRecord) -> ThreadStatus:
                async with at_once:
                    return await client.status(record.thread_id)

            for record, status in zip(records, await asyncio.gather(*map(state, records)), strict=True):
                live = {"state": status.state, "turn": status.turn}
                typer.echo(dumps(record.stated() | live) if json else "  " * depth + child_line(record, status))
                await show(record.thread_id, depth + 1)

        await show(thread, 0)

    with_client(run)


def child_line(record: ThreadRecord, status: ThreadStatus) -> str:
    """A child thread, for people: its id, what it does, since when it is there, and what it is for."""
    title = f" · {one_line(clip(record.title, _TITLE_CHARS))}" if record.title else ""
    return f"{one_line(record.thread_id)} · {record.kind} · {status.state} · turn {status.turn}{title}"


async def show_status(client: PerdureClient, thread_id: str) -> str:
    """What a thread is doing, for people, with what they are asked."""
    status = await client.status(thread_id)
    asks = any(call.state == "approval" for call in status.open_calls)
    return "\n".join(status_lines(status, await client.approvals(thread_id) if asks else ()))


def status_lines(status: ThreadStatus, approvals: Sequence[PendingApproval] = ()) -> list[str]:
    """What a thread is doing, for people."""
    last = status.last
    lines = [f"{status.state} · agent {one_line(status.agent)} · turn {status.turn}"]
    if status.state == "running":
        lines[0] += f", step {status.step + 1}"
    today = datetime.now(UTC).astimezone().date()
    lines += [retry_line(retry, today) for retry in status.retrying]
    if last is not None and last.state == "incomplete":
        lines.append(
            f"the last turn ended early: {ended_early(last)}" + (f" ({one_line(last.detail)})" if last.detail else "")
        )
    # What is asked about a call is told with all of it below.
    asked = {approval.call_id for approval in approvals}
    lines += [
        f"{call_state(call, None, today)}: {one_line(call.tool)}({one_line(call.preview)}) {one_line(call.call_id)}"
        for call in status.open_calls
        if call.call_id not in asked
    ]
    lines += [line for approval in approvals for line in approval_lines(status.thread_id, approval)]
    lines += [line for choice in status.choices for line in _question_lines(choice)]
    lines += map(subscription_line, status.subscriptions)
    if status.children:
        lines.append(f"child threads: `perdure children {one_line(status.thread_id)}`")
    if status.queued or status.deferred:
        lines.append(f"{quantity(status.queued, 'message')} queued, {quantity(status.deferred, 'event')} deferred")
    if status.dropped:
        lines.append(f"events or results dropped, since nothing waited for them: {status.dropped:,}")
    lines.append(", ".join(usage_words(status.usage)))
    return lines + [f"problem: {one_line(problem)}" for problem in status.problems]


def retry_line(retry: Retry, today: date) -> str:
    """What has failed and is tried again, for people."""
    at = "now" if retry.next_try is None else f"at {moment(retry.next_try, None, today)}"
    why = f": {one_line(retry.why)}" if retry.why else ""
    return f"retrying: {one_line(retry.what)}, attempt {retry.attempt} {at}{why}"


def approval_lines(thread_id: str, approval: PendingApproval) -> list[str]:
    """A call that waits for approval, what it asks, and the command that answers."""
    answer = f"`perdure approve {one_line(thread_id)} {one_line(approval.call_id)}`"
    return [f"? {call_line(approval)}", *request_lines(approval.request), f"  {answer}, or `perdure deny`"]


def _question_lines(choice: Choice) -> list[str]:
    if choice.kind == "oauth":
        return [f"open to sign in: {one_line(choice.auth_url or '')}"]
    return [f"question {one_line(choice.id)}: {one_line(choice.prompt)}", *choice_lines(choice)]


def subscription_line(known: SubscriptionStatus) -> str:
    """A subscription, for people."""
    paused = f", paused: {one_line(known.paused)}" if known.paused else ""
    return (
        f"subscription: {one_line(known.tool)} {one_line(known.call_id)}, {quantity(known.received, 'event')}{paused}"
    )


def user_name() -> str | None:
    """Who types, as this machine calls them; None if it does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name; Python 3.13 says OSError
        return None


async def connect() -> PerdureClient:
    """A client for a person who waits: it gives up sooner than a program's."""
    # The SDK's own records go to the standard output, among what the command prints; ours say what went wrong.
    silent = Runtime(telemetry=TelemetryConfig(logging=None))
    return await PerdureClient.connect(patience=_PATIENCE, runtime=silent)


def with_client(run: Callable[[PerdureClient], Awaitable[None]]) -> None:
    """Run a command that needs a client."""

    async def connected() -> None:
        async with await connect() as client:
            await run(client)

    asyncio.run(connected())
