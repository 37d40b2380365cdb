"""Requests that are built out of what was built before are the same as those that are built from nothing."""

import json
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter, UserPromptPart
from pydantic_ai.profiles import ModelProfile
from temporalio.exceptions import ApplicationError

from activities.path_cache import MAX_CHARS, PathCache
from activities.request_builder import RequestBuilder
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.messages import (
    ContextPart,
    FilePart,
    FileRef,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.policy import ErrorType
from perdure.records import Path, Summary, ThreadRecord
from perdure.request_room import REQUEST_BYTES
from perdure.testing import ScriptedModel
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from tests.activities.conversation import FaultyStore
from tests.activities.image_bytes import png
from tests.perdure.view_paths import messages as random_messages

REQUEST = CompleteRequest(thread_id="t", agent="a", turn=1)
AGENT = Agent("a", model="test")


class Held(PathCache):
    """A cache that holds one thread, whatever its path is, so that paths need not be stored first."""

    def __init__(self, store: FaultyStore, max_chars: int = MAX_CHARS) -> None:
        super().__init__(store, max_chars=max_chars)
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


# -- single behaviours ------------------------------------------------------------------------------------------


class Counted(ScriptedModel):
    """Counts how many answers are translated for it: for each it is asked whose it is."""

    def __init__(self, name: str = "scripted") -> None:
        super().__init__(["x"], name=name)
        self.asked = 0
        # Which is asked for once.
        assert self.profile is not None
        self.asked = 0

    @property
    def system(self) -> str:
        """See the class."""
        self.asked += 1
        return super().system

    def translated(self) -> int:
        """How many since the last time."""
        count, self.asked = self.asked, 0
        return count


def talk(turns: int, words: str = "words") -> list[Message]:
    """A conversation of so many whole turns, and one that is open."""
    rows: list[Message] = []
    for number in range(turns + 1):
        rows.append(message(2 * number, "user", [TextPart(text=f"{words} {number}")]))
        answered = [TextPart(text=f"answer {number}")] if number < turns else []
        rows.append(message(2 * number + 1, "assistant", answered))
    return rows


async def test_only_what_is_new_is_translated() -> None:
    """A hundred answers once, for each of two models, then those that are new; a third model takes the place of one.

    And the newest answer each time: what follows it closes it.
    """
    bench, rows = Bench(), talk(110)
    models = [Counted("one"), Counted("two"), Counted("three")]

    async def translated(model: Counted, turns: int) -> int:
        open_turn = rows[2 * turns + 1].with_(parts=())
        path = Path(messages=(*rows[: 2 * turns + 1], open_turn))
        await bench.warm.build(AGENT, REQUEST, path, TurnContext(), model)
        return model.translated()

    assert [await translated(models[0], turns) for turns in (100, 100, 101, 103)] == [100, 1, 2, 3]
    assert [await translated(models[1], turns) for turns in (103, 104)] == [103, 2]
    assert await translated(models[0], 104) == 2
    assert await translated(models[2], 104) == 104
    assert await translated(models[0], 104) == 1
    assert await translated(models[1], 104) == 104


@pytest.mark.parametrize("change", ["message", "summary", "shorter", "instructions"])
async def test_what_was_built_of_something_else_is_not_used(change: str) -> None:
    """A message that is another object, another summary, a path that ends sooner, another limit: all is built anew."""
    bench, rows, model = Bench(), talk(3), Counted()
    await bench.warm.build(AGENT, REQUEST, Path(messages=tuple(rows)), TurnContext(), model)
    assert model.translated() == 3
    path, agent = Path(messages=tuple(rows)), AGENT
    match change:
        case "message":
            path = path.with_(messages=(rows[0].with_(parts=(TextPart(text="edited"),)), *rows[1:]))
        case "summary":
            path = path.with_(summary=Summary(id="s", thread_id="t", message_id="m", parts=1, text="what was"))
        case "shorter":
            path = path.with_(messages=path.messages[2:])
        case _:
            agent = Agent("a", model="test", instructions="x" * 1_500_000)
    await bench.warm.build(agent, REQUEST, path, TurnContext(), model)
    assert model.translated() == (2 if change == "shorter" else 3)
    # The control: nothing has changed, so only the newest answer is translated again.
    await bench.warm.build(agent, REQUEST, path, TurnContext(), model)
    assert model.translated() == 1


def images(*sizes: int, width: int = 9) -> list[Message]:
    """Turns in which the user sends an image each."""
    rows: list[Message] = []
    for number, size in enumerate(sizes):
        shot = FilePart(media_type="image/png", blob=f"{width}:{size}", size_bytes=size)
        rows += [message(2 * number, "user", [shot]), message(2 * number + 1, "assistant", [TextPart(text="seen")])]
    return rows


class Images(FaultyStore):
    """Blobs that are images of the width and size that their ids say."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    async def get_blob(self, thread_id: str, blob: str) -> bytes:
        """See the class."""
        self.loaded.append(blob)
        width, _, size = blob.partition(":")
        return png(int(width), 9).ljust(int(size), b"x")


def image_bench(limit: int = REQUEST_BYTES) -> Bench:
    """A bench over images."""
    bench = Bench(limit)
    bench.store = Images()
    bench.warm, bench.cold = RequestBuilder(bench.store, bench.paths, limit), RequestBuilder(bench.store, None, limit)
    return bench


def shown_images(request: Sequence[ModelMessage]) -> int:
    """How many images go along."""
    return sum(isinstance(piece, BinaryContent) for part in user_parts(request) for piece in part.content)


def notes(request: Sequence[ModelMessage]) -> list[str]:
    """What stands in the places of files."""
    return [part.content for part in user_parts(request) if isinstance(part.content, str) and "[file" in part.content]


def user_parts(request: Sequence[ModelMessage]) -> list[UserPromptPart]:
    """All that the user's side says."""
    return [part for message in request for part in message.parts if isinstance(part, UserPromptPart)]


async def test_b54_b_an_image_that_no_provider_takes_is_a_note_and_the_thread_goes_on() -> None:
    """B54 (b): one image of 6 MB: it is stored, and what the model reads says so."""
    bench = image_bench()
    request = await bench.same(Path(messages=tuple(images(6_000_000, 9_000))))
    assert notes(request) == ["[file: image/png, 6000000 bytes; too large for a model to read]"]
    assert shown_images(request) == 1


async def test_b54_c_a_wide_image_gives_way_when_there_are_many() -> None:
    """B54 (c): twenty images with a wide one among them are all sent; with one more the wide one is a note."""
    rows = [*images(900, width=3_000), *[row.with_(id=f"n{row.id}") for row in images(*[900] * 20)]]
    bench = image_bench()
    assert shown_images(await bench.same(Path(messages=tuple(rows[:40])))) == 20
    request = await bench.same(Path(messages=tuple(rows)))
    assert (shown_images(request), len(notes(request))) == (20, 1)
    assert notes(request)[0].endswith("too large for a model to read]")


async def test_b54_d_a_model_without_images_gets_notes_and_another_the_images() -> None:
    """B54 (d): the thread goes to and fro between two models; the stored image is kept, and loaded for one only."""
    bench, blind = image_bench(), ScriptedModel(["x"], name="blind", profile=ModelProfile(supports_image_input=False))
    path = Path(messages=tuple(images(900, 900)))
    assert isinstance(bench.store, Images)
    for model, shown in ((blind, 0), (bench.model, 2), (blind, 0), (bench.model, 2)):
        bench.store.loaded.clear()
        request = await bench.same(path, model=model)
        assert (shown_images(request), len(notes(request))) == (shown, 2 - shown)
        assert bool(bench.store.loaded) == bool(shown)


async def test_b54_a_files_give_way_in_what_was_built_before() -> None:
    """B54 (a): image after image until the bound is crossed twice; each request is that of the whole path, and fits."""
    bench, rows = image_bench(limit=4_000_000), images(*[300_000] * 12)
    shown: list[int] = []
    for turns in range(1, 13):
        request = await bench.same(Path(messages=tuple(rows[: 2 * turns])))
        shown.append(shown_images(request))
        assert len(ModelMessagesTypeAdapter.dump_json(request)) <= 4_000_000
    assert shown == [1, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2, 3]


async def test_files_of_the_open_turn_are_loaded_once() -> None:
    """A turn of many steps with an image each: each request asks only for the new one, and keeps them all."""
    bench = image_bench()
    store = bench.store
    assert isinstance(store, Images)
    steps: list[Part] = []
    for step in range(5):
        taken = FileRef(media_type="image/png", blob=f"9:{900 + step}", size_bytes=900 + step)
        steps.append(ToolCallPart(call_id=f"c{step}", tool="shot", step=step))
        steps.append(ToolResultPart(call_id=f"c{step}", files=(taken,), step=step))
        path = Path(messages=(message(0, "user", [TextPart(text="go")]), message(1, "assistant", steps)))
        store.loaded.clear()
        request = await bench.warm.build(AGENT, REQUEST, path, TurnContext(), bench.model)
        assert store.loaded == [f"9:{900 + step}"]
        assert plain(request) == plain(await bench.cold.build(AGENT, REQUEST, path, TurnContext(), bench.model))
    kept = bench.paths.built("t")
    assert kept is not None
    assert kept.chars >= 5 * 900


async def test_a_file_larger_than_it_was_said_to_be_is_left_out() -> None:
    """An import may say anything of a file: what counts for the bound is what it is."""
    bench = image_bench(limit=2_100_000)
    rows = [message(0, "user", [FilePart(media_type="application/pdf", blob="9:200000", size_bytes=10)])]
    assert shown_images(await bench.same(Path(messages=tuple(rows)))) == 0
    small = [message(0, "user", [FilePart(media_type="application/pdf", blob="9:50000", size_bytes=10)])]
    assert shown_images(await bench.same(Path(messages=tuple(small)))) == 1


async def test_a_conversation_without_room_is_too_long_before_a_model_is_asked() -> None:
    """Nothing but short words, more than a request takes: it fails as a model's own complaint would."""
    bench, rows = Bench(limit=2_100_000), talk(150)
    with pytest.raises(ApplicationError, match="no room in a request of 2,100,000 bytes") as caught:
        await bench.warm.build(AGENT, REQUEST, Path(messages=tuple(rows)), TurnContext(), bench.model)
    assert (caught.value.type, caught.value.non_retryable) == (ErrorType.TOO_LONG, True)


async def test_what_is_kept_counts_for_the_cache_s_memory() -> None:
    """With its images; a thread that weighs too much is not kept, and others are dropped for one that does not."""
    small, large = image_bench(), image_bench()
    small.paths = Held(small.store, max_chars=30_000)
    small.warm = RequestBuilder(small.store, small.paths)
    path = Path(messages=tuple(images(9_000, 9_000, 9_000, 9_000, 900)))
    for bench in (small, large):
        await bench.same(path)
    assert small.paths.built("t") is None
    kept = large.paths.built("t")
    assert kept is not None
    assert kept.chars >= 36_000


async def test_a_replaced_conversation_is_neither_kept_nor_taken_from_what_is() -> None:
    """With it the model reads this turn only; without it, later, all there is."""
    bench, path = Bench(), Path(messages=tuple(talk(3)))
    instead = TurnContext(providers=(ProviderContext(source="history", replace=()),))
    whole = await bench.same(path)
    assert len(await bench.same(path, instead)) == 1
    assert plain(await bench.same(path)) == plain(whole)
