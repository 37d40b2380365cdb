"""Requests that are built out of what was built before are the same as those that are built from nothing."""

import json
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from activities.path_cache import PathCache
from activities.request_builder import RequestBuilder
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.messages import ContextPart, Message, Part, Role
from perdure.records import Path, Summary, ThreadRecord
from perdure.request_room import REQUEST_BYTES
from perdure.testing import ScriptedModel
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from tests.activities.conversation import FaultyStore
from tests.perdure.test_view import messages as random_messages

REQUEST = CompleteRequest(thread_id="t", agent="a", turn=1)
AGENT = Agent("a", model="test")
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 2_000


class Held(PathCache):
    """A cache that holds one thread, whatever its path is, so that paths need not be stored first."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(store)
        self._keep("t", Path(messages=(message(0, "user", []), message(1, "user", []))), None)


class Bench:
    """A builder that keeps what it has built, and one that does not."""

    def __init__(self, limit: int = REQUEST_BYTES) -> None:
        self.store = FaultyStore()
        self.paths = Held(self.store)
        self.warm = RequestBuilder(self.store, self.paths, limit)
        self.cold = RequestBuilder(self.store, None, limit)
        self.model = ScriptedModel(["x"])

    async def same(
        self, path: Path, said: TurnContext | None = None, model: ScriptedModel | None = None
    ) -> list[ModelMessage]:
        """Build both ways; the results must be the same."""
        model, said = model or self.model, said or TurnContext()
        warm = await self.warm.build(AGENT, REQUEST, path, said, model)
        cold = await self.cold.build(AGENT, REQUEST, path, said, model)
        assert plain(warm) == plain(cold)
        return warm


def plain(messages: Sequence[ModelMessage]) -> object:
    """All that could be sent of the messages."""
    text = ModelMessagesTypeAdapter.dump_json(list(messages))
    return json.loads(text, object_hook=lambda found: {key: found[key] for key in found if key != "timestamp"})


def message(number: int, role: Role, parts: Sequence[Part]) -> Message:
    """Message number so and so of the thread."""
    return Message(id=f"m{number}", thread_id="t", role=role, parts=tuple(parts))


stored = st.builds(
    ContextPart,
    source=st.sampled_from(["p", "q"]),
    text=st.sampled_from(["", "said"]),
    role=st.sampled_from(["user", "assistant"]),
    step=st.integers(0, 2),
)
said = st.builds(
    TurnContext,
    providers=st.lists(
        st.builds(
            ProviderContext,
            source=st.sampled_from(["p", "q"]),
            step=st.integers(0, 2),
            messages=st.lists(
                st.builds(ContextMessage, text=st.just("told"), role=st.sampled_from(["user", "assistant"])), max_size=2
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)
summaries = st.none() | st.builds(
    Summary, id=st.just("s"), thread_id=st.just("t"), message_id=st.just("m"), parts=st.just(1), text=st.just("was")
)


@pytest.mark.parametrize("limit", [REQUEST_BYTES, 2_100_000], ids=["roomy", "tight"])
@given(
    conversation=st.lists(st.tuples(random_messages, st.lists(stored, max_size=2)), max_size=8),
    summary=summaries,
    context=said,
    seed=st.integers(0, 1_000),
)
@settings(max_examples=150, deadline=None)
async def test_whatever_was_built_before_the_request_is_that_of_the_whole_path(
    limit: int,
    conversation: list[tuple[tuple[Role, list[Part]], list[Part]]],
    summary: Summary | None,
    context: TurnContext,
    seed: int,
) -> None:
    """A path grows in steps of any size, its last message by parts, for two models, with and without room for all."""
    choose = Random(seed)
    bench = Bench(limit)
    await bench.store.create_thread(thread_record())
    models = bench.model, ScriptedModel(["x"], name="other")
    whole = [message(number, role, [*kept, *parts]) for number, ((role, parts), kept) in enumerate(conversation)]
    end = 0
    while end < len(whole):
        end = min(end + choose.randint(1, 3), len(whole))
        last = whole[end - 1]
        for cut in sorted({choose.randint(0, len(last.parts)), len(last.parts)}):
            growing = last.with_(parts=last.parts[:cut]) if cut < len(last.parts) else last
            path = Path(messages=(*whole[: end - 1], growing), summary=summary)
            await bench.same(path, context if choose.randint(0, 1) else TurnContext(), choose.choice(models))


def thread_record() -> ThreadRecord:
    """The thread itself."""
    return ThreadRecord(thread_id="t", agent="a")
