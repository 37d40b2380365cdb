"""The commands that do one thing to one thread: start, send, interrupt, stop, status, history."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Final

import typer

from perdure.cli.conversation import Conversation
from perdure.cli.printable import one_line, printable
from perdure.cli.terminal import PlainTerminal
from perdure.client import PerdureClient
from perdure.codec import dumps
from perdure.contract import ThreadStatus
from perdure.inputs import Mode

_PATIENCE: Final = timedelta(seconds=30)

Thread = Annotated[str, typer.Argument(help="The thread's id.")]


def start(
    thread: Annotated[str | None, typer.Argument(help="The id of the new thread; left out: one is made.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent's name; left out: the worker's first.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose thread it is.")] = "default",
    title: Annotated[str | None, typer.Option(help="A title for people.")] = None,
) -> None:
    """Start a thread and print its id. A thread that exists stays as it is."""

    async def run(client: PerdureClient) -> None:
        typer.echo(await client.start(thread, agent=agent, tenant=tenant, title=title))

    _with_client(run)


def send(
    thread: Thread,
    text: Annotated[str, typer.Argument(help="What to say; `-` reads it from the standard input.")],
    id: Annotated[
        str | None, typer.Option(help="The message's id: sent twice under one id, it is answered once.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="What it does to a turn that is under way.")] = "interrupt",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")] = False,
) -> None:
    """Send a message to a thread, and print what became of it."""

    async def run(client: PerdureClient) -> None:
        words = sys.stdin.read() if text == "-" else text
        if wait:
            typer.echo(printable(await client.ask(thread, words, id=id, mode=mode)))
            return
        accepted = await client.send(thread, words, id=id, mode=mode)
        typer.echo(f"{accepted.disposition} {accepted.message_id}")

    _with_client(run)


def interrupt(
    thread: Thread, reason: Annotated[str | None, typer.Option(help="Why, for whoever reads the thread.")] = None
) -> None:
    """Stop what a thread is doing, without waiting for it."""
    _with_client(lambda client: client.interrupt(thread, reason))


def stop(thread: Thread) -> None:
    """Stop what a thread is doing, and wait until the turn is settled."""

    async def run(client: PerdureClient) -> None:
        stopped = await client.stop(thread)
        typer.echo(f"Turn {stopped.turn} is stopped." if stopped.turn else "Nothing was running.")

    _with_client(run)


def status(thread: Thread, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show what a thread is doing. One that hibernates is not woken for it."""

    async def run(client: PerdureClient) -> None:
        current = await client.status(thread)
        typer.echo(dumps(current) if json else "\n".join(status_lines(current)))

    _with_client(run)


def history(
    thread: Thread,
    json: Annotated[bool, typer.Option("--json", help="As JSON, one message in each line, nothing clipped.")] = False,
) -> None:
    """Show a whole conversation."""

    async def run(client: PerdureClient) -> None:
        if json:
            for message in await client.history(thread):
                typer.echo(dumps(message))
            return
        async with aclosing(client.watch(thread)) as events:
            Conversation(PlainTerminal(), limit=None).show(await anext(events))

    _with_client(run)


def status_lines(status: ThreadStatus) -> list[str]:
    """What a thread is doing, for people."""
    usage = status.usage
    last = status.last
    lines = [f"{status.state} · agent {one_line(status.agent)} · turn {status.turn}"]
    if status.state == "running":
        lines[0] += f", step {status.step + 1}"
    if last is not None and last.state == "incomplete":
        lines.append(
            f"the last turn ended early: {last.reason}" + (f" ({one_line(last.detail)})" if last.detail else "")
        )
    lines += [
        f"{call.state}: {one_line(call.tool)}({one_line(call.preview)}) {one_line(call.call_id)}"
        for call in status.open_calls
    ]
    if status.queued or status.deferred:
        lines.append(f"{status.queued} message(s) queued, {status.deferred} event(s) deferred")
    lines.append(f"{usage.requests} model calls, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out")
    return lines + [f"problem: {one_line(problem)}" for problem in status.problems]


async def connect() -> PerdureClient:
    """A client for a person who waits: it gives up sooner than a program's."""
    return await PerdureClient.connect(patience=_PATIENCE)


def _with_client(run: Callable[[PerdureClient], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with await connect() as client:
            await run(client)

    asyncio.run(connected())
