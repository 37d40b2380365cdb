"""What tests of subscriptions do with a thread: subscribe, make an event, look at what became of it."""

from typing import Any

from perdure.inputs import Event, ToolResult
from perdure.messages import EventPart, TextPart
from tests.perdure.driven import Thread


def subscribe(thread: Thread) -> str:
    """The thread makes a call that subscribes, and is idle again; returns its id."""
    if thread.phase() == "idle":
        thread.say("watch it", f"m{thread.store.version}")
    (name,) = thread.act("watch")
    assert thread.take(ToolResult(call_id=name, content="Watching.", subscription=True)) == "settled"
    thread.answer(TextPart(text="I watch."))
    return name


def event(name: str, number: int = 1, **fields: Any) -> Event:
    """An event of a call."""
    return Event(id=f"e{number}", call_id=name, content=f"n{number}", **fields)


def tracked(thread: Thread) -> list[str]:
    """The calls that the store knows as subscriptions."""
    assert thread.store.subscriptions == [
        one.with_(minute=0, in_minute=0) for one in thread.history.state.subscriptions
    ]
    return [one.call_id for one in thread.store.subscriptions]


def events(thread: Thread) -> list[EventPart]:
    """The events that joined the conversation."""
    return [part for message in thread.store.messages for part in message.parts if isinstance(part, EventPart)]
