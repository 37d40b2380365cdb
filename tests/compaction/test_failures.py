"""Summarisers that fail, stores that are away, content that is hostile."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic_ai.profiles import ModelProfile
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.compact import CompactActivities
from perdure.agent import Agent, Agents
from perdure.compaction import Compaction
from perdure.errors import StoreUnavailable
from perdure.limits import Budget, Limits, Price
from perdure.messages import Usage
from perdure.policy import ErrorType
from perdure.records import Path, Subscription, Summary
from perdure.testing import Asked, Failure, Reply, ScriptedModel
from stores.memory import MemoryStore
from tests.compaction.driven import Held, Talk, agent, asked, joining, piece_of
from tests.compaction.paths import call, result, text
from tests.perdure.view_rules import violations


async def short(talk: Talk) -> Talk:
    """Two turns."""
    for number in range(2):
        await talk.user(f"u{number}", f"question {number}")
        await talk.answer(f"a{number}", f"answer {number}")
    return talk


async def unchanged(talk: Talk) -> bool:
    """Whether no summary is there."""
    path = await talk.path()
    return path.summary is None and len(path.messages) == 4


@pytest.mark.parametrize(("status", "again"), [(None, True), (429, True), (503, True), (401, False), (404, False)])
async def test_a_model_that_fails_changes_nothing(status: int | None, again: bool) -> None:
    """The failure says whether another try can help; what was used counts, and the conversation is as it was."""
    failing = Reply("never", failures=[Failure(status)])
    talk = await short(await Talk.begin(agent([failing])))
    with pytest.raises(ApplicationError) as failed:
        await talk.compact("a1")
    assert failed.value.non_retryable is not again
    assert "summariser" in failed.value.message
    assert await unchanged(talk)
    await talk.activities.close()
    assert (await talk.store.get_thread("t")).usage.requests == 1
    if again:
        assert (await talk.compact("a1")).outcome == "done", "the next try goes through"


async def test_an_answer_that_breaks_off_is_no_summary() -> None:
    """Half a summary is thrown away."""
    breaking = Reply("x" * 100, chunk_chars=10, failures=[Failure(None, after_chunks=3)])
    talk = await short(await Talk.begin(agent([breaking])))
    with pytest.raises(ApplicationError):
        await talk.compact("a1")
    assert await unchanged(talk)


async def test_a_filtered_answer_is_no_summary_and_a_cut_off_one_says_so() -> None:
    """What the provider's filter stopped is given up; what the output limit cut off has a note at its end."""
    talk = await short(await Talk.begin(agent([Reply("wor", finish="content_filter")])))
    with pytest.raises(ApplicationError) as failed:
        await talk.compact("a1")
    assert failed.value.non_retryable
    assert await unchanged(talk)
    talk = await short(await Talk.begin(agent([Reply("They said hello and then", finish="length")])))
    assert (await talk.compact("a1")).outcome == "done"
    assert "[cut off here]" in (await talk.summary()).text


async def test_the_agents_fallback_sums_up_when_its_model_cannot() -> None:
    """Without a model of its own, a compaction asks those of the agent, in their order; both calls count."""
    first = ScriptedModel([Reply("never", failures=[Failure(503)] * 5)], name="first")
    second = ScriptedModel(["They said hello."], name="second")
    asking = Agent("a", model=first, fallbacks=[second], compaction=Compaction(), price=Price(input=1, output=1))
    talk = await short(await Talk.begin(asking))
    assert (await talk.compact("a1")).outcome == "done"
    summary = await talk.summary()
    assert "They said hello." in summary.text
    assert summary.usage.requests == 2
    assert summary.usage.nano_usd > 0
    thread = await talk.store.get_thread("t")
    assert thread.usage == summary.usage, "what it cost is the thread's"


class Tight(ScriptedModel):
    """A model that refuses a request of more than so many characters, and says so as providers do."""

    def __init__(self, limit: int) -> None:
        super().__init__(self._joined, name="tight")
        self.limit = limit
        self.refused = 0

    def _joined(self, request: Asked) -> str:
        if len(asked(request)) > self.limit:
            self.refused += 1
            raise Failure(413).error(self.model_name)
        return joining(request)[-300:]


async def test_a_summariser_with_an_unknown_window_is_asked_in_smaller_pieces() -> None:
    """It refuses the request as too long; the pieces are halved until they fit, and nothing is left unread."""
    model = Tight(20_000)
    talk = await Talk.begin(agent(model=model))
    for number in range(40):
        await talk.user(f"u{number}", f"<{number}>" + "x" * 2_000)
        await talk.answer(f"a{number}", "ok")
    assert (await talk.compact("a39")).outcome == "done"
    assert model.refused > 0
    read = "".join(asked(request) for request in model.requests if len(asked(request)) <= model.limit)
    covered = (await talk.ids())[: len(await talk.ids()) - len(await talk.kept())]
    assert all(f"<{name[1:]}>" in read for name in covered if name.startswith("u"))


async def test_a_summariser_that_takes_nothing_fails_for_good() -> None:
    """However small the piece: the failure is raised after a few tries, and nothing has changed."""
    talk = await short(await Talk.begin(agent(model=Tight(10))))
    with pytest.raises(ApplicationError):
        await talk.compact("a1")
    assert await unchanged(talk)
    assert len(talk.summariser.requests) <= 7


@pytest.mark.parametrize("tokens", [1_000, 2_000, 8_000])
async def test_b54_no_request_of_the_summariser_is_longer_than_its_window(tokens: int) -> None:
    """A known window is obeyed from the first request on, instructions and the summary so far included."""
    model = ScriptedModel(lambda request: joining(request)[:100_000], profile=ModelProfile(context_window=tokens))
    talk = await Talk.begin(agent(model=model, context_window=50_000))
    for number in range(60):
        await talk.user(f"u{number}", "w" * 500)
        await talk.answer(f"a{number}", call(f"c{number}"), result(f"c{number}", "r" * 3_000), text("ok", 1))
    assert (await talk.compact("a59")).outcome == "done"
    assert len(model.requests) > 1
    for request in model.requests:
        instructions = request.parameters.instruction_parts or []
        size = len(asked(request)) + sum(len(part.content) for part in instructions)
        assert size <= tokens * 4


async def test_a_budget_that_is_used_up_asks_no_summariser() -> None:
    """A compaction is paid for by the thread, so the thread's budget bounds it; strategies without a model go on."""
    talk = await short(await Talk.begin(agent()))
    talk.agent.limits = Limits(thread=Budget(model_calls=1))
    await talk.store.add_usage("t", 1, 0, 1, Usage(requests=5))
    found = await talk.compact("a1")
    assert found.outcome == "failed"
    assert found.detail
    assert talk.summariser.requests == []
    talk.agent = agent(strategy="window")
    talk.agent.limits = Limits(thread=Budget(model_calls=1))
    assert (await talk.compact("a1")).outcome == "done"


class AwayStore(MemoryStore):
    """A store of which one read or write fails."""

    def __init__(self) -> None:
        super().__init__()
        self.away = ""

    def fail(self, name: str) -> None:
        """Fail if it is this one's turn."""
        if self.away == name:
            raise StoreUnavailable("The database cannot be reached.")

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See the class."""
        self.fail("path")
        return await super().load_history_with_ancestors(thread_id, known, message_id, whole=whole)

    async def get_active_subscriptions(self, thread_id: str) -> tuple[Subscription, ...]:
        """See the class."""
        self.fail("subscriptions")
        return await super().get_active_subscriptions(thread_id)

    async def add_summary(self, summary: Summary) -> bool:
        """See the class; the write is done, and its reply is lost."""
        added = await super().add_summary(summary)
        self.fail("add")
        return added


@pytest.mark.parametrize("name", ["path", "subscriptions", "add"])
async def test_a_store_that_is_away_is_no_empty_store(name: str) -> None:
    """Whatever cannot be read or written, the try fails and says so; the next one ends with one summary."""
    store = AwayStore()
    talk = await short(await Talk.begin(agent(), store))
    request = talk.request("a1")
    store.away = name
    with pytest.raises(ApplicationError) as failed:
        await talk.activities.execute(request)
    assert (failed.value.type, failed.value.non_retryable) == (ErrorType.STORE, False)
    store.away = ""
    assert (await talk.activities.execute(request, 2)).outcome == "done"
    assert (await talk.summary()).covered == 3
    expected = {"path": 1, "subscriptions": 2, "add": 1}[name]
    assert len(talk.summariser.requests) == expected


async def test_two_attempts_at_once_leave_one_summary() -> None:
    """An attempt that was given up for lost goes on beside the next one: the first row stays, both say so."""
    held = Held()
    talk = await short(await Talk.begin(agent(model=held.model)))
    request = talk.request("a1")
    first = asyncio.create_task(talk.activities.execute(request, 1))
    await held.reached.wait()
    other = CompactActivities(talk.store, Agents([agent(lambda _: "other words")]))
    second = await other.execute(request, 2)
    held.release.set()
    assert await first == second
    assert "other words" in (await talk.summary()).text


async def test_hostile_content_is_summed_up() -> None:
    """NUL, halves of surrogate pairs and a text of 5 MB: every strategy makes a valid view that can be encoded."""
    for strategy in ("summary", "trace", "window"):
        talk = await Talk.begin(agent(lambda _: "a\x00b\ud800c", strategy=strategy, context_window=20_000))
        await talk.user("u0", "\ud83d\x00" + "x" * 5_000_000)
        await talk.answer("a0", call("c0"), result("c0", "\udfff" * 1_000 + "\x00" * 30_000), text("\ud800 ok", 1))
        await talk.user("u1", "and?")
        await talk.answer("a1", "so")
        assert (await talk.compact("a1", forced=False)).outcome == "done"
        seen = await talk.view()
        assert violations(seen) == []
        size = sum(len(str(item)) for message in seen for item in message.items)
        assert size < 20_000 * 4


async def test_unknown_agents_and_threads_fail_for_good() -> None:
    """They would be as unknown at the next try."""
    talk = await short(await Talk.begin(agent()))
    for changed in ({"agent": "other"}, {"thread_id": "other"}):
        with pytest.raises(ApplicationError) as failed:
            await talk.activities.execute(talk.request("a1").with_(**changed))
        assert failed.value.non_retryable
    assert (await talk.compact("nothing")).outcome == "void"


async def test_there_may_be_nothing_to_leave_out() -> None:
    """Words that wait for an answer, and what a summary stands for already, stay as they are."""
    talk = await Talk.begin(agent(keep=0.0))
    await talk.user("u0", "hello")
    assert (await talk.compact("u0")).outcome == "nothing"
    await talk.answer("a0", "hi")
    assert (await talk.compact("a0")).outcome == "done"
    assert (await talk.compact("a0")).outcome == "nothing"
    assert len(talk.summariser.requests) == 1


async def test_an_agent_without_compaction_is_compacted_when_a_person_asks() -> None:
    """`compaction=None` begins none by itself; asked for one, the agent's model sums up."""
    talk = await short(await Talk.begin(Agent("a", model=ScriptedModel(["They said hello."]), compaction=None)))
    assert (await talk.compact("a1")).outcome == "done"
    assert "They said hello." in (await talk.summary()).text


async def test_instructions_of_the_agent_replace_ours() -> None:
    """`Compaction.instructions` is what the summariser is told."""
    talk = await short(await Talk.begin(agent(instructions="Only names.")))
    await talk.compact("a1")
    (request,) = talk.summariser.requests
    assert [part.content for part in request.parameters.instruction_parts or []] == ["Only names."]
    assert request.tools == ()


async def test_a_worker_that_shuts_down_hands_the_compaction_over() -> None:
    """It is never taken for a cancellation: another worker tries again at once."""
    held = Held()
    talk = await short(await Talk.begin(agent(model=held.model)))
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=1, heartbeat_timeout=timedelta(seconds=5))
    running = asyncio.ensure_future(environment.run(talk.activities.compact, talk.request("a1")))
    await held.reached.wait()
    environment.cancel(cancellation_details=ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(ApplicationError) as failed:
        await running
    assert (failed.value.type, failed.value.non_retryable) == (ErrorType.WORKER_SHUTDOWN, False)
    assert await unchanged(talk)


async def test_another_strategy_goes_on_from_what_the_one_before_has_left() -> None:
    """An agent is declared anew between two compactions: neither its trace nor a longer summary is forgotten."""
    talk = await short(await Talk.begin(agent(strategy="trace", keep=0.0)))
    await talk.compact("a1")
    talk.agent = agent(keep=0.0)
    await talk.user("u2", "question 2")
    await talk.answer("a2", "answer 2")
    await talk.compact("a2")
    read = asked(talk.summariser.requests[0])
    assert [read.count(f"question {number}") for number in range(3)] == [1, 1, 1]
    assert "stands for 6 messages" in (await talk.summary()).text
    narrow = ScriptedModel(lambda _: "fine", profile=ModelProfile(context_window=800))
    long = await Talk.begin(agent(lambda _: "".join(f"<{number}>" for number in range(400)), keep=0.0))
    await short(long)
    await long.compact("a1")
    long.agent = agent(model=narrow, keep=0.0)
    await long.user("u2", "question 2")
    await long.answer("a2", "answer 2")
    assert (await long.compact("a2")).outcome == "done"
    assert "".join(f"<{number}>" for number in range(400)) in "".join(
        piece_of(asked(request)) for request in narrow.requests
    )
