"""What each provider answers, and what it is sent after that."""

import asyncio
import json
from itertools import pairwise

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from temporalio.testing import ActivityEnvironment

from perdure.agent import Agent
from perdure.messages import FilePart, ReasoningPart, TextPart, ToolCallPart
from perdure.models import resolve
from tests.activities.conversation import Conversation, failed, until
from tests.fakes.http_wire import Received
from tests.fakes.mcp_tools import PIXEL
from tests.providers.anthropic_wire import Anthropic, cache_marks
from tests.providers.chat_wire import Chat
from tests.providers.conftest import Talk, Talks, agent_at
from tests.providers.dialect import KEY, Call, Dialect, Reply, Thought
from tests.providers.model_server import Answer, ModelServer
from tests.providers.responses_wire import Responses

PNG = PIXEL
PDF = b"%PDF-1.4\n" + bytes(range(64))
SIGNATURE = "RXJvK2FiYy8xMjM0NTY3ODkwPT0rL0xvbmdTaWduYXR1cmU="
SIGNATURE_2 = "c2Vjb25kKy9zaWduYXR1cmU="
THOUGHT = 'Hm: "Paris", née Lutetia; 雨 \n\t 🌧'
CALLS = (
    Call("given_1", "weather", '{"city": "Paris", "days": 2}'),
    Call("given_2", "clock", "{}"),
)


def sent(talk: Talk) -> list[Received]:
    """The requests so far."""
    return talk.server.requests


async def test_words_stream_and_are_kept(talks: Talks, dialect: Dialect) -> None:
    """Text comes out whole, with the model's name and what it cost; the request says who we are and what was asked."""
    talk = await talks(dialect, Reply("Bonjour, le monde: 雨.", usage=(120, 9, 64)))
    await talk.thread.say("Hello?")
    outcome = await talk.thread.complete()
    assert outcome.preview == "Bonjour, le monde: 雨."
    assert outcome.finish == "stop"
    assert outcome.model is not None
    assert outcome.model in dialect.model
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens, outcome.usage.cached_tokens) == (120, 9, 64)
    assert outcome.usage.requests == 1
    await talk.thread.commit(outcome)
    assert [part.text for part in await talk.thread.parts() if isinstance(part, TextPart)] == ["Bonjour, le monde: 雨."]
    (request,) = sent(talk)
    assert KEY in " ".join(request.headers.values())
    assert dialect.words(request) == ["Hello?"]
    assert dialect.tools(request)[:2] == ["weather", "clock"]
    assert not dialect.must_call(request)
    assert b"Be brief." in request.body


async def test_words_are_seen_before_the_answer_is_complete(talks: Talks, dialect: Dialect) -> None:
    """A reader sees the first words while the provider still sends."""
    answer = dialect.answer(Reply("word " * 30))
    slow = type(answer)(answer.events, delay_s=0.02)
    talk = await talks(dialect, slow)
    await talk.thread.say("go")
    running = asyncio.create_task(talk.thread.complete())
    await until(talk.thread.streamed)
    assert not running.done()
    assert (await running).preview.startswith("word word")


async def test_parallel_calls_and_their_results(talks: Talks, dialect: Dialect) -> None:
    """Two calls in fragments come out whole; they and their results go back in call order."""
    talk = await talks(dialect, Reply("Let me see.", calls=CALLS), Reply("Sunny, at noon."))
    await talk.thread.say("Weather and time?")
    outcome = await talk.thread.complete()
    assert [(call.tool, call.error) for call in outcome.calls] == [("weather", None), ("clock", None)]
    await talk.thread.commit(outcome, "sunny", "noon")
    assert (await talk.thread.complete()).preview == "Sunny, at noon."
    last = sent(talk)[1]
    assert dialect.calls(last) == [("weather", {"city": "Paris", "days": 2}), ("clock", {})]
    assert dialect.results(last) == ["sunny", "noon"]
    assert dialect.tools(last) == dialect.tools(sent(talk)[0])


async def test_b20_thoughts_go_back_byte_for_byte(talks: Talks, dialect: Dialect) -> None:
    """Signed thoughts, hidden ones too, stand before the call that they led to, exactly as they came."""
    hidden = [Thought("", SIGNATURE_2)] if isinstance(dialect, Anthropic) else []
    thoughts = [Thought(THOUGHT, SIGNATURE if dialect.thinks else ""), *hidden]
    talk = await talks(
        dialect, Reply(thoughts=thoughts, calls=CALLS[:1]), Reply("Sunny."), settings={"thinking": "high"}
    )
    await talk.thread.say("Weather?")
    outcome = await talk.thread.complete()
    await talk.thread.commit(outcome, "sunny")
    kept = [part for part in await talk.thread.parts() if isinstance(part, ReasoningPart)]
    assert kept[0].text == THOUGHT
    await talk.thread.complete()
    shown = [Thought("", SIGNATURE)] if dialect.name == "google" else thoughts
    assert dialect.thoughts(sent(talk)[1]) == shown
    assert dialect.thoughts(sent(talk)[0]) == []


async def test_b20_two_thoughts_each_before_its_call(talks: Talks, dialect: Dialect) -> None:
    """Over two steps, with a reload of the thread before each request, order and signatures stay."""
    signatures = [SIGNATURE, SIGNATURE_2] if dialect.thinks else ["", ""]
    talk = await talks(
        dialect,
        Reply(thoughts=[Thought("one", signatures[0])], calls=CALLS[:1], number=1),
        Reply(thoughts=[Thought("two", signatures[1])], calls=CALLS[1:], number=2),
        Reply("Done.", number=3),
        settings={"thinking": "high"},
    )
    await talk.thread.say("go")
    for _ in range(2):
        await talk.thread.commit(await talk.thread.complete(), "result")
    await talk.thread.complete()
    found = dialect.thoughts(sent(talk)[2])
    assert [thought.signature for thought in found] == signatures
    assert [name for name, _ in dialect.calls(sent(talk)[2])] == ["weather", "clock"]


@pytest.mark.parametrize("ends", ["stopped", "broken off"])
async def test_b20_a_thought_that_was_not_finished_does_not_go_back(talks: Talks, dialect: Dialect, ends: str) -> None:
    """B20 (a), (b): neither the one that a stop met nor the one that a lost connection cut; the thread goes on."""
    unfinished = dialect.answer(Reply("never said", thoughts=[Thought("abc" * 40, SIGNATURE)]))
    within = 1 if dialect.name == "google" else 11
    half = Answer(unfinished.events, delay_s=0.02 if ends == "stopped" else 0.0, drop_after=within)
    talk = await talks(dialect, half, Reply("Gladly."), settings={"thinking": "high"})
    await talk.thread.say("go")
    if ends == "stopped":
        environment = ActivityEnvironment()
        running = asyncio.create_task(talk.thread.complete(environment=environment))
        await until(lambda: bool(talk.server.requests))
        environment.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await failed(talk.thread.complete())
    await talk.thread.stop()
    await talk.thread.say("go on")
    assert (await talk.thread.complete()).preview == "Gladly."
    assert dialect.thoughts(sent(talk)[1]) == []
    assert dialect.words(sent(talk)[1]) == ["go", "go on"]


async def test_b39_a_request_begins_as_the_one_before_it(talks: Talks, dialect: Dialect) -> None:
    """Over three turns with tools each request is the one before it and more; tools and instructions are the same."""
    replies = [
        reply
        for turn in range(3)
        for reply in (Reply(calls=CALLS, number=2 * turn), Reply(f"Answer {turn}.", number=2 * turn + 1))
    ]
    talk = await talks(dialect, *replies, settings={"cache": False})
    for turn in range(3):
        await talk.thread.say(f"Question {turn}?")
        await talk.thread.commit(await talk.thread.complete(), "sunny", "noon")
        await talk.thread.commit(await talk.thread.complete())
    requests = [request.json for request in sent(talk)]
    assert len(requests) == 6
    for earlier, later in pairwise(requests):
        name = next(name for name in ("messages", "input", "contents") if name in earlier)
        before, after = json.dumps(earlier.pop(name)), json.dumps(later[name])
        assert after.startswith(before.removesuffix("]"))
        assert json.dumps(earlier) == json.dumps({key: value for key, value in later.items() if key != name})


@pytest.mark.parametrize(
    ("media_type", "content"), [("image/png", PNG), ("application/pdf", PDF)], ids=["image", "document"]
)
async def test_files_of_the_user_reach_the_model(
    talks: Talks, dialect: Dialect, media_type: str, content: bytes
) -> None:
    """An image and a document stand with the words they came with, byte for byte."""
    talk = await talks(dialect, Reply("I see."))
    blob = await talk.thread.store.put_blob("t", content, media_type)
    await talk.thread.say(
        FilePart(media_type=media_type, blob=blob, size_bytes=len(content), name="it"), "What is this?"
    )
    await talk.thread.complete()
    (request,) = sent(talk)
    assert dialect.files(request) == [(media_type, content)]
    assert "What is this?" in dialect.words(request)


async def test_b54_a_model_without_images_reads_a_note(talks: Talks) -> None:
    """B54 (d): an image that a model cannot take is named in its place; the stored one stays for others."""
    dialect = Chat()
    async with ModelServer([dialect.answer(Reply("I cannot see it."))]) as server:
        provider = OpenAIProvider(base_url=dialect.base_url(server.url), api_key=KEY)
        blind = OpenAIChatModel("blind", provider=provider, profile=ModelProfile(supports_image_input=False))
        async with blind:
            thread = await Conversation.start(Agent("a", model=blind))
            blob = await thread.store.put_blob("t", PNG, "image/png")
            await thread.say(FilePart(media_type="image/png", blob=blob, size_bytes=len(PNG), name="cat.png"), "Look!")
            await thread.complete()
        (request,) = server.requests
    assert dialect.files(request) == []
    assert any("cat.png" in words for words in dialect.words(request))
    assert await thread.store.get_blob("t", blob) == PNG


async def test_anthropic_is_asked_to_keep_the_beginning(talks: Talks) -> None:
    """Marks are on by default and off when the agent says so."""
    marked = await talks(Anthropic(), Reply("hi"))
    await marked.thread.say("Hello?")
    await marked.thread.complete()
    assert cache_marks(sent(marked)[0]) >= 1
    plain = await talks(Anthropic(), Reply("hi"), settings={"cache": False})
    await plain.thread.say("Hello?")
    await plain.thread.complete()
    assert cache_marks(sent(plain)[0]) == 0


async def test_openai_finds_a_conversation_again_by_its_key(talks: Talks) -> None:
    """The key is the same in every request of a conversation, says nothing of it, and goes with the cache setting."""
    talk = await talks(Responses(), Reply("hi", number=1), Reply("hi", number=2))
    for _ in range(2):
        await talk.thread.say("Hello?")
        await talk.thread.commit(await talk.thread.complete())
    keys = [request.json["prompt_cache_key"] for request in sent(talk)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32
    off = await talks(Responses(), Reply("hi"), settings={"cache": False})
    await off.thread.say("Hello?")
    await off.thread.complete()
    assert "prompt_cache_key" not in sent(off)[0].json


async def test_effort_is_the_same_setting_everywhere(talks: Talks, dialect: Dialect) -> None:
    """`thinking` reaches each provider in its own words, and nothing does without it."""
    model = "openai-chat:gpt-5" if isinstance(dialect, Chat) else dialect.model
    high = await talks(dialect, Reply("hi"), model=model, settings={"thinking": "high"})
    await high.thread.say("go")
    await high.thread.complete()
    low = await talks(dialect, Reply("hi"), model=model, settings={"thinking": "low"})
    await low.thread.say("go")
    await low.thread.complete()
    assert dialect.effort(sent(high)[0]) not in (None, dialect.effort(sent(low)[0]))


async def test_connections_are_used_again_and_closed(talks: Talks, dialect: Dialect) -> None:
    """Two requests need one connection, and the end of the worker closes it."""
    talk = await talks(dialect, Reply("one", number=1), Reply("two", number=2))
    for _ in range(2):
        await talk.thread.say("go")
        await talk.thread.commit(await talk.thread.complete())
    assert talk.server.connections == 1
    await talk.thread.activities.close()
    await until(lambda: talk.server.open == 0)


async def test_arguments_go_back_as_they_were_understood(talks: Talks, dialect: Dialect) -> None:
    """Large integers, escapes and the order of keys survive the way to the store and back."""
    text = '{"city": "Par\\u00eds \\"x\\"", "days": 2512292042121000001}'
    talk = await talks(dialect, Reply(calls=[Call("c", "weather", text)]), Reply("ok"))
    await talk.thread.say("go")
    await talk.thread.commit(await talk.thread.complete(), "sunny")
    (call,) = [part for part in await talk.thread.parts() if isinstance(part, ToolCallPart)]
    assert json.loads(call.arguments) == json.loads(text)
    await talk.thread.complete()
    assert dialect.calls(sent(talk)[1]) == [("weather", json.loads(text))]


async def test_another_provider_goes_on_where_the_first_one_is_away(dialect: Dialect, talks: Talks) -> None:
    """It reads words, calls and results of the other, whatever ids they have, and none of its thoughts."""
    other = Anthropic() if not isinstance(dialect, Anthropic) else Responses()
    async with ModelServer([other.answer(Reply("I take over."))]) as spare:
        agent = agent_at(spare, other)
        async with resolve(other.model, agent.settings) as model:
            thoughts = [Thought("hm", SIGNATURE if dialect.thinks else "")]
            talk = await talks(
                dialect,
                Reply("Let me see.", thoughts=thoughts, calls=CALLS),
                dialect.failure("overloaded"),
                fallbacks=[model],
            )
            await talk.thread.say("Weather?")
            await talk.thread.commit(await talk.thread.complete(), "sunny", "noon")
            outcome = await talk.thread.complete()
            assert outcome.preview == "I take over."
            assert outcome.model is not None
            assert outcome.model in other.model
        (request,) = spare.requests
    assert other.calls(request) == [("weather", {"city": "Paris", "days": 2}), ("clock", {})]
    assert other.results(request) == ["sunny", "noon"]
    assert other.thoughts(request) == []
