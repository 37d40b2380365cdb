"""A conversation written down as it happens: the events of a thread in, lines for a terminal out.

What was written stays written, so everything is shown once and in its order: streamed words at once, a call when it is
durable, a result when it is in. Committed words that repeat what streamed are left out, and where they differ (a new
attempt, a stop) that is said.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from typing import Any, Final, Protocol, cast

from perdure import ids
from perdure.builtins import SPAWN_THREAD, TIMED
from perdure.cli.printable import one_line, printable
from perdure.codec import clip, loads
from perdure.messages import (
    EventPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.ports import Change, OpenCall, Snapshot
from perdure.quantity import quantity
from perdure.rap.display import shown
from perdure.thread_texts import spawned
from perdure.waiting import moment
from perdure.watch import View, WatchEvent, call_of

CALL_CHARS: Final = 160
RESULT_CHARS: Final = 300
DISPLAY_LINES: Final = 20
"""Of what a tool shows in place of its result, a diff for one."""
HISTORY_MESSAGES: Final = 40
"""Of a long conversation only the newest messages are shown when one comes back to it."""


class Output(Protocol):
    """Where a conversation is written."""

    def write(self, text: str, style: str = "") -> None:
        """Go on writing where the last text ended."""
        ...

    def fresh(self) -> None:
        """Go to the start of a line, unless the output is at one."""
        ...

    def line(self, text: str, style: str = "") -> None:
        """Write a line of its own."""
        ...


class Conversation:
    """Writes what happens in a thread, and knows how it stands (`view`)."""

    def __init__(self, output: Output, limit: int | None = HISTORY_MESSAGES, zone: tzinfo | None = None) -> None:
        self.view = View()
        self._output = output
        self._limit = limit
        self._zone = zone
        self._step: tuple[int, int] | None = None
        self._attempt = 0
        self._words: list[TextPart | ReasoningPart] = []
        self._results: set[str] = set()
        self._starts: dict[str, int] = {}
        self._dues: dict[str, float] = {}

    @property
    def unstarted(self) -> list[str]:
        """Open calls that nothing has begun to carry out, as far as the store knows, in call order."""
        parts = self.view.head.parts if self.view.head else ()
        settled = {part.call_id for part in parts if isinstance(part, ToolResultPart)} | self.view.calls.keys()
        calls = (part for part in parts if isinstance(part, ToolCallPart) and part.error is None)
        return [part.call_id for part in calls if part.call_id not in settled]

    def show(self, event: WatchEvent) -> None:
        """Fold one event and write what it brings.

        Raises:
            ViewOutdated: see `View.apply`.
        """
        known = self.view.seq
        self.view.apply(event)
        if isinstance(event, Snapshot):
            self._show_path()
            if event.thread.closed_at is not None:
                self._output.line("■ The thread is closed: it takes nothing more.", "yellow")
        elif event.seq > known:
            self._show_change(event)

    def _show_path(self) -> None:
        messages = self.view.messages
        earlier = len(messages) - (len(messages) if self._limit is None else self._limit)
        if earlier > 0:
            self._output.line(
                f"… {quantity(earlier, 'earlier message')}: `perdure history {one_line(self.view.thread_id)}`", "dim"
            )
        for message in messages[max(earlier, 0) :]:
            for part in message.parts:
                self._show_part(message, part)
            self._show_status(message)
        self._show_live()
        for call_id, call in self.view.calls.items():
            self._starts[call_id] = call.started
            self._show_due(call)
            self._show_staged(call_id)

    def _show_change(self, change: Change) -> None:
        if change.message:
            self._show_status(change.message)
        elif change.part:
            message = self.view.message(change.message_id or "")
            if message:
                self._show_part(message, change.part)
        elif change.call:
            self._show_start(change.call)
            self._show_due(change.call)
            self._show_staged(change.call.call_id)
        elif not change.choice and not change.view:
            self._show_live()

    def _show_part(self, message: Message, part: Part) -> None:
        match part:
            case TextPart() if message.role == "user":
                self._output.line(f"› {printable(part.text)}", "bold")
            case TextPart() if message.role == "event":
                self._output.line(f"‖ {one_line(part.text)}", "yellow")
            case TextPart() | ReasoningPart():
                self._enter(message.turn, part.step, self._attempt)
                self._show_words(of for of in message.parts if of.step == part.step and _is_words(of))
            case ToolCallPart():
                self._output.line(f"→ {_call(part)}", "cyan")
            case ToolResultPart():
                self._show_result(part)
            case FilePart():
                self._output.line(
                    f"▤ {one_line(part.name or 'file')} ({part.media_type}, {quantity(part.size_bytes, 'byte')})"
                )
            case EventPart():
                self._show_event(part)

    def _show_live(self) -> None:
        live = self.view.live
        if live is None:
            return
        if self._step == (live.turn, live.step) and self._attempt < live.attempt and self._words:
            self._output.line("↻ The model call is tried again; the answer starts over.", "dim")
            self._words = []
        self._enter(live.turn, live.step, live.attempt)
        # What streams after a call waits until the call is durable and can be shown before it.
        self._show_words(part for part in takewhile(lambda part: not isinstance(part, ToolCallPart), live.parts))

    def _enter(self, turn: int, step: int, attempt: int) -> None:
        if self._step != (turn, step):
            self._step = (turn, step)
            self._words = []
        self._attempt = attempt

    def _show_words(self, parts: Iterable[Part]) -> None:
        words = [part for part in parts if isinstance(part, TextPart | ReasoningPart)]
        for position, part in enumerate(words):
            shown = self._words[position] if position < len(self._words) else None
            if shown is not None and (shown.kind != part.kind or not part.text.startswith(shown.text)):
                self._output.line("↻ The answer was corrected:", "dim")
                self._words = self._words[:position]
                shown = None
            if shown is None:
                self._output.fresh()
                self._words.append(part.with_(text=""))
            written = len(self._words[position].text)
            if len(part.text) > written:
                self._output.write(printable(part.text[written:]), "dim" if part.kind == "reasoning" else "")
                self._words[position] = part

    def _show_start(self, call: OpenCall) -> None:
        """Say that a call was started once more: after a crash one waits longer.

        Whether its tool runs again is not known here: some are only waited for again, others get "outcome unknown".
        """
        if call.started > max(1, self._starts.get(call.call_id, 0)) and not call.result:
            self._output.line(f"↻ {self.call_text(call.call_id)} is taken up again", "dim")
        self._starts[call.call_id] = call.started

    def _show_due(self, call: OpenCall) -> None:
        """Say when a call ends by itself: a sleeper wakes, another one is given up."""
        if call.due is None or call.result or self._dues.get(call.call_id) == call.due:
            return
        self._dues[call.call_id] = call.due
        until = moment(call.due, self._zone, datetime.now(UTC).astimezone(self._zone).date())
        verb = "sleeps" if call.tool in TIMED else "waits"
        self._output.line(f"☾ {self.call_text(call.call_id)} {verb} until {until}", "dim")

    def _show_event(self, part: EventPart) -> None:
        content = one_line(clip(part.content, RESULT_CHARS))
        if part.origin_tool == SPAWN_THREAD:
            self._output.line(f"⑂ {content}", "magenta")
        else:
            tool = f"{one_line(clip(part.origin_tool, 64))}: " if part.origin_tool else ""
            self._output.line(f"◆ {tool}{content}", "magenta")

    def _show_staged(self, call_id: str) -> None:
        call = self.view.calls.get(call_id)
        if call and call.result:
            self._show_result(call.result)

    def _show_result(self, result: ToolResultPart) -> None:
        if result.call_id in self._results:
            return
        self._results.add(result.call_id)
        call = self.call_text(result.call_id)
        child = ids.child_thread_id(self.view.thread_id, result.call_id)
        if result.content == spawned(child):
            self._output.line(f"⑂ {call}: `perdure chat {child}` shows the child thread", "green")
        elif result.outcome == "ok":
            self._output.line(f"← {call}: {_result(result)}", "green")
        else:
            self._output.line(f"✗ {call} {result.outcome}: {_result(result)}", "red")
        for file in result.files:
            self._output.line(f"▤ {one_line(file.media_type)}, {quantity(file.size_bytes, 'byte')}", "green")

    def call_text(self, call_id: str) -> str:
        """A call as one would write it: `get_weather(city="Paris")`; its id if it is not on the path."""
        for message in reversed(self.view.messages):
            if call := call_of(message, call_id):
                return _call(call)
        return one_line(call_id)

    def _show_status(self, message: Message) -> None:
        status = message.status
        if message.role != "assistant" or status.state == "running":
            return
        detail = f": {one_line(status.detail)}" if status.detail else ""
        match status.reason:
            case None:
                self._output.fresh()
            case "cancelled":
                self._output.line(f"■ interrupted{detail}", "yellow")
            case "steered":
                self._output.line(f"■ steered{detail}", "dim")
            case "error":
                self._output.line(f"✗ The turn failed{detail}", "red")
            case _:
                self._output.line(f"■ The turn ended early ({status.reason}){detail}", "yellow")


def _is_words(part: Part) -> bool:
    return isinstance(part, TextPart | ReasoningPart)


def _result(result: ToolResultPart) -> str:
    """What a person is shown of a result: what its tool wants them to see, else its words on one line."""
    display = shown(result.display, result.content)
    if display != result.content:
        # Not clipped as other words are: blanks count in what is shown line by line.
        lines = [one_line(line[:RESULT_CHARS]) for line in display.split("\n")]
        more = [f"… {quantity(len(lines) - DISPLAY_LINES, 'more line')}"] if len(lines) > DISPLAY_LINES else []
        return "\n  ".join([*lines[:DISPLAY_LINES], *more])
    size = f" ({result.size_bytes:,} bytes)" if result.size_bytes > RESULT_CHARS else ""
    return f"{one_line(clip(result.content, RESULT_CHARS))}{size}"


def _call(part: ToolCallPart) -> str:
    return one_line(f"{clip(part.tool, 64)}({clip(_arguments(part.arguments), CALL_CHARS)})")


def _arguments(text: str) -> str:
    try:
        values: Any = loads(text)
    except ValueError:  # a model wrote something else than JSON: shown as it is
        return text
    if not isinstance(values, dict):
        return text
    named = cast("dict[str, object]", values)
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in named.items())
