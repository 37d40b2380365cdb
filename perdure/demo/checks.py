"""What must be true after the demo, whatever was killed and interrupted in it. Pure: evidence in, verdicts out.

A check that had nothing to look at, because the model called no tool or was done before it could be killed, says so
instead of passing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal

from perdure.codec import dumps, loads
from perdure.demo.evidence import Evidence
from perdure.demo.tool_runs import ToolRun
from perdure.messages import Message, TextPart, ToolCallPart, ToolResultPart
from perdure.ordering import dispatched_calls, early_dispatches
from perdure.view import Call, ModelText, Request, Response, Result, UserText, view
from perdure.watch import is_settled

Verdict = Literal["ok", "failed", "not seen"]


@dataclass(frozen=True)
class Check:
    """A promise, whether it was kept, and what was counted."""

    promise: str
    verdict: Verdict
    detail: str


def check(evidence: Evidence) -> list[Check]:
    """Judge everything."""
    return [_judge(promise, judge(evidence)) for promise, judge in _JUDGES.items()]


@dataclass(frozen=True)
class _Finding:
    seen: str
    faults: list[str]
    happened: bool = True


def _judge(promise: str, finding: _Finding) -> Check:
    if finding.faults:
        return Check(promise, "failed", "; ".join(finding.faults))
    return Check(promise, "ok" if finding.happened else "not seen", finding.seen)


def _inputs(evidence: Evidence) -> _Finding:
    messages = evidence.path.messages
    inputs = evidence.notes.inputs
    arrived = Counter(message.input_id for message in messages if message.role == "user")
    faults = [f"message {id!r} is there {arrived[id]} times" for id in inputs if arrived[id] != 1]
    faults += [f"nobody sent {id!r}" for id in arrived if id not in inputs]
    answers = 0
    for message, following in zip_longest(messages, messages[1:]):
        if message.role == "assistant":
            answers += 1
        elif following is None or following.role != "assistant" or following.parent_id != message.id:
            faults.append(f"message {message.input_id!r} has no answer")
        elif not is_settled(following):
            faults.append(f"the answer to {message.input_id!r} is not finished")
        elif following.status.reason not in (None, "cancelled"):
            faults.append(f"the answer to {message.input_id!r} failed: {following.status.detail}")
    if answers > len(inputs):
        faults.append(f"{answers} answers to {len(inputs)} messages")
    repeated = f", {len(evidence.notes.repeated)} of them sent twice" if evidence.notes.repeated else ""
    return _Finding(f"{len(inputs)} messages{repeated}, {answers} answers", faults, bool(inputs))


def _order(evidence: Evidence) -> _Finding:
    dispatched = dispatched_calls(evidence.events)
    expected = {call.call_id for call in _calls(evidence) if call.error is None}
    faults = early_dispatches(evidence.events, evidence.thread_id)
    faults += [f"{call_id} was never dispatched" for call_id in expected - set(dispatched)]
    faults += [f"{call_id} was dispatched {count} times" for call_id, count in Counter(dispatched).items() if count > 1]
    seen = f"{len(dispatched)} dispatches in {len(evidence.events)} events of Temporal's history"
    return _Finding(seen, faults, bool(dispatched))


def _runs(evidence: Evidence) -> _Finding:
    calls = Counter(_key(call.tool, loads(call.arguments)) for call in _calls(evidence) if call.error is None)
    runs: dict[str, list[ToolRun]] = {}
    for run in evidence.runs:
        runs.setdefault(_key(run.tool, run.arguments), []).append(run)
    faults: list[str] = []
    for key, found in runs.items():
        # A run that a kill cut off may be made up for, but only where the tool is declared to bear it.
        again = [run for run in found if not run.returned and run.pid in evidence.notes.killed_pids]
        allowed = calls[key] + (len(again) if evidence.retry_safe[found[0].tool] else 0)
        if len(found) > allowed:
            faults.append(f"{key} ran {len(found)} times for {calls[key]} call(s)")
    cut = sum(not run.returned for run in evidence.runs)
    seen = f"{sum(calls.values())} calls, {len(evidence.runs)} runs, {cut} of them cut off by a kill"
    return _Finding(seen, faults, bool(evidence.runs and cut))


def _results(evidence: Evidence) -> _Finding:
    faults: list[str] = []
    count = 0
    for message in _answers(evidence):
        for step in range(1 + max((part.step for part in message.parts), default=-1)):
            calls = [part.call_id for part in message.parts if isinstance(part, ToolCallPart) and part.step == step]
            results = [part.call_id for part in message.parts if isinstance(part, ToolResultPart) and part.step == step]
            count += len(results)
            if calls != results:
                faults.append(f"the calls {calls} have the results {results}")
    return _Finding(f"{count} results, in the order of their calls", faults, bool(count))


def _once(evidence: Evidence) -> _Finding:
    messages = evidence.path.messages
    calls = _calls(evidence)
    texts = [
        (message.id, part.step, part.text)
        for message in messages
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    faults = [
        *_repeated("message", (message.id for message in messages)),
        *_repeated("call", (call.call_id for call in calls)),
        *_repeated("text", texts),
    ]
    return _Finding(f"{len(messages)} messages, {len(texts)} texts, {len(calls)} calls", faults, bool(messages))


def _drafts(evidence: Evidence) -> _Finding:
    said = [part.text for message in _answers(evidence) for part in message.parts if isinstance(part, TextPart)]
    killed = evidence.notes.killed_words
    faults: list[str] = []
    for words in killed:
        # A model may say the same again in its next attempt, but not what names the process that was killed.
        allowed = 0 if any(re.search(rf"\b{pid}\b", words) for pid in evidence.notes.killed_pids) else 1
        faults += [f"{words[:40]!r} … is in the history" for text in said if text.count(words) > allowed]
    return _Finding(f"{sum(map(len, killed))} characters had streamed when the worker was killed", faults, bool(killed))


def _stopped(evidence: Evidence) -> _Finding:
    stopped = [message for message in _answers(evidence) if message.status.reason == "cancelled"]
    faults = ["the interrupted answer lost its words" for message in stopped if not _words(message)]
    seen = f"{sum(len(_words(message)) for message in stopped)} characters kept"
    if evidence.notes.stop_s is not None:
        seen += f", stopped in {evidence.notes.stop_s * 1000:.0f} ms"
    return _Finding(seen, faults, bool(stopped))


def _view(evidence: Evidence) -> _Finding:
    """What the next model call would be given, looked at as a provider does."""
    items = view(evidence.path)
    faults: list[str] = []
    for item, following in zip_longest(items, items[1:]):
        if isinstance(item, Response):
            called = [part.call_id for part in item.items if isinstance(part, Call)]
            answered = (
                [part.call_id for part in following.items if isinstance(part, Result)]
                if isinstance(following, Request)
                else []
            )
            if called != answered:
                faults.append(f"the calls {called} are answered by {answered}")
        faults += [
            "a blank text" for part in item.items if isinstance(part, UserText | ModelText) and not part.text.strip()
        ]
    if items and not isinstance(items[0], Request):
        faults.append("it does not begin with the user")
    return _Finding(f"{len(items)} requests and responses", faults, bool(items))


_JUDGES: Final[dict[str, Callable[[Evidence], _Finding]]] = {
    "each message is answered once": _inputs,
    "a step is synced before its calls are dispatched": _order,
    "no call runs its tool twice, unless it is retry_safe and was cut off": _runs,
    "each call has one result": _results,
    "nothing is stored twice": _once,
    "no word of a killed attempt is history": _drafts,
    "an interrupted answer keeps what was said": _stopped,
    "the next model call is valid": _view,
}


def _answers(evidence: Evidence) -> list[Message]:
    return [message for message in evidence.path.messages if message.role == "assistant"]


def _calls(evidence: Evidence) -> list[ToolCallPart]:
    return [part for message in _answers(evidence) for part in message.parts if isinstance(part, ToolCallPart)]


def _words(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _key(tool: str, arguments: dict[str, object]) -> str:
    return f"{tool}({', '.join(f'{name}={dumps(arguments[name])}' for name in sorted(arguments))})"


def _repeated(what: str, values: Iterable[object]) -> list[str]:
    return [f"{what} {value} is there {count} times" for value, count in Counter(values).items() if count > 1]
