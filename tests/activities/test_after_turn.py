"""What happens when a turn is over: hooks in reverse, each once, whatever fails."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment
from typing_extensions import override

from activities.after_turn import AfterTurnActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, SetStatus
from perdure.context import Context, ProviderRun, RunOutcome
from perdure.contract import AfterTurnRequest, AfterTurnResult
from perdure.errors import StoreUnavailable
from perdure.history_provider import HistoryProvider, words
from perdure.messages import EventPart, FilePart, Message, Status, StatusReason, TextPart, ToolCallPart, ToolResultPart
from perdure.policy import ErrorType
from perdure.records import LoggedMessage, ProviderState, Summary, ThreadRecord
from perdure.testing import Call, Reply
from perdure.turn_context import ContextMessage
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, failed, scripted
from tests.activities.providers import Teller

REQUEST = AfterTurnRequest(thread_id="t", agent="a", turn=1, message_id=ids.turn_message_id("t", 1))


class Settled:
    """A thread with one settled turn of an agent, and the activity over it."""

    def __init__(self, thread: Conversation) -> None:
        self.thread = thread
        self.store = thread.store
        self.hooks = AfterTurnActivities(thread.store, Agents([thread.agent]))

    @classmethod
    async def start(cls, *context: Any, store: MemoryStore | None = None) -> "Settled":
        """Words, one call, an answer."""
        agent = scripted([Reply("let me see", Call("look")), "it is there"], context=context)

        @agent.tool
        async def look() -> str:
            """Look."""
            return ""

        thread = await Conversation.start(agent, store)
        await thread.say("where?")
        await thread.commit(await thread.complete(), "on the table")
        await thread.commit(await thread.complete())
        return cls(thread)

    async def after(self) -> AfterTurnResult:
        """Run it once."""
        return await ActivityEnvironment().run(self.hooks.after_turn, REQUEST)


async def test_hooks_run_in_reverse_order_with_what_became_of_the_turn() -> None:
    """Every provider gets the words, the whole message, and what all had said; its state is kept."""
    journal: list[str] = []
    first, second = Teller("first", "f", journal=journal), Teller("second", "s", journal=journal)
    turn = await Settled.start(first, second)
    assert await turn.after() == AfterTurnResult(finished=("second", "first"))
    assert journal == ["before first", "before second", "after second", "after first"]
    run, outcome = first.told[0]
    assert (run.turn, run.step, [message.id for message in run.input]) == (1, 1, ["u1"])
    assert (outcome.result, outcome.status, outcome.error) == ("success", Status(), None)
    assert [part.kind for part in outcome.message.parts] == ["text", "tool_call", "tool_result", "text"]
    assert outcome.context == {"first": (ContextMessage(text="f"),), "second": (ContextMessage(text="s"),)}
    states = await turn.store.get_provider_states("t")
    assert {name: state.values for name, state in states.items()} == {"first": {"turns": 1}, "second": {"turns": 1}}


async def test_a_repetition_runs_no_hook_and_what_was_said_is_forgotten() -> None:
    """The reply of the first was lost, and Temporal asks again. Control: before it, what was said is stored."""
    teller = Teller("b", "words")
    turn = await Settled.start(teller)
    assert await turn.store.get_turn_context("t", 1, 0) is not None
    first = await turn.after()
    assert await turn.store.get_turn_context("t", 1, 0) is None
    assert await turn.after() == first
    assert len(teller.told) == 1


async def test_a_hook_that_fails_is_named_and_tried_again_and_the_others_run_once() -> None:
    """The failure may be tried again; its retry runs that hook alone, and what was said is kept until then."""
    journal: list[str] = []
    tellers = [Teller(name, "words", journal=journal, failures=name == "b") for name in ("a", "b", "c")]
    turn = await Settled.start(*tellers)
    with capture_logs() as logs:
        error = await failed(turn.after())
    assert error.message == "Context provider 'b' failed after turn 1: ValueError: b is broken."
    assert (error.type, error.non_retryable) == (ErrorType.CONTEXT, False)
    assert [log["provider"] for log in logs] == ["b"]
    assert journal[3:] == ["after c", "after b", "after a"]
    assert await turn.after() == AfterTurnResult(finished=("c", "b", "a"))
    assert journal[6:] == ["after b"]
    outcome = tellers[1].told[0][1]
    assert outcome.context["c"] == (ContextMessage(text="words"),)


async def test_b58_a_shutdown_hands_the_hooks_over_and_is_no_stop() -> None:
    """What is cancelled after the worker's grace fails in a way that is retried; a cancellation is passed on."""
    begun = asyncio.Event()

    class Hanging(Teller):
        @override
        async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
            begun.set()
            await asyncio.Event().wait()

    turn = await Settled.start(Hanging("b"), Teller("c"))
    for details in (
        ActivityCancellationDetails(worker_shutdown=True),
        ActivityCancellationDetails(cancel_requested=True),
    ):
        begun.clear()
        environment = ActivityEnvironment()
        running = asyncio.create_task(environment.run(turn.hooks.after_turn, REQUEST))
        await begun.wait()
        environment.cancel(details)
        if details.worker_shutdown:
            error = await failed(running)
            assert (error.type, error.non_retryable) == (ErrorType.WORKER_SHUTDOWN, False)
        else:
            with pytest.raises(asyncio.CancelledError):
                await running
    assert await turn.store.finished_hooks("t", 1) == ("c",)


async def test_a_hook_that_cancels_itself_is_a_failure_like_any_other() -> None:
    """It awaited something that was cancelled; the others still run."""

    class Cancelled(Teller):
        @override
        async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
            raise asyncio.CancelledError

    other = Teller("c")
    turn = await Settled.start(other, Cancelled("b"))
    error = await failed(turn.after())
    assert "Context provider 'b' failed after turn 1: it was cancelled." in error.message
    assert len(other.told) == 1


async def test_a_hook_that_ends_the_process_is_a_failure_like_any_other() -> None:
    """`sys.exit` in a provider ends no worker; the others still run."""

    class Leaving(Teller):
        @override
        async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
            raise SystemExit(3)

    other = Teller("c")
    turn = await Settled.start(other, Leaving("b"))
    assert "SystemExit: 3" in (await failed(turn.after())).message
    assert len(other.told) == 1


async def test_a_sink_that_fails_warns_and_the_turn_goes_on() -> None:
    """It is a problem of the thread and nobody tries again. Control: without `write_only` it fails the activity."""
    sink = Teller("audit", failures=5, write_only=True)
    turn = await Settled.start(sink)
    result = await turn.after()
    assert result.problems == ("Context provider 'audit' failed after turn 1: ValueError: audit is broken.",)
    assert (await turn.after()).problems == ()
    assert sink.failures == 4
    sink.write_only = False
    await failed((await Settled.start(sink)).after())


async def test_a_sink_is_told_once_though_others_are_tried_again() -> None:
    """Whether it failed or not; its failure is in the log, and along with theirs."""
    journal: list[str] = []
    sink, other = Teller("audit", journal=journal, failures=1, write_only=True), Teller("other", failures=1)
    turn = await Settled.start(other, sink)
    with capture_logs() as logs:
        error = await failed(turn.after())
    assert "'other'" in error.message
    assert "'audit'" in error.message
    assert [log["provider"] for log in logs] == ["audit", "other"]
    assert await turn.store.finished_hooks("t", 1) == ("audit",)
    assert await turn.after() == AfterTurnResult(finished=("audit", "other"))
    assert journal.count("after audit") == 1
    assert len(other.told) == 1


async def test_a_hook_whose_worker_dies_runs_again_on_the_same_state() -> None:
    """State and mark are one transaction: either both are there, or the hook runs again as if it never had."""

    class Dying(MemoryStore):
        dies = True

        @override
        async def finish_hook(self, thread_id: str, turn: int, source: str, state: ProviderState | None = None) -> bool:
            if self.dies:
                self.dies = False
                raise StoreUnavailable("The database cannot be reached.")
            return await super().finish_hook(thread_id, turn, source, state)

    teller = Teller("b", write_only=True)
    turn = await Settled.start(teller, store=Dying())
    error = await failed(turn.after())
    assert (error.type, error.non_retryable) == (ErrorType.STORE, False)
    assert await turn.after() == AfterTurnResult(finished=("b",))
    assert len(teller.told) == 2
    assert (await turn.store.get_provider_states("t"))["b"].values == {"turns": 1}


async def test_a_hook_runs_again_on_the_state_that_another_turn_has_written_meanwhile() -> None:
    """No count is lost."""

    class Busy(Teller):
        meanwhile: Settled | None = None

        @override
        async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
            await super().after_run(run, outcome)
            if self.meanwhile is not None:
                store, self.meanwhile = self.meanwhile.store, None
                await store.finish_hook("t", 2, "b", ProviderState(values={"turns": 1}))

    teller = Busy("b")
    turn = await Settled.start(teller)
    teller.meanwhile = turn
    await turn.after()
    state = (await turn.store.get_provider_states("t"))["b"]
    assert (state.values, state.version) == ({"turns": 2}, 2)


class Odd(Teller):
    """Leaves in its state what cannot be stored."""

    @override
    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        await super().after_run(run, outcome)
        run.state.update(fine=1, odd=object())


NOT_JSON = "Context provider 'b' failed after turn 1: what it left in its state is not JSON, so nothing of it was kept."


async def test_state_that_is_not_json_is_refused_and_the_hook_is_not_run_again() -> None:
    """It would leave the same again, and do again what it does elsewhere. Its old state stays; the others are told."""
    odd, others = Odd("b"), [Teller("a"), Teller("c")]
    turn = await Settled.start(others[0], odd, others[1])
    old = ProviderState(values={"turns": 7})
    await turn.store.finish_hook("t", 9, "b", old)
    with capture_logs() as logs:
        assert await turn.after() == AfterTurnResult(finished=("c", "b", "a"), problems=(NOT_JSON,))
    assert [log["reason"] for log in logs] == [NOT_JSON]
    assert (await turn.store.get_provider_states("t"))["b"].values == old.values
    assert [len(one.told) for one in (odd, *others)] == [1, 1, 1]
    assert await turn.after() == AfterTurnResult(finished=("c", "b", "a"))
    assert len(odd.told) == 1


async def test_state_that_is_not_json_is_told_along_with_failures_that_are_tried_again() -> None:
    """Nobody else would say it: the retry passes over that provider."""
    odd, broken = Odd("b"), Teller("c", failures=1)
    turn = await Settled.start(broken, odd)
    error = await failed(turn.after())
    assert error.message == f"Context provider 'c' failed after turn 1: ValueError: c is broken. {NOT_JSON}"
    assert not error.non_retryable
    assert await turn.after() == AfterTurnResult(finished=("b", "c"))
    assert (len(odd.told), len(broken.told)) == (1, 1)


async def test_a_provider_that_keeps_nothing_writes_no_state() -> None:
    """The mark alone."""

    class Forgetful:
        name = "b"

        async def on_invoked(self, run: ProviderRun, outcome: RunOutcome) -> None:
            """The alias; nothing to keep."""

    turn = await Settled.start(Forgetful())
    assert (await turn.after()).finished == ("b",)
    assert await turn.store.get_provider_states("t") == {}


@pytest.mark.parametrize(
    ("reason", "detail", "result", "error"),
    [
        ("cancelled", None, "cancel", None),
        ("steered", None, "success", None),
        ("limit", "The turn's budget is used up.", "limit", "The turn's budget is used up."),
        ("error", "The key was refused.", "failure", "The key was refused."),
        ("length", None, "failure", "The turn ended: length."),
    ],
)
async def test_an_outcome_says_how_the_turn_ended(
    reason: StatusReason, detail: str | None, result: str, error: str | None
) -> None:
    """Whatever that was, the hooks are run."""
    teller = Teller("b")
    agent = scripted([], context=[teller])
    thread = await Conversation.start(agent)
    await thread.say("hi")
    status = Status(state="incomplete", reason=reason, detail=detail)
    await thread.sync(SetStatus(message_id=thread.message_id, status=status))
    await Settled(thread).after()
    (_, outcome) = teller.told[0]
    assert (outcome.result, outcome.error, outcome.status) == (result, error, status)


async def test_a_turn_that_was_deleted_is_told_nobody() -> None:
    """And that is a problem to read, not one to try again."""
    teller = Teller("b")
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id="t", agent="a"))
    hooks = AfterTurnActivities(store, Agents([Agent("a", model="x", context=[teller])]))
    result = await hooks.execute(REQUEST)
    assert result.problems == ("Turn 1 was deleted before its context providers were told of it.",)
    assert teller.told == []


async def test_hooks_of_an_older_turn_see_that_turn_only() -> None:
    """The next turn is there already when they are tried again."""
    teller = Teller("b")
    turn = await Settled.start(teller)
    await turn.thread.sync(
        AppendMessage(message=Message(id="u2", thread_id="t", role="user", parts=(TextPart(text="and?"),))),
        AppendMessage(message=Message(id="a2", thread_id="t", role="assistant", turn=2)),
    )
    await turn.after()
    run, outcome = teller.told[0]
    assert [message.id for message in run.input] == ["u1"]
    assert outcome.message.id == REQUEST.message_id


@pytest.mark.parametrize("covered", ["u1", "all"])
async def test_a_turn_is_told_whole_though_a_summary_stands_for_it(covered: str) -> None:
    """A compaction was faster than the hooks: for the words, or for all of the turn."""
    teller = Teller("b")
    turn = await Settled.start(teller)
    point, parts = ("u1", 1) if covered == "u1" else (REQUEST.message_id, 4)
    summary = Summary(id="s", thread_id="t", message_id=point, parts=parts, text="They looked for it.")
    assert await turn.store.add_summary(summary)
    await turn.after()
    run, outcome = teller.told[0]
    assert [message.id for message in run.input] == ["u1"]
    assert (outcome.message.id, len(outcome.message.parts)) == (REQUEST.message_id, 4)


async def test_a_log_holds_each_message_of_its_turns_once() -> None:
    """What was kept of other providers, the words, the answer with its calls; also if the turn is told twice."""
    log = HistoryProvider("audit", load_messages=False, store_context=True)
    turn = await Settled.start(log, Teller("b", Context(messages=["a hint"])))
    await turn.after()
    answer = REQUEST.message_id
    expected = (
        LoggedMessage(id=f"{answer}:b:0", role="user", text="a hint", turn=1, source="b"),
        LoggedMessage(id="u1", role="user", text="where?", turn=1),
        LoggedMessage(id=answer, role="assistant", text="let me see\nlook({})\non the table\nit is there", turn=1),
    )
    assert await turn.store.read_log("t", "audit") == expected
    await turn.store.append_log("t", "audit", expected)
    assert await turn.store.read_log("t", "audit") == expected


def test_a_log_is_text() -> None:
    """Each kind of part that says something is a line."""
    parts = (
        TextPart(text="words"),
        FilePart(media_type="image/png", blob="x", name="cat.png"),
        EventPart(event_id="e", origin_call_id="c", content="it rang"),
        ToolCallPart(call_id="c", tool="look", arguments='{"a":1}'),
        ToolResultPart(call_id="c", content="seen"),
    )
    message = Message(id="m", thread_id="t", role="user", parts=parts)
    assert words(message) == 'words\n[cat.png, image/png]\nit rang\nlook({"a":1})\nseen'
