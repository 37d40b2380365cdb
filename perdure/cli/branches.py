"""The commands that rearrange a conversation: edit, regenerate, branches, switch, delete, reset, feedback."""

import sys
from typing import Annotated, Final

import typer

from perdure.cli.approval_words import YES
from perdure.cli.prefixes import message_named, named, short_ids
from perdure.cli.printable import one_line
from perdure.cli.streams import read_input
from perdure.cli.threads import Json, Thread, with_client
from perdure.cli.tree_lines import label, tree_lines
from perdure.cli.words import InputName, NoRun, TurnMode, show_accepted
from perdure.client import PerdureClient
from perdure.codec import clip, dumps, loads
from perdure.errors import UsageError
from perdure.inputs import ROOT
from perdure.messages import Message as StoredMessage
from perdure.quantity import quantity
from perdure.stored_tree import Branch, shape
from perdure.tree import MessageTree

_TEXT_CHARS: Final = 80

Message = Annotated[str, typer.Argument(help="The message's id, or a beginning of it that no other has.")]


def edit(
    thread: Thread,
    message: Message,
    text: Annotated[str, typer.Argument(help="What to say instead; `-` reads it from the standard input.")],
    id: InputName = None,
    mode: TurnMode = "interrupt",
    no_run: NoRun = False,
) -> None:
    """Say something else in place of a message, beside which it stands; print what became of it. The old one stays."""
    words = read_input() if text == "-" else text

    async def run(client: PerdureClient) -> None:
        source_id = await message_named(client, thread, message)
        show_accepted(await client.edit(thread, source_id, words, id=id, mode=mode, run=not no_run))

    with_client(run)


def regenerate(
    thread: Thread,
    message: Annotated[
        str | None,
        typer.Argument(help="An answer, or words to answer, by the id or its beginning; left out: the last message."),
    ] = None,
) -> None:
    """Answer once more, and print what became of it and the new answer's id. The old answer stays."""

    async def run(client: PerdureClient) -> None:
        message_id = (
            (await client.store.get_thread(thread)).head_id
            if message is None
            else await message_named(client, thread, message)
        )
        if message_id is None:
            raise UsageError("Nothing was said yet, so there is nothing to answer.")
        changed = await client.regenerate(thread, message_id)
        typer.echo(f"{changed.disposition} {changed.message_id}")

    with_client(run)


def branches(
    thread: Thread,
    message: Annotated[
        str | None, typer.Argument(help="Only this message and those beside it, by its id or the beginning of that.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the messages of all branches, those that are shown marked with `*`."""

    async def run(client: PerdureClient) -> None:
        if message is not None:
            await _show_beside(client, thread, message, json=json)
            return
        lines = tree_lines(await client.tree(thread))
        names = short_ids(line.message.id for line in lines)
        if not lines and not json:
            typer.echo("Nothing was said yet.")
        for line in lines:
            typer.echo(dumps(line.stated) if json else line.text(names[line.message.id]))

    with_client(run)


async def _show_beside(client: PerdureClient, thread_id: str, typed: str, *, json: bool) -> None:
    known = [one.message.id for one in (await client.store.load_tree(thread_id, parts=False)).messages]
    names = short_ids(known)
    beside = await client.branches(thread_id, named(typed, known, "message"))
    for at, branch in enumerate(beside, 1):
        typer.echo(dumps(branch) if json else _branch_line(names[branch.message_id], branch, at, len(beside)))


def _branch_line(name: str, branch: Branch, at: int, count: int) -> str:
    mark = "*" if branch.selected else " "
    words = one_line(clip(branch.text, _TEXT_CHARS))
    return f"{mark} {name} {label(branch.role, branch.status, at, count)}: {words}"


def switch(thread: Thread, message: Message) -> None:
    """Show the branch of a message, and below it what was last shown there."""

    async def run(client: PerdureClient) -> None:
        message_id = await message_named(client, thread, message)
        changed = await client.switch_branch(thread, message_id)
        end = "" if changed.head_id == message_id else f"; it ends with {changed.head_id}"
        typer.echo(f"The branch of {message_id} is shown{end}.")

    with_client(run)


def delete(
    thread: Thread,
    message: Message,
    replacement: Annotated[
        str | None,
        typer.Option(help="The message below which those that followed go, instead of its parent; `root` for none."),
    ] = None,
) -> None:
    """Delete one message, and its content for good. What followed it moves up."""

    async def run(client: PerdureClient) -> None:
        message_id = await message_named(client, thread, message)
        heir = replacement
        if heir is not None and heir != ROOT:
            heir = await message_named(client, thread, heir)
        await client.delete_message(thread, message_id, replacement_id=heir)
        typer.echo(f"{message_id} is deleted.")

    with_client(run)


def reset(
    thread: Thread,
    message: Annotated[
        str | None,
        typer.Argument(help="What follows this message goes, by its id or the beginning of that; left out: all."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete all that follows a message, on all branches, for good; without one, the whole conversation."""

    async def run(client: PerdureClient) -> None:
        tree = shape(await client.store.load_tree(thread, parts=False))
        message_id = None if message is None else named(message, list(tree), "message")
        count = quantity(len(_below(tree, message_id)), "message")
        if not yes:
            _confirm(f"Delete {count} for good?")
        await client.reset(thread, message_id)
        typer.echo(f"{count} deleted.")

    with_client(run)


def _below(tree: MessageTree[StoredMessage], message_id: str | None) -> set[str]:
    below: set[str | None] = {message_id}
    for one in tree:  # each after its parent
        if tree.get(one).parent_id in below:
            below.add(one)
    return {one for one in below if one is not None and one != message_id}


def _confirm(question: str) -> None:
    """Go on only if a person says so; what nobody can be asked has to be said with the command."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is nobody to ask, so say it with --yes.")
    if input(f"{question} [y/N] ").strip().casefold() not in YES:
        sys.exit("perdure: Nothing was deleted.")


def feedback(
    thread: Thread,
    message: Message,
    value: Annotated[
        str | None, typer.Argument(help="`positive`, `negative`, a number, or whatever says it; left out: withdrawn.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="More words.")] = None,
) -> None:
    """Say what you think of a message, in place of what was said before. No model reads it."""

    async def run(client: PerdureClient) -> None:
        if value is None and comment is not None:
            raise UsageError("A comment needs a value that it belongs to, such as `positive`.")
        message_id = await message_named(client, thread, message)
        await client.feedback(thread, message_id, None if value is None else _number_or_word(value), comment)
        typer.echo(f"{message_id}: {'withdrawn' if value is None else one_line(value)}.")

    with_client(run)


def _number_or_word(typed: str) -> str | float:
    try:
        number: object = loads(typed)
    except ValueError:
        return typed
    return number if isinstance(number, int | float) else typed
