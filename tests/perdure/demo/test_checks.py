"""The checks of the demo find what they are for, each with faults that must break it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from temporalio.api.common.v1 import ActivityType, Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    ActivityTaskCompletedEventAttributes,
    ActivityTaskScheduledEventAttributes,
    HistoryEvent,
)

from perdure import ids
from perdure.batch import SyncReport
from perdure.codec import Wire, dumps
from perdure.contract import COMPLETE, DISPATCH, SYNC, CallOutline, CompleteRequest, CompleteResult, DispatchRequest
from perdure.demo.agent import agent
from perdure.demo.checks import check
from perdure.demo.evidence import Evidence, Notes
from perdure.demo.tool_runs import ToolRun
from perdure.messages import Message, Part, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path

THREAD = "t1"
OLD, NEW = 10, 11  # processes of the worker that was killed, and of the one after it
BOOK = ids.call_id(THREAD, 1, 0, 0)
LOOK = ids.call_id(THREAD, 1, 0, 1)


def message(role: Role, number: int, *parts: Part, status: Status | None = None) -> Message:
    """The message of a turn: the user's words, or the answer to them."""
    user = ids.input_message_id(THREAD, f"m{number}")
    turn = ids.turn_message_id(THREAD, number)
    return Message(
        id=user if role == "user" else turn,
        thread_id=THREAD,
        role=role,
        parent_id=user if role == "assistant" else None,
        turn=number,
        status=status or Status(),
        parts=parts,
        input_id=f"m{number}" if role == "user" else None,
    )


def scheduled(event_id: int, name: str, request: Wire) -> HistoryEvent:
    """An activity is scheduled."""
    return HistoryEvent(
        event_id=event_id,
        event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        activity_task_scheduled_event_attributes=ActivityTaskScheduledEventAttributes(
            activity_type=ActivityType(name=name),
            input=Payloads(payloads=[Payload(data=dumps(request).encode())]),
        ),
    )


def completed(event_id: int, scheduled_id: int, result: Wire) -> HistoryEvent:
    """An activity has ended."""
    return HistoryEvent(
        event_id=event_id,
        event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        activity_task_completed_event_attributes=ActivityTaskCompletedEventAttributes(
            scheduled_event_id=scheduled_id,
            result=Payloads(payloads=[Payload(data=dumps(result).encode())]),
        ),
    )


def dispatch(event_id: int, call_id: str) -> HistoryEvent:
    """A call is dispatched."""
    return scheduled(event_id, DISPATCH, DispatchRequest(thread_id=THREAD, agent="demo", call_id=call_id))


def evidence() -> Evidence:
    """What a good demo leaves: a turn of two tools in which the worker died, and a turn that was interrupted."""
    answered = message(
        "assistant",
        1,
        TextPart(text="I see to it."),
        ToolCallPart(call_id=BOOK, tool="book_table", arguments='{"people":4,"restaurant":"Chez Marie"}'),
        ToolCallPart(call_id=LOOK, tool="get_weather", arguments='{"city":"Oslo"}'),
        ToolResultPart(call_id=BOOK, outcome="error", content="The outcome is unknown."),
        ToolResultPart(call_id=LOOK, content="snow"),
        TextPart(text="It snows.", step=1),
    )
    stopped = message("assistant", 2, TextPart(text="Once"), status=Status(state="incomplete", reason="cancelled"))
    return Evidence(
        thread_id=THREAD,
        notes=Notes(
            inputs={"m1": "book", "m2": "tell"},
            repeated=["m1"],
            killed_words=["Process 10 speaks"],
            killed_pids=[OLD],
            stop_s=0.1,
        ),
        path=Path(
            messages=(
                message("user", 1, TextPart(text="book")),
                answered,
                message("user", 2, TextPart(text="tell")),
                stopped,
            )
        ),
        events=[
            scheduled(1, COMPLETE, CompleteRequest(thread_id=THREAD, agent="demo", turn=1)),
            completed(2, 1, CompleteResult(calls=tuple(CallOutline(index=n, tool="tool") for n in (0, 1)))),
            scheduled(3, SYNC, Wire()),
            completed(4, 3, SyncReport(number=1, steps=((1, 0),))),
            dispatch(5, BOOK),
            dispatch(6, LOOK),
        ],
        runs=[
            ToolRun("book_table", {"restaurant": "Chez Marie", "people": 4}, OLD, returned=False),
            ToolRun("get_weather", {"city": "Oslo"}, OLD, returned=False),
            ToolRun("get_weather", {"city": "Oslo"}, NEW, returned=True),
        ],
        retry_safe={name: tool.retry_safe for name, tool in agent.tools.items()},
    )


def with_messages(good: Evidence, *messages: Message) -> Evidence:
    """The same with another conversation."""
    return replace(good, path=Path(messages=messages))


def with_parts(good: Evidence, position: int, change: Callable[[tuple[Part, ...]], tuple[Part, ...]]) -> Evidence:
    """The same with other parts in one message."""
    messages = list(good.path.messages)
    messages[position] = messages[position].with_(parts=change(messages[position].parts))
    return with_messages(good, *messages)


def ran_again(good: Evidence, tool: str, *, returned: bool) -> Evidence:
    """The same with one more run of a tool, by the worker that lived."""
    first = next(run for run in good.runs if run.tool == tool)
    return replace(good, runs=[*good.runs, replace(first, pid=NEW, returned=returned)])


def test_a_good_run_keeps_every_promise() -> None:
    """The control of all controls: nothing is wrong with evidence that is right."""
    assert [item for item in check(evidence()) if item.verdict != "ok"] == []


FAULTS: dict[str, list[tuple[str, Callable[[Evidence], Evidence]]]] = {
    "each message is answered once": [
        ("a message has no answer", lambda good: with_messages(good, *good.path.messages[:3])),
        ("a message is there twice", lambda good: with_messages(good, *good.path.messages, *good.path.messages[:2])),
        ("a message is lost", lambda good: with_messages(good, *good.path.messages[2:])),
        (
            "an answer is not finished",
            lambda good: with_messages(
                good, *good.path.messages[:3], message("assistant", 2, status=Status(state="running"))
            ),
        ),
        (
            "an answer failed",
            lambda good: with_messages(
                good,
                *good.path.messages[:3],
                message("assistant", 2, status=Status(state="incomplete", reason="error", detail="no key")),
            ),
        ),
        (
            "a message is answered twice",
            lambda good: with_messages(
                good, *good.path.messages, message("assistant", 3, TextPart(text="again")).with_(parent_id="x")
            ),
        ),
    ],
    "a step is synced before its calls are dispatched": [
        (
            "dispatch before the sync",
            lambda good: replace(good, events=[*good.events[:2], *good.events[4:], *good.events[2:4]]),
        ),
        ("a call is dispatched twice", lambda good: replace(good, events=[*good.events, dispatch(7, LOOK)])),
        ("a call is never dispatched", lambda good: replace(good, events=good.events[:5])),
    ],
    "no call runs its tool twice, unless it is retry_safe and was cut off": [
        ("a booking runs twice", lambda good: ran_again(good, "book_table", returned=True)),
        ("a booking begins twice", lambda good: ran_again(good, "book_table", returned=False)),
        ("a safe tool runs again without a kill", lambda good: ran_again(good, "get_weather", returned=True)),
        (
            "a tool runs that nobody called",
            lambda good: replace(good, runs=[*good.runs, ToolRun("get_weather", {"city": "Rome"}, NEW, returned=True)]),
        ),
    ],
    "each call has one result": [
        ("a result is missing", lambda good: with_parts(good, 1, lambda parts: (*parts[:4], *parts[5:]))),
        ("a result is doubled", lambda good: with_parts(good, 1, lambda parts: (*parts[:4], parts[3], *parts[4:]))),
        ("results are swapped", lambda good: with_parts(good, 1, lambda parts: (*parts[:3], parts[4], parts[3]))),
    ],
    "nothing is stored twice": [
        ("a text is doubled", lambda good: with_parts(good, 1, lambda parts: (parts[0], *parts))),
        ("a call is doubled", lambda good: with_parts(good, 1, lambda parts: (*parts[:3], parts[2], *parts[3:]))),
        ("a message is doubled", lambda good: with_messages(good, *good.path.messages, good.path.messages[3])),
    ],
    "no word of a killed attempt is history": [
        (
            "the words of the killed attempt stay",
            lambda good: with_parts(good, 3, lambda _: (TextPart(text="Process 10 speaks. Process 11 speaks."),)),
        ),
        (
            "the words of a killed model stay before the same words of the next",
            lambda good: replace(
                with_parts(good, 3, lambda _: (TextPart(text="Durable isDurable is what lasts."),)),
                notes=replace(good.notes, killed_words=["Durable is"]),
            ),
        ),
    ],
    "an interrupted answer keeps what was said": [
        ("what was said is gone", lambda good: with_parts(good, 3, lambda _: ())),
    ],
}


@pytest.mark.parametrize(
    ("promise", "fault"),
    [
        pytest.param(promise, fault, id=name.replace(" ", "-"))
        for promise, faults in FAULTS.items()
        for name, fault in faults
    ],
)
def test_a_fault_breaks_its_promise(promise: str, fault: Callable[[Evidence], Evidence]) -> None:
    """Each fault makes just the check fail that is there for it, whatever else it breaks."""
    assert promise in [item.promise for item in check(fault(evidence())) if item.verdict == "failed"]


def test_what_did_not_happen_is_not_taken_for_right() -> None:
    """A check that had nothing to look at says so: nothing was called, streamed or interrupted."""
    empty = Evidence(THREAD, Notes(), Path(), [], [], {})
    assert {item.verdict for item in check(empty)} == {"not seen"}


def test_every_promise_but_the_view_has_a_fault_that_breaks_it() -> None:
    """The view repairs whatever it is given, so only its own tests can break it."""
    assert {item.promise for item in check(evidence())} - set(FAULTS) == {"the next model call is valid"}
