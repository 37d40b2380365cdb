"""A conversation written down as it happens: the events of a thread in, lines for a terminal out.

What was written stays written, so everything is shown once and in its order: streamed words at once, a call when it is
durable, a result when it is in. Committed words that repeat what streamed are left out, and where they differ (a new
attempt, a stop) that is said. So it is when the conversation becomes another one, because a branch was switched or a
message deleted: then it is written again from there on.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from typing import Final, Protocol

from perdure import ids
from perdure.approval import Decision
from perdure.builtins import SPAWN_THREAD, TIMED
from perdure.cli.calls import RESULT_CHARS, call_words, decision_words, result_words
from perdure.cli.printable import one_line, printable
from perdure.cli.tree_lines import words_of
from perdure.codec import clip
from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.quantity import quantity
from perdure.records import Change, OpenCall, Snapshot, Summary
from perdure.thread_texts import spawned
from perdure.waiting import ended_early, moment
from perdure.watch import View, WatchEvent, call_of

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
    """Writes what happens in a thread, and knows how it stands (`view`).

    Attributes:
        view: the thread as a reader sees it.
        places: of messages that stand beside others, which of how many they are (`perdure.cli.tree_lines.places`);
            whoever shows a snapshot sets it first.
    """

    def __init__(self, output: Output, limit: int | None = HISTORY_MESSAGES, zone: tzinfo | None = None) -> None:
        self.view = View()
        self.places: Mapping[str, str] = {}
        self._output = output
        self._limit = limit
        self._zone = zone
        self._step: tuple[int, int] | None = None
        self._attempt = 0
        self._words: list[TextPart | ReasoningPart] = []
        self._calls: dict[str, Decision | None] = {}
        self._interims: dict[str, ToolResultPart] = {}
        self._results: set[str] = set()
        self._statuses: dict[str, Status] = {}
        self._starts: dict[str, int] = {}
        self._dues: dict[str, float] = {}
        self._summary_id: str | None = None

    @property
    def unstarted(self) -> list[str]:
        """Open calls that nothing has begun to carry out, as far as the store knows, in call order.

        Those that somebody has to approve first are not among them.
        """
        parts = self.view.head.parts if self.view.head else ()
        settled = {part.call_id for part in parts if isinstance(part, ToolResultPart)} | self.view.calls.keys()
        calls = (part for part in parts if isinstance(part, ToolCallPart) and part.error is None)
        free = (part for part in calls if part.approval is None or (part.decision and part.decision.approved))
        return [part.call_id for part in free if part.call_id not in settled]

    def show(self, event: WatchEvent) -> None:
        """Fold one event and write what it brings.

        Raises:
            ViewOutdated: see `View.apply`.
        """
        known = self.view.seq
        # Of a snapshot alone the path before it matters: for each chunk it would be a long list to copy.
        before = list(self.view.messages) if isinstance(event, Snapshot) else []
        self.view.apply(event)
        if isinstance(event, Snapshot):
            self._show_path(before)
            if event.thread.closed_at is not None:
                self._output.line("■ The thread is closed: it takes nothing more.", "yellow")
        elif event.seq > known:
            self._show_change(event)

    def _show_path(self, before: list[Message]) -> None:
        """Write the path, or of one that goes on from another only what that had not."""
        messages = self.view.messages
        same = _same(before, messages)
        if same < len(before):
            self._begin_again(before[same:], same)
        start = same if self._limit is None else max(same, len(messages) - self._limit)
        if start > same:
            self._output.line(
                f"… {quantity(start - same, 'earlier message')}: `perdure history {one_line(self.view.thread_id)}`",
                "dim",
            )
        for old, message in zip(before, messages[:same], strict=False):
            for part in message.parts[len(old.parts) :]:
                self._show_part(message, part)
            self._show_status(message)
        self._statuses.update((message.id, message.status) for message in messages[same:start])
        if any(self._is_point(message) for message in messages[:start]):
            self._show_summary()
        for message in messages[start:]:
            self._show_message(message)
        self._show_live()
        for call_id, call in self.view.calls.items():
            self._starts.setdefault(call_id, call.started)
            self._show_call(call)

    def _begin_again(self, gone: list[Message], kept: int) -> None:
        """What was written of these messages holds no longer; they may come back, and are written again then."""
        self._step, self._words = None, []
        self._summary_id = None
        for part in (part for message in gone for part in message.parts):
            if isinstance(part, ToolCallPart | ToolResultPart):
                self._results.discard(part.call_id)
                self._calls.pop(part.call_id, None)
                self._interims.pop(part.call_id, None)
        for message in gone:
            self._statuses.pop(message.id, None)
        now = "It is empty now" if not self.view.messages else "It now reads"
        if kept:
            start = words_of(self.view.messages[kept - 1])
            now = f"After “{start}” it {'now reads' if kept < len(self.view.messages) else 'ends now'}"
        self._output.line(f"⑃ The conversation was changed. {now}{':' if now.endswith('reads') else '.'}", "yellow")

    def _show_message(self, message: Message) -> None:
        if place := self.places.get(message.id):
            self._output.line(f"‹{place}›", "dim")
        is_point = self._is_point(message)
        for position, part in enumerate(message.parts):
            if is_point and self.view.summary and position == self.view.summary.parts:
                self._show_summary()
            self._show_part(message, part)
        if is_point:
            self._show_summary()
        self._show_status(message)

    def _is_point(self, message: Message) -> bool:
        return self.view.summary is not None and self.view.summary.message_id == message.id

    def _show_summary(self) -> None:
        """Say, once, what the model reads in place of what is above."""
        summary = self.view.summary
        if summary is None or summary.id == self._summary_id:
            return
        self._summary_id = summary.id
        self._output.line(f"≡ Of what is above the model reads {_read_instead(summary)}", "dim")

    def _show_new_summary(self, summary: Summary) -> None:
        """The same of one that has come just now: its point is further up."""
        point = self.view.message(summary.message_id)
        if point is None or summary.id == self._summary_id:
            return
        self._summary_id = summary.id
        place = "Up to" if summary.parts >= len(point.parts) else "Up to the middle of"
        self._output.line(f"≡ {place} “{words_of(point)}” the model now reads {_read_instead(summary)}", "dim")

    def _show_change(self, change: Change) -> None:
        if change.message:
            self._show_status(change.message)
        elif change.part:
            message = self.view.message(change.message_id or "")
            if message:
                self._show_part(message, change.part)
        elif change.call:
            self._show_start(change.call)
            self._show_call(change.call)
        elif change.summary:
            self._show_new_summary(change.summary)
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
                self._show_called(part)
            case ToolResultPart():
                self._show_result(part)
            case FilePart():
                self._output.line(
                    f"▤ {one_line(part.name or 'file')} ({part.media_type}, {quantity(part.size_bytes, 'byte')})"
                )
            case EventPart():
                self._show_event(part)
            case ContextPart():
                pass  # what the model was told besides the conversation is no word of that

    def _show_called(self, call: ToolCallPart) -> None:
        """A call, or one that is told again since it was decided about."""
        if call.call_id not in self._calls:
            self._output.line(f"→ {call_words(call)}", "cyan")
        if call.decision and not self._calls.get(call.call_id):
            mark, style = ("✓", "green") if call.decision.approved else ("✗", "red")
            self._output.line(f"{mark} {call_words(call)} {decision_words(call.decision)}", style)
        self._calls[call.call_id] = call.decision

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

    def _show_call(self, call: OpenCall) -> None:
        """What an open call of the path has come to."""
        if call.call_id not in self.view.calls:
            return
        self._show_due(call)
        if call.result:
            self._show_result(call.result)
        elif call.interim and self._interims.get(call.call_id) != call.interim:
            self._interims[call.call_id] = call.interim
            self._output.line(f"⋯ {self.call_text(call.call_id)}: {result_words(call.interim)}", "dim")

    def _show_result(self, result: ToolResultPart) -> None:
        if result.call_id in self._results:
            return
        self._results.add(result.call_id)
        decision = self._calls.get(result.call_id)
        if decision and not decision.approved:
            return  # that the call did not run, and why, was told with the decision
        call = self.call_text(result.call_id)
        child = ids.child_thread_id(self.view.thread_id, result.call_id)
        if result.content == spawned(child):
            self._output.line(f"⑂ {call}: `perdure chat {child}` shows the child thread", "green")
        elif result.outcome == "ok":
            self._output.line(f"← {call}: {result_words(result)}", "green")
        else:
            self._output.line(f"✗ {call} {result.outcome}: {result_words(result)}", "red")
        for file in result.files:
            self._output.line(f"▤ {one_line(file.media_type)}, {quantity(file.size_bytes, 'byte')}", "green")

    def call_text(self, call_id: str) -> str:
        """A call as one would write it: `get_weather(city="Paris")`; its id if it is not on the path."""
        for message in reversed(self.view.messages):
            if call := call_of(message, call_id):
                return call_words(call)
        return one_line(call_id)

    def _show_status(self, message: Message) -> None:
        status = message.status
        if message.role != "assistant" or self._statuses.get(message.id) == status:
            return
        self._statuses[message.id] = status
        if status.state == "running":
            return
        detail = f": {one_line(status.detail)}" if status.detail else ""
        match status.reason:
            case None:
                self._output.fresh()
            case "cancelled":
                self._output.line(f"■ interrupted{detail}", "yellow")
            case "steered":
                self._output.line(f"■ It {ended_early(status)}{detail}", "dim")
            case "error":
                self._output.line(f"✗ The turn failed{detail}", "red")
            case _:
                self._output.line(f"■ The turn ended early ({ended_early(status)}){detail}", "yellow")


def _read_instead(summary: Summary) -> str:
    match summary.kind:
        case "summary":
            return f"only this summary: {one_line(clip(summary.text, RESULT_CHARS))}"
        case "trace":
            return "the words, and one line of each tool call"
        case "window":
            return "nothing any more"


def _is_words(part: Part) -> bool:
    return isinstance(part, TextPart | ReasoningPart)


def _same(before: list[Message], now: list[Message]) -> int:
    """How many messages of a path stay as they were, but for what is added to them at the end."""
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if old.id != new.id or any(map(_differs, old.parts, new.parts)) or len(new.parts) < len(old.parts):
            return at
    return min(len(before), len(now))


def _differs(old: Part, new: Part) -> bool:
    if isinstance(old, ToolCallPart) and isinstance(new, ToolCallPart):
        # That it was decided about meanwhile is told with a line of its own.
        return old.with_(decision=None) != new.with_(decision=None)
    return old != new
