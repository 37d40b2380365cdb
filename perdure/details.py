"""What a person reads of a thread in the Temporal UI: the current details as Markdown, the transcript as text. Pure.

The UI renders Markdown without a browser's mercy: an entity such as `&lt;` shows as itself and HTML is passed on. So
words of people, models and tools are escaped with backslashes, which it takes before all that may act as markup.
"""

import re
from collections.abc import Iterable
from typing import Final

from perdure.codec import Text, Wire, clip
from perdure.contract import CallStatus, SubscriptionStatus, ThreadStatus
from perdure.messages import Status
from perdure.quantity import quantity
from perdure.spending import usage_words
from perdure.waiting import call_state, moment

RECENT_LINES = 12
LINE_CHARS = 200
NAME_CHARS = 64
PROBLEM_CHARS = 500
SHOWN_CALLS = 20
SHOWN_SUBSCRIPTIONS = 10
_MARKUP: Final = re.compile(r"[\\`*_\[\]<>&~|#!]")


class Line(Wire):
    """One line of the conversation, clipped."""

    who: str
    text: Text


def remember(lines: tuple[Line, ...], who: str, text: str) -> tuple[Line, ...]:
    """The lines with one more, the oldest dropped."""
    return (*lines, Line(who=who, text=clip(text, LINE_CHARS)))[-RECENT_LINES:]


def details(status: ThreadStatus, lines: tuple[Line, ...], title: str | None = None) -> str:
    """The title, state, who waits for what, the last messages clipped, and totals."""
    calls, *spent = usage_words(status.usage)
    return "\n".join(
        [
            *([f"## {_plain(title)}", ""] if title else []),
            f"**{_headline(status)}**",
            "",
            f"Agent `{_code(status.agent)}` · turn {status.turn} · {calls} · {', '.join(spent)}",
            *_problems(status),
            *_waiting(status),
            *_subscriptions(status.subscriptions),
            *_children(status),
            "",
            "### Last messages",
            "",
            *([f"- **{_plain(line.who)}:** {_plain(line.text)}" for line in lines] or [_silence(status)]),
        ]
    )


def _silence(status: ThreadStatus) -> str:
    return "What was said is in the store: `perdure history`." if status.turn else "Nothing has been said yet."


def transcript(lines: Iterable[Line]) -> str:
    """The last lines of the conversation as they were said, clipped."""
    return "\n".join(f"{line.who}: {line.text}" for line in lines)


def _headline(status: ThreadStatus) -> str:
    match status.state:
        case "running":
            calls = sum(call.state != "settled" for call in status.open_calls)
            doing = f"waits for {quantity(calls, 'tool call')}" if calls else "the model is answering"
            return f"Running: turn {status.turn}, step {status.step + 1}, {doing}"
        case "waiting":
            return (
                f"Waiting: turn {status.turn} {_needs([call for call in status.open_calls if call.state != 'settled'])}"
            )
        case "closed":
            return "Closed"
        case "idle":
            return f"Idle: {_last(status.last)}"


def _needs(calls: list[CallStatus]) -> str:
    approvals = sum(call.state == "approval" for call in calls)
    outside = sum(call.state != "approval" and call.kind != "workflow" for call in calls)
    needs = [quantity(approvals, "approval")] * bool(approvals)
    needs += [f"{quantity(outside, 'result')} from outside"] * bool(outside)
    if needs:
        return f"needs {' and '.join(needs)}"
    due = [call.due for call in calls if call.due is not None]
    return f"sleeps until {moment(min(due))}" if due else "sleeps until something happens"


def _last(last: Status | None) -> str:
    if last is None:
        return "waiting for the first message"
    if last.state == "incomplete":
        detail = f" ({_plain(last.detail)})" if last.detail else ""
        return f"the last turn ended early: {last.reason}{detail}"
    return "the last turn is complete, waiting for the next message"


def _waiting(status: ThreadStatus) -> list[str]:
    calls = [
        f"- `{_code(f'{call.tool}({call.preview})')}` {call_state(call)} · `{_code(call.call_id, NAME_CHARS)}`"
        for call in status.open_calls[:SHOWN_CALLS]
    ]
    if len(status.open_calls) > SHOWN_CALLS:
        calls.append(f"- and {len(status.open_calls) - SHOWN_CALLS} more")
    lines = ["", "### Open tool calls", "", *calls] if calls else []
    if status.queued or status.deferred:
        lines += ["", f"{quantity(status.queued, 'message')} queued, {quantity(status.deferred, 'event')} deferred."]
    if status.dropped:
        lines += ["", f"Events or results dropped, since nothing waited for them: {status.dropped:,}."]
    return lines


def _subscriptions(known: tuple[SubscriptionStatus, ...]) -> list[str]:
    lines = [
        f"- `{_code(one.tool, NAME_CHARS)}` {quantity(one.received, 'event')}{_paused(one)} · "
        f"`{_code(one.call_id, NAME_CHARS)}`"
        for one in known[:SHOWN_SUBSCRIPTIONS]
    ]
    if len(known) > SHOWN_SUBSCRIPTIONS:
        lines.append(f"- and {len(known) - SHOWN_SUBSCRIPTIONS} more")
    return ["", "### Subscriptions", "", *lines] if lines else []


def _paused(subscription: SubscriptionStatus) -> str:
    return f", **paused**: {_plain(clip(subscription.paused, LINE_CHARS))}" if subscription.paused else ""


def _children(status: ThreadStatus) -> list[str]:
    if not status.children:
        return []
    return ["", f"It has child threads: `perdure children {_code(status.thread_id)}`."]


def _problems(status: ThreadStatus) -> list[str]:
    return ["", "### Problems", "", *(f"- {_plain(problem)}" for problem in status.problems)] if status.problems else []


def _code(text: str, limit: int = LINE_CHARS) -> str:
    return clip(text, limit).replace("`", "'")


def _plain(text: str) -> str:
    """Words of people, models and tools on one line, kept from acting as Markdown or HTML."""
    return _MARKUP.sub(r"\\\g<0>", clip(text, PROBLEM_CHARS))
