"""A conversation of 2,000 turns with tools under a small context window."""

from collections import Counter, deque
from collections.abc import Sequence

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from activities.compact import CompactActivities
from activities.complete import CompleteActivities
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.compaction import Compaction
from perdure.contract import CompactRequest, CompactResult
from perdure.inputs import UserMessage
from perdure.limits import Limits
from perdure.path_size import message_chars
from perdure.records import Path
from perdure.runtime import AgentThread
from perdure.summary_text import carried
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.memory import MemoryStore
from tests.compaction.driven import asked as words_of
from tests.compaction.wire_rules import wire_violations

WINDOW = 1_500
SLICE = 100
THREAD = "long"


class CountingStore(MemoryStore):
    """Counts what is read of the conversation, for each slice of turns.

    Attributes:
        turn: the turn that runs, as the test says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.rows: Counter[int] = Counter()
        self.chars: Counter[int] = Counter()

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See the class."""
        path = await super().load_history_with_ancestors(thread_id, known, message_id, whole=whole)
        if not whole:
            self.rows[self.turn // SLICE] += len(path.messages) + sum(len(one.parts) for one in path.messages)
            self.chars[self.turn // SLICE] += sum(map(message_chars, path.messages))
        return path


class LongTalk:
    """The conversation. Each turn has a call and its result; every request is looked at when it is made.

    Attributes:
        violations: rules that a request broke.
        beginnings: the first message of each request, the newest ones.
        breaks: after how many compactions a request did not begin with the one before.
        sent: characters of all requests, for each slice of turns.
    """

    def __init__(self, strategy: str, steps: int = 1) -> None:
        self.store = CountingStore()
        self.steps = steps
        self.made = 0
        self.violations: list[str] = []
        self.breaks: list[int] = []
        self.largest = 0
        self.beginnings = deque[str](maxlen=500)
        self.sent: Counter[int] = Counter()
        self.done = 0
        self.outcomes: Counter[str] = Counter()
        self._last: list[str] = []
        self.summariser = ScriptedModel(self._sum_up, name="summariser")
        self.agent = Agent(
            "a",
            model=ScriptedModel(self._answer),
            compaction=Compaction(strategy=strategy, context_window=WINDOW, model=self.summariser),  # type: ignore[arg-type]  # a case's word
            limits=Limits(steps=steps + 1),
        )

        @self.agent.tool
        async def look_up(key: str) -> str:
            """Look something up."""
            return f"{key} is {'r' * 100}"

        agents = Agents([self.agent])
        self.complete = CompleteActivities(self.store, agents)
        self.dispatch = DispatchActivities(self.store, agents)
        self.compacting = CompactActivities(self.store, agents)

    async def load(self) -> AgentThread:
        """The thread, as any process would load it."""
        return await AgentThread.load(
            self.store,
            self.store,
            THREAD,
            complete=self.complete.execute,
            dispatch=self.dispatch.execute,
            compact=self.compact,
            agent="a",
        )

    async def compact(self, request: CompactRequest) -> CompactResult:
        """Count how compactions end."""
        # Each load of the thread counts anew; a number that comes again at one point is the same compaction.
        result = await self.compacting.execute(request)
        self.outcomes[result.outcome] += 1
        self.done += result.outcome == "done"
        return result

    def _sum_up(self, asked: Asked) -> str:
        return f"They looked up {words_of(asked).count('look_up')} more things."

    def _answer(self, asked: Asked) -> Reply | str:
        self._look_at(asked.messages)
        self.agent.model.requests.clear()
        if asked.results and self.made == self.steps:
            self.made = 0
            return f"found: {asked.results[0][:40]}"
        self.made += 1
        key = asked.user_text if self.steps == 1 else f"key {self.made}"
        return Reply(Call("look_up", {"key": key}))

    def _look_at(self, messages: Sequence[ModelMessage]) -> None:
        self.violations += wire_violations(messages)
        now = [_serialised(message) for message in messages]
        size = sum(len(str(getattr(part, "content", ""))) for message in messages for part in message.parts)
        self.sent[self.store.turn // SLICE] += size
        self.largest = max(self.largest, size)
        if not _begins(now, self._last):
            self.breaks.append(self.done)
        self._last = now
        self.beginnings.append(now[0])


def _serialised(message: ModelMessage) -> str:
    """A message as the bytes that are the same at every read: without the times and ids that pydantic-ai adds."""
    assert isinstance(message, ModelRequest | ModelResponse)
    return repr(
        [
            (
                type(part).__name__,
                getattr(part, "content", None),
                getattr(part, "args", None),
                getattr(part, "tool_call_id", None),
            )
            for part in message.parts
            if isinstance(part, UserPromptPart | ToolReturnPart | ToolCallPart) or hasattr(part, "content")
        ]
    )


def _begins(now: list[str], last: list[str]) -> bool:
    """Whether a request begins with another one; the last message of that may have been gone on with."""
    if not last:
        return True
    return now[: len(last) - 1] == last[:-1] and now[len(last) - 1].startswith(last[-1].removesuffix(")]"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("strategy", "turns", "compactions"), [("summary", 2_000, 99), ("trace", 300, 16), ("window", 300, 14)]
)
async def test_two_thousand_turns_under_a_small_window(strategy: str, turns: int, compactions: int) -> None:
    """Every request is valid, within the window, and begins with the one before but for compactions; nothing is lost.

    Counts are exact, and a turn reads and sends as much at the end as at the beginning.
    """
    talk = LongTalk(strategy)
    thread = await talk.load()
    for number in range(turns):
        talk.store.turn = number
        if number % 50 == 49:
            await thread.close()
            thread = await talk.load()
        thread.put(UserMessage(id=f"m{number}", text=f"question {number}"))
        while await thread.step():
            # A compaction plans beside the event loop: how far the turn gets meanwhile is a matter of the machine.
            # Waited for, it is over before the next step, and what was said alone decides how many there are.
            await thread.upkeep.over()
        await thread.upkeep.over()
    await thread.close()

    assert talk.violations == []
    assert talk.largest <= WINDOW * 4 * 1.1
    assert talk.outcomes == {"done": compactions}
    assert talk.breaks == list(range(1, compactions + 1)), "the prefix breaks after each compaction, and only there"

    whole = await talk.store.load_history_with_ancestors(THREAD, whole=True)
    assert len(whole.messages) == 2 * turns
    assert [message.input_id for message in whole.messages[::2]] == [f"m{number}" for number in range(turns)]
    for number, message in enumerate(whole.messages[1::2]):
        assert [part.kind for part in message.parts] == ["tool_call", "tool_result", "text"]
        assert answer_text(message) == f"found: question {number} is {'r' * 40}"[: len("found: ") + 40]
    counts = await talk.store.get_message_counts(THREAD)
    path = await talk.store.load_history_with_ancestors(THREAD)
    assert (counts.total, counts.user, counts.assistant) == (2 * turns, turns, turns)
    assert counts.visible == len(path.messages)
    assert path.summary is not None
    facts = carried(path.summary.text)
    whole_left = [message for message in path.messages if len(message.parts) in (1, 3)]
    assert facts.messages in (2 * turns - len(path.messages), 2 * turns - len(whole_left))
    assert facts.opening == "question 0"

    for figures in (talk.store.rows, talk.store.chars, talk.sent):
        early, late = figures[1], figures[turns // SLICE - 1]
        assert late <= 1.25 * early, (early, late)


@pytest.mark.parametrize(
    ("strategy", "outcomes"),
    # A trace keeps a line of each call and so grows: its cuts come sooner and gain less, some nothing.
    [("summary", {"done": 4}), ("trace", {"done": 13, "nothing": 8}), ("window", {"done": 4})],
)
async def test_one_turn_that_outgrows_the_window_by_itself(strategy: str, outcomes: dict[str, int]) -> None:
    """It is cut between its steps, again and again; the words that it answers stay before the model, exactly."""
    talk = LongTalk(strategy, steps=150)
    thread = await talk.load()
    thread.put(UserMessage(id="m", text="look all of them up"))
    while await thread.step():
        # As above: the outcomes follow from what was said.
        await thread.upkeep.over()
    await thread.close()
    assert talk.violations == []
    assert talk.outcomes == outcomes
    assert talk.breaks == list(range(1, talk.done + 1))
    assert talk.largest <= WINDOW * 4 * 1.1
    assert all("look all of them up" in words for words in talk.beginnings)
    (_, turn) = (await talk.store.load_history_with_ancestors(THREAD, whole=True)).messages
    assert [part.kind for part in turn.parts] == ["tool_call", "tool_result"] * 150 + ["text"]
    assert turn.status.state == "complete"
