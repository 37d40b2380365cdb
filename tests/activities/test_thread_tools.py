"""The tools by which threads reach each other: who may say what to whom, and in which words."""

import pytest

from activities.thread_mail import ORIGIN, ThreadMail
from activities.thread_tools import ThreadTools
from activities.tool_output import ToolOutput
from perdure.batch import SyncBatch, TrackSubscription
from perdure.builtins import Threads
from perdure.codec import dumps
from perdure.inputs import Event
from perdure.records import OpenCall, ThreadKind, ThreadRecord
from stores.memory import MemoryStore
from tests.activities.mail import FakeCalls

TOOLS = {tool.name: tool for tool in Threads().tools}


class Household:
    """A root, its child and the child of that, each spawned by `call_<name of the child>`."""

    def __init__(self, kind: ThreadKind = "child") -> None:
        self.store = MemoryStore()
        self.calls = FakeCalls()
        self._kind: ThreadKind = kind
        self._tools = ThreadTools(self.store, ThreadMail(self.store, self.calls))

    async def run(self, thread: str, tool: str, /, **arguments: object) -> ToolOutput:
        """Carry out a call of a thread."""
        call = OpenCall(
            call_id="call_1", message_id="a1", turn=1, step=0, index=0, tool=tool, arguments=dumps(arguments)
        )
        return await self._tools.run(TOOLS[tool], call, thread)

    async def make(self) -> None:
        """Make the threads."""
        parent = None
        for name in ("root", "child", "grandchild"):
            record = ThreadRecord(
                thread_id=name, agent="a", kind="root" if parent is None else self._kind, parent_thread_id=parent
            )
            await self.store.create_thread(record)
            await self.store.set_metadata(name, {ORIGIN: f"call_{name}"})
            parent = name


@pytest.fixture
async def household() -> Household:
    """Three threads in a line."""
    household = Household()
    await household.make()
    return household


def told(household: Household) -> tuple[str, Event]:
    """To whom the one event went, and which."""
    ((thread_id, signal, event),) = household.calls.sent
    assert signal == "event"
    assert isinstance(event, Event)
    return thread_id, event


async def test_a_report_goes_to_the_parent_and_names_its_spawn_call(household: Household) -> None:
    """The words stay as they are; a repetition of the call sends the same id."""
    for _ in range(2):
        output = await household.run("child", "report_to_parent", report="half done")
        assert output == ToolOutput("The report was sent.")
    (first, second) = household.calls.sent
    assert first == second
    thread_id, _, event = first
    assert thread_id == "root"
    assert event == Event(
        id="report:call_1",
        call_id="call_child",
        content="The child thread child reports:\n\nhalf done",
        source="child",
    )


async def test_a_grandchild_reports_to_its_parent_not_to_the_root(household: Household) -> None:
    """Each level hears from the one below it."""
    await household.run("grandchild", "report_to_parent", report="half done")
    thread_id, event = told(household)
    assert (thread_id, event.call_id) == ("child", "call_grandchild")


@pytest.mark.parametrize(
    ("thread", "tool", "arguments", "sentence"),
    [
        ("root", "report_to_parent", {"report": "hello"}, "no parent"),
        ("root", "close_thread", {"thread_id": "root"}, "only people close it"),
        ("child", "close_thread", {"thread_id": "root"}, "you are in child, not 'root'"),
        ("child", "close_thread", {"thread_id": "grandchild"}, "you are in child, not 'grandchild'"),
        ("root", "send_message_to_child", {"thread_id": "grandchild", "message": "hi"}, "no child 'grandchild'"),
        ("root", "send_message_to_child", {"thread_id": "root", "message": "hi"}, "no child 'root'"),
        ("child", "send_message_to_child", {"thread_id": "root", "message": "hi"}, "no child 'root'"),
        ("root", "send_message_to_child", {"thread_id": "x" * 500, "message": "hi"}, "no child"),
    ],
)
async def test_what_is_not_allowed_sends_nothing(
    thread: str, tool: str, arguments: dict[str, str], sentence: str, household: Household
) -> None:
    """The error says why, in a sentence of a bounded length."""
    output = await household.run(thread, tool, **arguments)
    assert output.outcome == "error"
    assert sentence in output.content
    assert len(output.content) < 300
    assert household.calls.sent == []


@pytest.mark.parametrize(
    ("kind", "report", "words"),
    [
        ("child", None, "The child thread child is closed; it has nothing to report."),
        ("child", "all done", "The child thread child reports and is closed:\n\nall done"),
        ("event", None, None),
        ("event", "", None),
        ("event", "it broke", "The thread child, which handled an event, reports and is closed:\n\nit broke"),
    ],
)
async def test_the_end_of_a_thread_is_told_to_whoever_asked_for_it(
    kind: ThreadKind, report: str | None, words: str | None
) -> None:
    """A child thread always; a thread for an event, which nobody has asked for, only with a report."""
    household = Household(kind)
    await household.make()
    given = {} if report is None else {"report_to_parent": report}
    assert (await household.run("child", "close_thread", thread_id="child", **given)).outcome == "ok"
    assert [event.content for _, _, event in household.calls.sent if isinstance(event, Event)] == (
        [] if words is None else [words]
    )


async def test_a_report_of_an_event_says_that_its_subscription_goes_on() -> None:
    """The parent may want to end it."""
    household = Household("event")
    await household.make()
    tracked = TrackSubscription(call_id="call_child", tool="watch")
    await household.store.append_messages(SyncBatch(thread_id="root", number=1, sync_id="s1", operations=(tracked,)))
    await household.run("child", "close_thread", thread_id="child", report_to_parent="it broke")
    _, event = told(household)
    assert "The subscription call_child stays active" in event.content


async def test_a_message_goes_to_the_child_and_names_its_spawn_call(household: Household) -> None:
    """The child knows the call: its first message holds it."""
    output = await household.run("root", "send_message_to_child", thread_id="child", message="hurry up")
    assert output == ToolOutput("The message was sent.")
    assert told(household) == (
        "child",
        Event(
            id="message:call_1",
            call_id="call_child",
            content="A message from your parent thread:\n\nhurry up",
            source="parent",
        ),
    )


async def test_a_message_to_a_closed_child_is_an_error(household: Household) -> None:
    """The model is told that nobody reads it, instead of that it was sent."""
    await household.store.close_thread("child")
    output = await household.run("root", "send_message_to_child", thread_id="child", message="hurry up")
    assert (output.outcome, "is closed" in output.content) == ("error", True)
    assert household.calls.sent == []
