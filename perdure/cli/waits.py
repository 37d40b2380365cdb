"""The commands that help a thread on which waits for people: choose, result, subscriptions."""

from typing import Annotated, Final, Literal

import typer

from perdure.cli.prefixes import named
from perdure.cli.printable import one_line
from perdure.cli.questions import choice_lines, no_choice, selected
from perdure.cli.streams import read_input
from perdure.cli.threads import Thread, subscription_line, with_client
from perdure.client import PerdureClient
from perdure.codec import clip, loads
from perdure.contract import PREVIEW_CHARS
from perdure.errors import CallNotOpen, UsageError
from perdure.messages import ToolCallPart
from perdure.records import Choice
from perdure.stored_tree import shape

_NOTHING_TO_CHOOSE: Final = "No question waits in this thread."


def choose(
    thread: Thread,
    answer: Annotated[str | None, typer.Argument(help="The number of a choice, or its words.")] = None,
    question: Annotated[str | None, typer.Option(help="The question's id, if several wait.")] = None,
    dismiss: Annotated[bool, typer.Option("--dismiss", help="Dismiss the question, which means its default.")] = False,
) -> None:
    """Answer a question that a tool asks; without an answer, show the questions that wait."""

    async def run(client: PerdureClient) -> None:
        waiting = [choice for choice in (await client.status(thread)).choices if choice.kind == "choice"]
        if answer is None and not dismiss:
            for choice in waiting:
                typer.echo("\n".join([f"{one_line(choice.id)}: {one_line(choice.prompt)}", *choice_lines(choice)]))
            if not waiting:
                typer.echo(_NOTHING_TO_CHOOSE)
            return
        asked = _asked(waiting, question)
        number = _number(answer, asked, dismiss=dismiss)
        await client.choose(thread, asked.id, number)
        chosen = one_line(asked.choices[asked.default if number is None else number])
        typer.echo(f"Dismissed, which means the default: {chosen}" if number is None else f"Answered: {chosen}")

    with_client(run)


def _asked(waiting: list[Choice], question: str | None) -> Choice:
    if question is not None:
        known = {choice.id: choice for choice in waiting}
        if not any(name.startswith(question) for name in known):
            raise UsageError(f"No question {question!r} waits in this thread.")
        return known[named(question, known, "question")]
    if not waiting:
        raise UsageError(_NOTHING_TO_CHOOSE)
    if len(waiting) > 1:
        raise UsageError(f"Questions wait: {', '.join(choice.id for choice in waiting)}. Say which with --question.")
    return waiting[0]


def _number(answer: str | None, asked: Choice, *, dismiss: bool) -> int | None:
    if answer is not None and dismiss:
        raise UsageError("Give an answer or --dismiss, not both.")
    if answer is None:
        return None
    number = selected(answer, asked)
    if number is None:
        raise UsageError(no_choice(answer, asked))
    return number


def result(
    thread: Thread,
    call: Annotated[
        str, typer.Argument(metavar="CALL_ID", help="The open call, as `perdure status` shows it, or its beginning.")
    ],
    text: Annotated[str | None, typer.Argument(help="The result; `-` reads it from the standard input.")] = None,
    outcome: Annotated[
        Literal["ok", "error", "denied"], typer.Option(help="Whether the call went well, failed, or was not allowed.")
    ] = "ok",
    message: Annotated[
        str | None,
        typer.Option(
            metavar="MESSAGE",
            help="The message of a call that nobody waits for any more: then its result is stored, and nothing runs.",
        ),
    ] = None,
    preliminary: Annotated[
        bool, typer.Option("--preliminary", help="It is shown until the next one comes, and the call stays open.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The result is a JSON value; anything else is refused.")] = False,
    url: Annotated[
        bool, typer.Option("--url", help="Print where another program posts it instead: a secret of this one call.")
    ] = False,
) -> None:
    """Give the result of a tool call that waits for it."""
    if (text is None) is not url:
        raise UsageError(
            "Give a result or --url, not both." if url else "Give a result, or --url for where to post it."
        )
    content = read_input() if text == "-" else text or ""
    value = _json_typed(content) if json and not url else content

    async def run(client: PerdureClient) -> None:
        if text is None:
            typer.echo(await client.callback_url(thread, (await _place(client, thread, call, message))[1]))
            return
        message_id, call_id = await _place(client, thread, call, message)
        taken = await client.tool_result(
            thread, call_id, value, outcome=outcome, message_id=message_id, preliminary=preliminary
        )
        known = taken is not None and taken.disposition == "duplicate"
        kind = "preliminary result" if preliminary else f"result ({outcome})"
        typer.echo(f"The thread {'had a' if known else 'has the'} {kind} of {one_line(call_id)}{' before' * known}.")

    with_client(run)


async def _place(client: PerdureClient, thread_id: str, typed: str, message: str | None) -> tuple[str | None, str]:
    """The message to name with a call that was typed, if it has to be named, and the call's id."""
    stored = await client.store.load_tree(thread_id, parts=False)
    if message is not None:
        parents = {one.message.id: one.parent_id for one in stored.messages}
        message_id = named(message, parents, "message")
        path = await client.store.load_history_with_ancestors(thread_id, parents[message_id], message_id, whole=True)
        calls = [part.call_id for part in path.messages[-1].parts if isinstance(part, ToolCallPart)]
        return message_id, named(typed, calls, "call")
    if not any(call.call_id.startswith(typed) for call in stored.calls):
        raise CallNotOpen(clip(typed, PREVIEW_CHARS))
    call_id = named(typed, [call.call_id for call in stored.calls], "call")
    found = next(call for call in stored.calls if call.call_id == call_id)
    if found.result is not None:
        raise UsageError(f"The call {call_id!r} has its result already; it waits for others of its step.")
    # A turn that rests on another branch is not at hand: its call is found by its message.
    return None if found.message_id in shape(stored).path() else found.message_id, call_id


def _json_typed(text: str) -> object:
    try:
        value: object = loads(text)
    except ValueError as error:
        raise UsageError(f"{clip(text, PREVIEW_CHARS)!r} is no JSON value: {error}.") from error
    return value


def subscriptions(
    thread: Thread,
    cancel: Annotated[str | None, typer.Option(metavar="CALL_ID", help="End this one.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="CALL_ID", help="Let this one, which is paused, go on.")] = None,
) -> None:
    """Show what a thread is subscribed to; end a subscription, or resume one that is paused."""

    async def run(client: PerdureClient) -> None:
        if cancel is not None:
            call_id = await _subscription_named(client, thread, cancel)
            await client.cancel_subscription(thread, call_id)
            typer.echo(f"{one_line(call_id)} is ended.")
        if resume is not None:
            call_id = await _subscription_named(client, thread, resume)
            await client.resume_subscription(thread, call_id)
            typer.echo(f"{one_line(call_id)} goes on.")
        known = (await client.status(thread)).subscriptions
        typer.echo("\n".join(map(subscription_line, known)) or "No subscriptions.")

    with_client(run)


async def _subscription_named(client: PerdureClient, thread_id: str, typed: str) -> str:
    """The active subscription of that id, or of the only id that begins so; what is none is the client's to refuse."""
    active = [one.call_id for one in await client.store.get_active_subscriptions(thread_id)]
    return named(typed, active, "subscription") if any(one.startswith(typed) for one in active) else typed
