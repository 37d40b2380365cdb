"""What is asked before a call runs, as lines of a terminal, and the answers that are typed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from perdure.approval import APPROVES, REMEMBERED_KINDS, ApprovalOption, ApprovalQuestion, ApprovalRequest
from perdure.cli.calls import arguments_words
from perdure.cli.printable import one_line
from perdure.cli.questions import is_attempt, selected
from perdure.errors import UsageError
from perdure.records import Choice
from perdure.waiting import PendingApproval, moment

ARGUMENT_CHARS: Final = 4_000
"""Whoever approves a call should see all of it; beyond this there is `perdure approvals --json`."""

YES: Final = frozenset({"y", "yes"})
NO: Final = frozenset({"n", "no"})


@dataclass(frozen=True)
class Said:
    """What a person answers, as `client.decide` takes it."""

    approved: bool | None = None
    option_id: str | None = None
    text: str | None = None
    answers: dict[str, Any] | None = None
    reason: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of `client.decide`."""
        return {name: value for name, value in vars(self).items() if value is not None}


def call_line(asked: PendingApproval, zone: tzinfo | None = None) -> str:
    """The call with all its arguments, what is asked about it, and until when."""
    words = one_line(f"{asked.tool}({arguments_words(asked.arguments)})")
    if (more := len(words) - ARGUMENT_CHARS) > 0:
        words = f"{words[:ARGUMENT_CHARS]}… ({more:,} more characters)"
    until = ""
    if asked.due is not None:
        until = f" until {moment(asked.due, zone, datetime.now(UTC).astimezone(zone).date())}"
    prompt = f": {one_line(asked.request.prompt)}" if asked.request.prompt else ""
    return f"{words} waits for approval{until}{prompt}"


def request_lines(request: ApprovalRequest) -> list[str]:
    """The options and questions of a request, numbered from 1."""
    lines = _option_lines(request.options)
    for question in request.questions:
        lines += question_lines(question)
    return lines


def question_lines(question: ApprovalQuestion) -> list[str]:
    """One question of several."""
    header = f"{one_line(question.header)}: " if question.header else ""
    return [f"  {one_line(question.id)}: {header}{one_line(question.prompt)}", *_option_lines(question.options)]


def _option_lines(options: Sequence[ApprovalOption]) -> list[str]:
    return [f"  {number} {_option_words(option)}" for number, option in enumerate(options, 1)]


def _option_words(option: ApprovalOption) -> str:
    description = f": {one_line(option.description)}" if option.description else ""
    kept = ""
    if option.kind in REMEMBERED_KINDS:
        kept = (
            " (from now on, whatever the arguments)"
            if option.grants == "tool"
            else " (from now on, with these arguments)"
        )
    return f"{one_line(option.label or option.id)}{kept}{description}"


def option_typed(typed: str, options: Sequence[ApprovalOption]) -> ApprovalOption | None:
    """The option that somebody has typed, by its number, its words or its id."""
    named = next((option for option in options if option.id == typed.strip()), None)
    at = selected(typed, _as_choice(options))
    return options[at] if at is not None else named


def read_answer(typed: str, request: ApprovalRequest) -> Said:
    """What was typed at a request that asks no questions; nothing, for Enter alone, dismisses it.

    A note to the thread is not guessed from it: words are an answer only where words are asked for.

    Raises:
        UsageError: how to answer.
    """
    text = typed.strip()
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if option := option_typed(text, request.options):
        if option.kind not in APPROVES:
            raise UsageError(f"Say yes or no with it: `{one_line(text)} y` or `{one_line(text)} n`.")
        return Said(option_id=option.id)
    if rest.casefold() in YES | NO and (option := option_typed(word, request.options)):
        return Said(option_id=option.id, approved=rest.casefold() in YES)
    if request.display == "decision":
        if word.casefold() in NO:
            return Said(approved=False, reason=rest or None)
        if word.casefold() in YES and (not rest or request.accepts_text):
            return Said(approved=True, text=rest or None)
    elif not text and request.dismissible:
        return Said(approved=False)
    elif text and request.accepts_text and not is_attempt(text, _as_choice(request.options)):
        return Said(text=typed)
    raise UsageError(f"That is no answer. {ways(request)}")


def read_question(typed: str, question: ApprovalQuestion) -> dict[str, Any]:
    """What was typed at one question of several: options, of which there may be some with commas between, or words.

    Raises:
        UsageError: how to answer.
    """
    names = [name for name in typed.split(",") if name.strip()] if question.multiple else [typed]
    chosen = [option_typed(name, question.options) for name in names]
    found = list(dict.fromkeys(option.id for option in chosen if option))
    if found and all(chosen):
        return {"option_ids": found}
    if typed.strip() and question.accepts_text and not is_attempt(typed, _as_choice(question.options)):
        return {"text": typed}
    raise UsageError(f"That is no answer to {one_line(question.id)!r}. {_question_ways(question)}")


def check_command(request: ApprovalRequest, said: Said, answers: Sequence[str]) -> None:
    """Whether what a command says answers a request, in the words of the commands `approve` and `deny`.

    Args:
        request: what is asked.
        said: what the command says; `approved` is which of the two it is.
        answers: the questions that it answers.

    Raises:
        UsageError: how to answer.
    """
    approves = bool(said.approved) or bool(answers)
    option = None if said.option_id is None else request.option(said.option_id)
    if request.display == "questions":
        _check_questions(request, said, answers, approves=approves)
    elif said.text and not request.accepts_text:
        raise UsageError("No words of your own are asked for; say why with --reason.")
    elif said.option_id is not None and option is None:
        raise UsageError(f"There is no option {one_line(said.option_id)!r}: {_command_ways(request)}.")
    elif option is not None and APPROVES.get(option.kind, approves) != approves:
        right = "deny" if approves else "approve"
        raise UsageError(f"The option {one_line(option.id)!r} says the opposite: `perdure {right}` chooses it.")
    elif option is None and not said.text and request.display != "decision":
        if approves:
            raise UsageError(f"More is asked than yes or no: {_command_ways(request)}.")
        if not request.dismissible:
            raise UsageError(f"This has to be answered: {_command_ways(request)}.")


def _check_questions(request: ApprovalRequest, said: Said, answers: Sequence[str], *, approves: bool) -> None:
    if said.option_id is not None or said.text:
        raise UsageError("Questions are asked, and each takes an --answer: leave --option and --text out.")
    if approves and (left := [one.id for one in request.questions if one.id not in answers]):
        names = ", ".join(map(one_line, left))
        raise UsageError(f"Not answered: {names}. Give --answer QUESTION=ANSWER for each question.")
    if not approves and not request.dismissible:
        raise UsageError("This has to be answered, with `perdure approve` and --answer for each question.")


def _command_ways(request: ApprovalRequest) -> str:
    found: list[str] = []
    if request.options:
        found.append(f"--option takes {_numbers(request.options)}, or the words of an option")
    if request.accepts_text:
        found.append("--text takes words of your own")
    return "; ".join(found) or "it is asked yes or no alone"


def ways(request: ApprovalRequest) -> str:
    """How a request without questions may be answered in a terminal."""
    found: list[str] = []
    if request.display == "decision":
        found.append("y or n (`n WHY` tells the model why)")
    if request.options:
        found.append(_numbers(request.options))
    if request.accepts_text:
        found.append("`y WORDS`" if request.display == "decision" else "words of your own")
    end = " Enter or Escape alone dismisses it." if request.dismissible and request.display != "decision" else ""
    return f"Type {', or '.join(found)}.{end}"


def _question_ways(question: ApprovalQuestion) -> str:
    several = "; several with commas between" if question.multiple else ""
    found = [f"{_numbers(question.options)}{several}"] if question.options else []
    if question.accepts_text:
        found.append("words of your own")
    return f"Type {', or '.join(found)}."


def _numbers(options: Sequence[ApprovalOption]) -> str:
    return f"a number from 1 to {len(options)}" if len(options) > 1 else "1"


def _as_choice(options: Sequence[ApprovalOption]) -> Choice:
    return Choice(id="", call_id="", choices=tuple(option.label or option.id for option in options))
