"""The activity `tell_parent`: who learns that a person has closed a child thread, and in which words."""

import pytest
from temporalio.exceptions import ApplicationError

from activities.parent import ParentActivities
from activities.thread_mail import ORIGIN, ThreadMail
from perdure.contract import TellParentRequest
from perdure.inputs import Event
from perdure.records import ThreadRecord
from perdure.thread_texts import child_dismissed
from stores.memory import MemoryStore
from tests.activities.mail import FakeCalls

CLOSED = TellParentRequest(thread_id="child")


class Family:
    """A parent that hibernates and its child, and the activity."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.calls = FakeCalls("parent", "child")
        self.mail = ThreadMail(self.store, self.calls)
        self.activities = ParentActivities(self.store, self.mail)


@pytest.fixture
async def family() -> Family:
    """With both threads stored."""
    family = Family()
    await family.store.create_thread(ThreadRecord(thread_id="parent", agent="a"))
    child = ThreadRecord(thread_id="child", agent="a", kind="child", parent_thread_id="parent", root_thread_id="parent")
    await family.store.create_thread(child)
    await family.store.set_metadata("child", {ORIGIN: "call_1"})
    return family


async def test_a_parent_is_told_that_its_child_was_closed(family: Family) -> None:
    """As of a report: an event that goes back to the call, and wakes the parent. Told again, it is the same event."""
    for _ in range(2):
        await family.activities.tell_parent(CLOSED)
    event = Event(id="closed:child", call_id="call_1", content=child_dismissed("child"), source="child")
    assert family.calls.sent == [("parent", "event", event)] * 2
    assert family.calls.woken == ["parent"] * 2


async def test_a_closed_parent_is_not_told(family: Family) -> None:
    """It would be woken to turn the event away."""
    await family.store.close_thread("parent")
    await family.activities.tell_parent(CLOSED)
    assert family.calls.sent == []


async def test_a_parent_that_has_given_its_child_up_is_not_told(family: Family) -> None:
    """The child was stopped before it ran, by the parent itself. A root has no parent at all."""
    await family.mail.stop(await family.store.get_thread("child"), None)
    await family.activities.tell_parent(CLOSED)
    await family.activities.tell_parent(TellParentRequest(thread_id="parent"))
    assert family.calls.sent == []


async def test_a_parent_that_cannot_be_reached_is_told_later(family: Family) -> None:
    """The activity fails so that Temporal repeats it."""
    family.calls.away = 1
    with pytest.raises(ApplicationError) as failure:
        await family.activities.tell_parent(CLOSED)
    assert not failure.value.non_retryable
    await family.activities.tell_parent(CLOSED)
    assert len(family.calls.sent) == 1
