"""The commands that begin threads and say something to them: start, send."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from perdure.attachments import FILE_BYTES, FILES
from perdure.cli.model_names import Unchecked, model_typed
from perdure.cli.prefixes import message_named
from perdure.cli.printable import one_line, printable
from perdure.cli.streams import read_input
from perdure.cli.threads import Thread, id_typed, with_client
from perdure.client import PerdureClient
from perdure.errors import NotTaken, ThreadClosed, ThreadNotFound, UsageError
from perdure.inputs import ROOT, Accepted, Mode
from perdure.thinking import Effort

_LOOK_S: Final = 1.0
"""How often a command that waits for an answer looks whether people are waited for."""

InputName = Annotated[
    str | None,
    typer.Option(help="The message's id: sent twice under one id, it is answered once.", callback=id_typed),
]
TurnMode = Annotated[Mode, typer.Option(help="What it does to a turn that is under way.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Nobody answers it: it is only there.")]
Level = Literal["off", Effort]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What answers, such as `openai:gpt-5`; left out: the thread's or agent's model."),
]
Thinking = Annotated[Level | None, typer.Option(help="How much the model thinks first; left out: as the agent says.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help=f"A file that goes along, at most {FILE_BYTES // 1024 // 1024} MiB; give it up to {FILES} times.",
    ),
]


def start(
    thread: Annotated[
        str | None, typer.Argument(help="The id of the new thread; left out: one is made.", callback=id_typed)
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent's name; left out: the worker's first.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose thread it is.")] = "default",
    title: Annotated[str | None, typer.Option(help="A title for people.")] = None,
    user: Annotated[str | None, typer.Option(help="The end user's id, which tool servers are told.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="What answers in it; left out: the agent's model.")
    ] = None,
    unchecked: Unchecked = False,
) -> None:
    """Start a thread and print its id. A thread that exists stays as it is; one that is closed cannot be started."""
    typed = model_typed(model, unchecked=unchecked)

    async def run(client: PerdureClient) -> None:
        thread_id = await client.start(thread, agent=agent, tenant=tenant, title=title, user_id=user, model=typed)
        if (await client.store.get_thread(thread_id)).closed_at is not None:
            raise ThreadClosed.of(thread_id)
        typer.echo(thread_id)

    with_client(run)


def send(
    thread: Thread,
    text: Annotated[
        str, typer.Argument(help="What to say; `-` reads it from the standard input; left out: files alone.")
    ] = "",
    id: InputName = None,
    mode: TurnMode = "interrupt",
    file: Files = None,
    model: Model = None,
    unchecked: Unchecked = False,
    thinking: Thinking = None,
    parent: Annotated[
        str | None,
        typer.Option(
            metavar="MESSAGE",
            help="The message that it follows, by its id or its beginning; left out: the last one that is shown; "
            "`root`: it begins a conversation of its own.",
        ),
    ] = None,
    no_run: NoRun = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")] = False,
) -> None:
    """Send a message to a thread, and print what became of it. One that is not taken ends it with code 1."""
    if no_run and wait:
        raise UsageError("Nobody answers what is sent with --no-run: there is nothing to --wait for.")
    how = answered_by(model_typed(model, unchecked=unchecked), thinking)
    words = read_input() if text == "-" else text

    async def run(client: PerdureClient) -> None:
        along: dict[str, Any] = {"files": file or [], **how}
        if parent is not None:
            along["parent_id"] = ROOT if parent == ROOT else await message_named(client, thread, parent)
        if wait:
            asking = asyncio.create_task(client.ask(thread, words, id=id, mode=mode, **along))
            try:
                await _tell_what_waits(client, thread, asking)
                typer.echo(printable(await asking))
            finally:
                asking.cancel()
            return
        show_accepted(await client.send(thread, words, id=id, mode=mode, run=not no_run, **along))

    with_client(run)


async def _tell_what_waits(client: PerdureClient, thread_id: str, asking: "asyncio.Task[str]") -> None:
    """Say once, on stderr, which results the answer waits for that people bring: it may be long until they do."""
    while not (await asyncio.wait({asking}, timeout=_LOOK_S))[0]:
        with suppress(ThreadNotFound):  # its workflow has not stored it yet
            tail = await client.store.load_tail(thread_id, processed=0)
            if tail.message is not None and tail.message.status.state == "requires_action":
                for call in tail.calls:
                    if call.result is None:
                        how = f"`perdure result {one_line(thread_id)} {one_line(call.call_id)} TEXT`"
                        typer.echo(f"The turn waits for a result of {one_line(call.tool)}: {how}", err=True)
                return


def answered_by(model: str | None, thinking: Level | None) -> dict[str, Any]:
    """How words are to be answered, as the client's methods take it."""
    settings = None if thinking is None else {"thinking": False if thinking == "off" else thinking}
    return {"model": model, "settings": settings}


def files_typed(*typed: str | Path) -> tuple[Path, ...]:
    """Files as they were typed, looked for before anything is begun for them.

    Raises:
        UsageError: if one is not there.
    """
    files = tuple(Path(one).expanduser() for one in typed)
    for file in files:
        if not file.is_file():
            raise UsageError(f"There is no file {file}.")
    return files


def show_accepted(accepted: Accepted) -> None:
    """Print what became of words.

    Raises:
        NotTaken: if the thread did not take them.
    """
    if refused := NotTaken.of(accepted.disposition, accepted.detail):
        raise refused
    typer.echo(f"{accepted.disposition} {accepted.message_id}")
