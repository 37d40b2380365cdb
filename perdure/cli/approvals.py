"""The commands for calls that somebody has to approve: approvals, approve, deny."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from perdure.approval import RememberedDecision
from perdure.cli.approval_words import Said, check_command, option_typed, read_question
from perdure.cli.options import whole_number
from perdure.cli.prefixes import named
from perdure.cli.printable import one_line
from perdure.cli.threads import Json, Thread, approval_lines, user_name, with_client
from perdure.client import PerdureClient
from perdure.codec import clip, dumps
from perdure.contract import PREVIEW_CHARS
from perdure.errors import UsageError
from perdure.messages import ToolCallPart
from perdure.quantity import quantity
from perdure.waiting import PendingApproval

Call = Annotated[str, typer.Argument(help="The call's id, or a beginning of it that no other has.")]
Option = Annotated[str | None, typer.Option(help="The option to choose, by its number, words or id.")]
Text = Annotated[str | None, typer.Option(help="Words of your own, where they are asked for.")]
Reason = Annotated[str | None, typer.Option(help="Why; the model is told why a call was denied.")]
By = Annotated[str | None, typer.Option(help="Who decides, for the record.", show_default="your name here")]


def approvals(
    thread: Thread,
    lasting: Annotated[
        bool, typer.Option("--lasting", help="Show what was decided for calls to come instead, the oldest first.")
    ] = False,
    withdraw: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Withdraw the Nth of those that --lasting shows: people are asked again.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the calls that wait for somebody to approve them."""

    async def run(client: PerdureClient) -> None:
        if withdraw is not None:
            known = _numbered(await client.lasting_decisions(thread), withdraw)
            await client.forget_decision(thread, known.tool, known.arguments)
            typer.echo(f"Withdrawn: {lasting_line(known)}.")
            return
        if lasting:
            decisions = await client.lasting_decisions(thread)
            for number, known in enumerate(decisions, 1):
                typer.echo(dumps(known) if json else f"{number} {lasting_line(known)}")
            if not decisions and not json:
                typer.echo("Nothing was decided for calls to come.")
            return
        waiting = await client.approvals(thread)
        for approval in waiting:
            typer.echo(dumps(approval) if json else "\n".join(approval_lines(thread, approval)))
        if not waiting and not json:
            typer.echo("No call waits for approval.")

    with_client(run)


def _numbered(decisions: Sequence[RememberedDecision], number: int) -> RememberedDecision:
    if not 1 <= number <= len(decisions):
        raise UsageError(f"There is no decision {number}; `perdure approvals --lasting` numbers them.")
    return decisions[number - 1]


def lasting_line(known: RememberedDecision) -> str:
    """What holds for calls to come, for people."""
    whichever = "whatever the arguments" if known.arguments is None else "with the same arguments as then"
    by = f", by {one_line(known.by)}" if known.by else ""
    return f"{one_line(known.tool)} is {'approved' if known.approved else 'denied'} {whichever}{by}"


def approve(
    thread: Thread,
    call: Call,
    option: Option = None,
    text: Text = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION=ANSWER", help="An answer to one of the questions; once for each of them."),
    ] = None,
    reason: Reason = None,
    by: By = None,
) -> None:
    """Let a call run, or answer what is asked before it does."""

    async def run(client: PerdureClient) -> None:
        call_id, asked = await _call_named(client, thread, call)
        # Answers stand alone: they are the approval.
        answers = _answers(answer, asked) if answer else None
        approved = None if answers else True
        said = Said(approved, _option_id(option, asked), text, answers, reason)
        await _decide(client, thread, call_id, "approved", said, asked, by)

    with_client(run)


def deny(
    thread: Thread, call: Call, reason: Reason = None, option: Option = None, text: Text = None, by: By = None
) -> None:
    """Keep a call from running; the model is told why."""

    async def run(client: PerdureClient) -> None:
        call_id, asked = await _call_named(client, thread, call)
        said = Said(False, _option_id(option, asked), text, reason=reason)
        await _decide(client, thread, call_id, "denied", said, asked, by)

    with_client(run)


async def _decide(
    client: PerdureClient,
    thread_id: str,
    call_id: str,
    what: str,
    said: Said,
    asked: PendingApproval,
    by: str | None,
) -> None:
    check_command(asked.request, said, tuple(said.answers or ()))
    decided = await client.decide(thread_id, call_id, **said.fields, by=by or user_name())
    what = f"was {what} already" if decided.disposition == "duplicate" else f"is {what}"
    more = f"; {quantity(len(decided.pending), 'call')} of the turn left to decide about" if decided.pending else ""
    typer.echo(f"{one_line(call_id)} {what}{more}.")


async def _call_named(client: PerdureClient, thread_id: str, typed: str) -> tuple[str, PendingApproval]:
    """The call that was typed, and what is asked about it, or was: the same answer again is no mistake.

    Those that wait come first: of calls that were asked about long ago one need not tell them apart.
    """
    view = await client.view(thread_id)
    waiting = {approval.call_id: approval for approval in view.approvals}
    asked = {
        part.call_id: PendingApproval(
            call_id=part.call_id,
            message_id=message.id,
            tool=part.tool,
            arguments=part.arguments,
            request=part.approval,
        )
        for message in view.messages
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.approval
    }
    if not any(call_id.startswith(typed) for call_id in asked):
        shown = clip(typed, PREVIEW_CHARS)
        raise UsageError(
            f"Nobody was asked about a call {shown!r} on the branch that is shown; see `perdure approvals`."
        )
    of_waiting = typed not in asked and any(call_id.startswith(typed) for call_id in waiting)
    call_id = named(typed, list(waiting if of_waiting else asked), "call")
    return call_id, asked[call_id]


def _option_id(typed: str | None, asked: PendingApproval) -> str | None:
    found = option_typed(typed, asked.request.options) if typed is not None else None
    return found.id if found else typed


def _answers(typed: list[str], asked: PendingApproval) -> dict[str, Any]:
    questions = {question.id: question for question in asked.request.questions}
    answers: dict[str, Any] = {}
    for one in typed:
        name, is_answer, value = one.partition("=")
        if name not in questions or not is_answer:
            known = ", ".join(map(one_line, questions)) or "none"
            raise UsageError(f"{one!r} answers no question of this call ({known}); write QUESTION=ANSWER.")
        answers[name] = read_question(value, questions[name])
    return answers
