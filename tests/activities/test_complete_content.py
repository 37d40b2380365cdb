"""What a model sends, and what it gets back of it."""

import asyncio

import pytest
from pydantic_ai.messages import BinaryContent, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.messages import ToolCallPart as WireCall
from pydantic_ai.profiles import ModelProfile
from temporalio.testing import ActivityEnvironment

from perdure import ids
from perdure.agent import Agent
from perdure.batch import CommitResults, CommitStep
from perdure.codec import loads
from perdure.inputs import INLINE_BYTES
from perdure.messages import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from perdure.testing import Call, Failure, Reply, ScriptedModel, Think
from tests.activities.conversation import Conversation, requests_of, scripted, until, with_write


@pytest.mark.parametrize("provider_ids", [("", ""), ("dup", "dup"), ("a", "a", ""), (None, None)])
async def test_b10_ids_of_the_provider_are_extra_data_only(provider_ids: tuple[str | None, ...]) -> None:
    """B10: blank, repeated and missing ids give distinct calls with our ids, the same after reload, paired in order."""
    reply = Reply(*(Call("search", {"q": str(n)}, id=given) for n, given in enumerate(provider_ids)))
    agent = scripted([reply, "done"])

    @agent.tool
    async def search(q: str) -> str:
        return q

    thread = await Conversation.start(agent)
    await thread.say("go")
    outlined = await thread.complete()
    await thread.commit(outlined, *(str(n) for n in range(len(provider_ids))))
    stored = [part for part in await thread.parts() if isinstance(part, ToolCallPart)]
    assert [part.call_id for part in stored] == [ids.call_id("t", 1, 0, n) for n in range(len(provider_ids))]
    assert [loads(part.arguments)["q"] for part in stored] == [str(n) for n in range(len(provider_ids))]
    await thread.complete()
    assert requests_of(agent).requests[1].results == tuple(str(n) for n in range(len(provider_ids)))


async def test_b20_thoughts_with_signatures_come_back_exactly() -> None:
    """B20 (c): thought, call, thought, call: the next request holds them in this order, byte for byte."""
    reply = Reply(Think("t1", "s1"), Call("read", {}), Think("t2", "s2"), Call("read", {}), chunk_chars=1)
    thread = await Conversation.start(with_write(scripted([reply, "ok"])))
    await thread.say("go")
    await thread.commit(await thread.complete(), "1", "2")
    await thread.complete()
    sent = next(m for m in requests_of(thread.agent).requests[1].messages if isinstance(m, ModelResponse))
    assert [part.part_kind for part in sent.parts] == ["thinking", "tool-call", "thinking", "tool-call"]
    assert [(part.content, part.signature) for part in sent.parts if part.part_kind == "thinking"] == [
        ("t1", "s1"),
        ("t2", "s2"),
    ]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(Think("abc"), chunk_chars=1, delay_s=0.06, hang=True),
        Reply(Think("abc", "SIGNATURE"), chunk_chars=3, delay_s=0.06, failures=[Failure(after_chunks=2)], hang=True),
        Reply(Think("abc", "SIGN"), hang=True),
    ],
    ids=["unsigned", "half a signature, then lost", "signed but nothing followed"],
)
async def test_b20_a_thought_of_a_broken_stream_is_not_sent_back(reply: Reply) -> None:
    """B20 (a), (b): after an interrupted thought the next request has none, and is answered."""
    agent = scripted(lambda asked: reply if asked.user_text == "think" else Reply("fine"))
    thread = await Conversation.start(agent)
    await thread.say("think")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await until(lambda: running.done() or thread.streamed())
    environment.cancel()
    await asyncio.wait({running})
    assert running.cancelled() or running.exception() is not None
    await thread.stop()
    await thread.say("go on")
    assert (await thread.complete()).preview == "fine"
    sent = [m for m in requests_of(agent).requests[-1].messages if isinstance(m, ModelResponse)]
    assert not any(part.part_kind == "thinking" for message in sent for part in message.parts)


async def test_b20_a_signed_thought_that_words_followed_survives_a_stop() -> None:
    """B20: what was whole when the stop came is kept, signature included."""
    agent = scripted(lambda asked: Reply(Think("abc", "S"), "so it is", hang=True))
    thread = await Conversation.start(agent)
    await thread.say("think")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))
    await until(thread.streamed)
    environment.cancel()
    await asyncio.wait({running})
    await thread.stop()
    thought, words = await thread.parts()
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.signature) == ("abc", "S")
    assert words == TextPart(text="so it is")


async def test_b35_message_ids_of_the_provider_do_not_become_ours() -> None:
    """B35: the same provider id in two replies gives two messages, each with its own id."""
    thread = await Conversation.start(scripted([Reply("one", part_id="txt-0"), Reply("two", part_id="txt-0")]))
    for _ in range(2):
        await thread.say("go")
        await thread.commit(await thread.complete())
    path = await thread.store.load_history_with_ancestors("t")
    answers = [message for message in path.messages if message.role == "assistant"]
    assert len({message.id for message in path.messages}) == 4
    assert [part.text for message in answers for part in message.parts if isinstance(part, TextPart)] == ["one", "two"]
    first = answers[0].parts[0]
    assert isinstance(first, TextPart)
    assert first.provider is not None
    assert first.provider.id == "txt-0"


async def test_b32_b69_arguments_are_stored_as_they_were_written() -> None:
    """B32, B69: bytes of the argument text and digits of large integers survive, and go back to the model."""
    written = '{"path": "a", "content":"z","b":1e2,"n":2512292042121000001,"m":1000000000000000000000000000000}'
    agent = scripted([Reply(Call("any", written), chunk_chars=3), "ok"])
    thread = await Conversation.start(agent)
    await thread.say("go")
    await thread.commit(await thread.complete())
    stored = (await thread.parts())[0]
    assert isinstance(stored, ToolCallPart)
    assert stored.arguments == written
    await thread.complete()
    sent = next(m for m in requests_of(agent).requests[1].messages if isinstance(m, ModelResponse)).parts[0]
    assert isinstance(sent, WireCall)
    assert sent.args == written


async def test_b54_a_model_without_images_gets_a_note_and_one_with_images_the_bytes() -> None:
    """B54 (d): no image goes to a model that cannot read it; the stored image stays."""
    for supported in (True, False):
        model = ScriptedModel(["ok"], profile=ModelProfile(supports_image_input=supported))
        thread = await Conversation.start(Agent("a", model=model))
        blob = await thread.store.put_blob("t", b"png", "image/png")
        await thread.say("look", FilePart(media_type="image/png", blob=blob, size_bytes=3, name="cat.png"))
        await thread.complete()
        message = model.requests[0].messages[0]
        assert isinstance(message, ModelRequest)
        content = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
        image = [BinaryContent(b"png", media_type="image/png")]
        note = "[file: cat.png, image/png, 3 bytes; this model cannot read it]"
        assert content == ["look", image if supported else note]


async def test_a_large_text_is_read_from_its_blob() -> None:
    """Words that are kept in a blob reach the model in full."""
    agent = scripted(["ok"])
    thread = await Conversation.start(agent)
    words = "word " * 60_000
    blob = await thread.store.put_blob("t", words.encode())
    await thread.say(TextPart(blob=blob))
    await thread.complete()
    assert requests_of(agent).requests[0].user_text == words


async def test_a_large_result_from_outside_is_read_as_far_as_any_other() -> None:
    """A result that came by signal holds a preview only; the model reads its beginning from the blob."""
    agent = scripted([Reply(Call("read", {})), "ok"])
    thread = await Conversation.start(with_write(agent))
    await thread.say("go")
    outlined = await thread.complete()
    whole = "line " * 60_000
    blob = await thread.store.put_blob("t", whole.encode())
    call_id = ids.call_id("t", 1, 0, 0)
    await thread.sync(CommitStep(message_id=thread.message_id, start=0, turn=1, step=0))
    await thread.store.stage_result(
        "t", ToolResultPart(call_id=call_id, content="line…", blob=blob, size_bytes=len(whole))
    )
    await thread.sync(CommitResults(message_id=thread.message_id, start=outlined.parts, call_ids=(call_id,)))
    thread.step = 1
    await thread.complete()
    (read,) = requests_of(agent).requests[1].results
    assert read.startswith(whole[:INLINE_BYTES])
    go_on = f'Read on with read_result(call_id="{call_id}", offset={INLINE_BYTES}).'
    assert read.endswith(f"the whole result has {len(whole)} bytes. {go_on}]")
