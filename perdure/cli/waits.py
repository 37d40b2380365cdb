"""The commands that help a thread on which waits for people: choose, result, subscriptions."""

import sys
from typing import Annotated, Final, Literal

import typer

from perdure.cli.printable import one_line
from perdure.cli.questions import choice_lines, no_choice, selected
from perdure.cli.threads import Thread, subscription_line, with_client
from perdure.client import PerdureClient
from perdure.errors import UsageError
from perdure.ports import Choice

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
        found = next((choice for choice in waiting if choice.id == question), None)
        if found is None:
            raise UsageError(f"No question {question!r} waits in this thread.")
        return found
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
    call_id: Annotated[str, typer.Argument(help="The open call, as `perdure status` shows it.")],
    text: Annotated[str, typer.Argument(help="The result; `-` reads it from the standard input.")],
    outcome: Annotated[
        Literal["ok", "error", "denied"], typer.Option(help="Whether the call went well, failed, or was not allowed.")
    ] = "ok",
) -> None:
    """Give the result of a tool call that waits for it."""

    async def run(client: PerdureClient) -> None:
        await client.store.get_thread(thread)
        call = await client.store.get_call(thread, call_id)
        if call.result is not None:
            raise UsageError(f"The call {call_id!r} has its result already; it waits for others of its step.")
        await client.tool_result(thread, call_id, sys.stdin.read() if text == "-" else text, outcome=outcome)
        typer.echo(f"The thread has the result ({outcome}) of {one_line(call_id)}.")

    with_client(run)


def subscriptions(
    thread: Thread,
    cancel: Annotated[str | None, typer.Option(metavar="CALL_ID", help="End this one.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="CALL_ID", help="Let this one, which is paused, go on.")] = None,
) -> None:
    """Show what a thread is subscribed to; end a subscription, or resume one that is paused."""

    async def run(client: PerdureClient) -> None:
        if cancel is not None:
            await client.cancel_subscription(thread, cancel)
            typer.echo(f"{one_line(cancel)} is ended.")
        if resume is not None:
            await client.resume_subscription(thread, resume)
            typer.echo(f"{one_line(resume)} goes on.")
        known = (await client.status(thread)).subscriptions
        typer.echo("\n".join(map(subscription_line, known)) or "No subscriptions.")

    with_client(run)
