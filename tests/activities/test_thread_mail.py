"""Messages between threads: what is sent, to whom, and when it is tried again."""

import pytest
from temporalio.exceptions import ApplicationError

from activities.thread_mail import MAIL_BYTES, ORIGIN, ThreadMail
from perdure import ids
from perdure.codec import digest
from perdure.inbox import Inbox
from perdure.inputs import INLINE_BYTES, Control, Event, Interrupt
from perdure.records import ThreadRecord
from stores.memory import MemoryStore
from tests.activities.mail import FakeCalls, begin_turn, end_turn


async def threads(*thread_ids: str) -> MemoryStore:
    """A store with these threads, each the child of the one before it."""
    store = MemoryStore()
    parent = None
    for thread_id in thread_ids:
        await store.create_thread(ThreadRecord(thread_id=thread_id, agent="a", parent_thread_id=parent))
        parent = thread_id
    return store


async def test_words_go_as_an_event_that_names_call_and_sender() -> None:
    """The other side knows a repetition by the id, and what it goes back to by the call."""
    calls = FakeCalls()
    mail = ThreadMail(await threads("root"), calls)
    await mail.tell("root", "report:c1", "call_1", "all done", "child")
    event = Event(id="report:c1", call_id="call_1", content="all done", source="child")
    assert calls.sent == [("root", "event", event)]


async def test_a_thread_that_sleeps_is_woken() -> None:
    """A report must not be lost because nobody is up."""
    calls = FakeCalls("root")
    await ThreadMail(await threads("root"), calls).tell("root", "report:c1", "call_1", "all done", "child")
    assert calls.woken == ["root"]


@pytest.mark.parametrize("size", [MAIL_BYTES, 8_000])
async def test_the_reports_of_500_children_may_wait_for_one_call(size: int) -> None:
    """What waits in a thread is bounded, and a report that does not fit would be lost: so long ones are references."""
    calls, inbox = FakeCalls(), Inbox()
    mail = ThreadMail(await threads("root"), calls)
    for number in range(500):
        call_id = ids.call_id("child", 1, number, 0)
        await mail.tell("root", f"report:{call_id}", call_id, f"{number:04} {'x' * (size - 5)}", "child")
    for _, _, event in calls.sent:
        assert isinstance(event, Event)
        assert inbox.put(event) is None
    assert len(inbox) == 500


async def test_large_words_are_stored_with_the_thread_that_reads_them() -> None:
    """A signal carries their beginning, the blob's id and the digest of the whole."""
    store, calls = await threads("root"), FakeCalls()
    text = "x" * (INLINE_BYTES + 1)
    await ThreadMail(store, calls).tell("root", "report:c1", "call_1", text, "child")
    ((_, _, event),) = calls.sent
    assert isinstance(event, Event)
    assert event.blob is not None
    assert len(event.content) < INLINE_BYTES
    assert event.sha256 == digest(text)
    assert await store.get_blob("root", event.blob) == text.encode()


async def test_what_cannot_be_sent_is_tried_again() -> None:
    """Temporal repeats the activity for a failure that says so; nothing was sent by the first try."""
    calls = FakeCalls()
    mail = ThreadMail(await threads("root"), calls)
    calls.away = 1
    with pytest.raises(ApplicationError, match="away") as failure:
        await mail.tell("root", "report:c1", "call_1", "all done", "child")
    assert not failure.value.non_retryable
    assert calls.sent == []
    await mail.tell("root", "report:c1", "call_1", "all done", "child")
    assert len(calls.sent) == 1


async def test_a_stop_is_an_interrupt_to_whoever_runs() -> None:
    """With the reason that was given."""
    store, calls = await threads("child"), FakeCalls()
    await ThreadMail(store, calls).stop(await store.get_thread("child"), "enough")
    assert calls.sent == [("child", "interrupt", Interrupt(reason="enough"))]


async def test_b11_a_child_that_never_ran_is_closed() -> None:
    """B11: it has no workflow to hear the stop, so the store says that it is over."""
    store, calls = await threads("child"), FakeCalls("child")
    await ThreadMail(store, calls).stop(await store.get_thread("child"), None)
    assert (await store.get_thread("child")).closed_at is not None
    assert calls.sent == []
    assert calls.woken == []


async def test_b11_a_child_that_starts_in_this_moment_is_closed_as_well() -> None:
    """B11: its workflow came up after the stop was refused, and had read the thread before it was closed."""
    store, calls = await threads("child"), FakeCalls("child")

    async def start(thread_id: str, signal: str) -> None:
        # Right after the interrupt was refused.
        if (await store.get_thread(thread_id)).closed_at is not None:
            calls.asleep.clear()

    calls.before = start
    await ThreadMail(store, calls).stop(await store.get_thread("child"), None)
    assert calls.sent == [("child", "control", Control(action="close"))]


async def test_b11_nobody_waits_for_a_child_that_was_given_up_before_it_ran() -> None:
    """Its end is no news to its parent, which is just being stopped. The control is a child that runs."""
    store, calls = await threads("root", "child"), FakeCalls()
    mail = ThreadMail(store, calls)
    await store.set_metadata("child", {ORIGIN: "call_1"})
    await mail.stop(await store.get_thread("child"), None)
    assert await mail.origin("child") == "call_1"
    calls.asleep.add("child")
    await mail.stop(await store.get_thread("child"), None)
    assert await mail.origin("child") == ""


async def test_a_thread_that_sleeps_in_a_turn_is_woken_to_be_stopped() -> None:
    """One that waits for a result, for instance: the turn is open though no workflow runs."""
    store, calls = await threads("child"), FakeCalls("child")
    await begin_turn(store, "child")
    await ThreadMail(store, calls).stop(await store.get_thread("child"), "enough")
    assert calls.woken == ["child"]
    assert calls.sent == [("child", "interrupt", Interrupt(reason="enough"))]


async def test_a_thread_that_sleeps_with_children_is_woken_to_pass_the_stop_on() -> None:
    """It does nothing itself; those below it may."""
    store, calls = await threads("child", "grandchild"), FakeCalls("child")
    await begin_turn(store, "child")
    await end_turn(store, "child")
    await ThreadMail(store, calls).stop(await store.get_thread("child"), None)
    assert calls.woken == ["child"]


async def test_a_thread_that_sleeps_and_has_nothing_to_stop_sleeps_on() -> None:
    """The control: a stop is no reason to wake everybody."""
    store, calls = await threads("child"), FakeCalls("child")
    await begin_turn(store, "child")
    await end_turn(store, "child")
    await ThreadMail(store, calls).stop(await store.get_thread("child"), None)
    assert (calls.woken, calls.sent) == ([], [])
    assert (await store.get_thread("child")).closed_at is None
