"""Events, and the beginnings of child threads, as a model reads them."""

import pytest

from perdure.codec import MAX_LEVELS, loads_object
from perdure.messages import EventPart, Part, ReasoningPart, Role, TextPart
from perdure.view import EVENT_TOOL, UNANSWERED, Call, ModelText, Reasoning, Request, Response, Result, UserText, view
from tests.perdure.view_paths import call, path, result, user
from tests.perdure.view_rules import items, violations


def test_events_are_a_call_and_its_result() -> None:
    """An event reads as a call that the model never made, with the event as its result."""
    event = EventPart(event_id="e1", origin_call_id="c1", content="it rains")
    seen = view(path(user("watch"), ("assistant", [TextPart(text="ok")]), ("event", [event])))
    made = seen[2].items[0]
    assert isinstance(made, Call)
    assert (made.tool, made.arguments) == (EVENT_TOOL, '{"call_id":"c1","event_id":"e1"}')
    assert seen[3] == Request((Result(made.call_id, EVENT_TOOL, "it rains"),))


def origin_of(event: EventPart) -> object:
    """The arguments of the call that an event is shown as."""
    seen = view(path(user("go"), ("event", [event])))
    assert violations(seen) == []
    (made,) = seen[1].items
    assert isinstance(made, Call)
    return loads_object(made.arguments)


def test_an_event_names_the_call_that_it_goes_back_to() -> None:
    """Its tool, id and arguments, as they were stored with the event; what is no object is an empty one."""
    event = EventPart(
        event_id="e1", origin_call_id="c1", origin_tool="watch", origin_arguments='{"city":"Paris","n":1}'
    )
    named = {"original_tool_name": "watch", "original_tool_call_id": "c1"}
    assert origin_of(event) == {**named, "original_args": {"city": "Paris", "n": 1}}
    deep = '{"a":' * MAX_LEVELS + "1" + "}" * MAX_LEVELS
    for odd in (None, "", "[]", '{"a":', '{"a":NaN}', deep):
        assert origin_of(event.with_(origin_arguments=odd)) == {**named, "original_args": {}}
    fits = deep[5:-1]
    assert origin_of(event.with_(origin_arguments=fits)) == {**named, "original_args": loads_object(fits)}


def test_events_of_rows_without_an_origin_read_as_ever() -> None:
    """What was shown before origins were stored stays byte for byte, so that no prompt cache is lost."""
    seen = view(path(user("go"), ("event", [EventPart(event_id="e1", origin_call_id="c1")])))
    (made,) = seen[1].items
    assert isinstance(made, Call)
    assert made.arguments == '{"call_id":"c1","event_id":"e1"}'


SEED = call("s1", "spawn_thread", '{"instructions":"count","child_of":["r"]}')


def test_a_child_begins_with_the_call_that_made_it_and_its_result() -> None:
    """Behind the inherited beginning of the parent's turn: a response with the call, its result, then the event."""
    event = EventPart(event_id="e1", origin_call_id="c0", content="it rains", origin_tool="watch")
    seen = view(
        path(
            user("go"),
            ("assistant", [ReasoningPart(text="hm", signature="s"), TextPart(text="I will ask")]),
            ("event", [SEED, result("s1", "You are thread c1."), event]),
        )
    )
    assert violations(seen) == []
    made = seen[4].items[0]
    assert isinstance(made, Call)
    assert seen[1:] == (
        Response((Reasoning("hm", "s"), ModelText("I will ask"))),
        Response((Call("s1", "spawn_thread", SEED.arguments),)),
        Request((Result("s1", "spawn_thread", "You are thread c1."),)),
        Response((made,)),
        Request((Result(made.call_id, EVENT_TOOL, "it rains"),)),
    )


EVENT = EventPart(event_id="e1", origin_call_id="c0", content="it rains")


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([SEED], [("spawn_thread", UNANSWERED)]),
        ([result("s1", "stray")], []),
        ([SEED, EVENT], [("spawn_thread", UNANSWERED), (EVENT_TOOL, "it rains")]),
        ([SEED, result("s1", "1"), result("s1", "2")], [("spawn_thread", "1")]),
        ([SEED, SEED, result("s1", "1"), result("s1", "2")], [("spawn_thread", "1"), ("spawn_thread", "2")]),
        ([EVENT, SEED, result("s1", "1")], [(EVENT_TOOL, "it rains"), ("spawn_thread", "1")]),
        ([EVENT, EVENT, result("s1", "1")], [(EVENT_TOOL, "it rains"), (EVENT_TOOL, "it rains")]),
        ([SEED, result("zz", "1")], [("spawn_thread", UNANSWERED)]),
        ([ReasoningPart(text="hm"), SEED, result("s1", "1")], [("spawn_thread", "1")]),
    ],
    ids=[
        "no result",
        "no call",
        "no result, event",
        "two results",
        "twice",
        "event first",
        "events",
        "foreign",
        "thought",
    ],
)
def test_a_broken_beginning_of_a_child_is_repaired(parts: list[Part], shown: list[tuple[str, str]]) -> None:
    """Whatever is missing, doubled or out of order, each call has one result, and the words after it are heard."""
    seen = view(path(user("go"), ("event", parts), user("and now?")))
    assert violations(seen) == []
    assert [(item.tool, item.text) for item in items(seen) if isinstance(item, Result)] == shown
    assert items(seen)[-1] == UserText("and now?")


def test_a_child_and_its_parent_read_the_same_up_to_where_they_part() -> None:
    """What the child inherited is the beginning of what its parent goes on with, so one prompt cache serves both."""
    before: list[tuple[Role, list[Part]]] = [user("go")]
    spoken: list[Part] = [TextPart(text="I will ask")]
    parent = items(view(path(*before, ("assistant", [*spoken, call("s1", "spawn_thread"), result("s1", "started")]))))
    child = items(view(path(*before, ("assistant", spoken), ("event", [SEED, result("s1", "You are thread c1.")]))))
    assert parent[:2] == child[:2] == [UserText("go"), ModelText("I will ask")]
