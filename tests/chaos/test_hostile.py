"""Content that breaks encoders, databases and limits comes back from the whole stack as it went in."""

import base64
import hashlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from perdure.agent import Agent
from perdure.errors import PerdureError, UsageError
from perdure.limits import Limits
from perdure.messages import Message, TextPart, ToolCallPart, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

pytestmark = pytest.mark.slow

NASTY = 'nul \x00 lone \ud800 and \udfff, pair \U0001f389, \u202ertl\u202c, "quotes" \\ 2512292042121000001 NaN \u2028'
ID = 2512292042121000001
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 1000


def text_of(message: Message) -> str:
    """The words of a message."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


async def test_nasty_words_of_user_and_model(start_stack: StackFactory, thread: str) -> None:
    """Both are stored to the last character; the model reads them with only the halves of characters replaced."""
    model = ScriptedModel(lambda asked: Reply(NASTY, chunk_chars=3))
    stack = await start_stack(Agent("a", model=model))
    accepted = await stack.client.send(thread, NASTY, id="m1", metadata={NASTY: [NASTY, ID, 10**30]})
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    await stack.client.ask(thread, "again", id="m2")
    said = await stack.client.history(thread)
    assert (text_of(answer), text_of(said[0]), text_of(said[1])) == (NASTY, NASTY, NASTY)
    assert said[0].metadata == {NASTY: [NASTY, ID, 10**30]}
    assert model.requests[0].user_text == NASTY.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")
    assert (await stack.client.send(thread, NASTY, id="m1")).disposition == "duplicate"
    assert (await stack.client.status(thread)).problems == ()


@pytest.mark.parametrize("size", [300_000, 9_000_000])
async def test_large_words_of_the_user(size: int, start_stack: StackFactory, thread: str) -> None:
    """Text beyond what a signal carries is stored whole and read whole by the model, also as a thread's first words."""
    model = ScriptedModel(lambda asked: f"you said {len(asked.user_text)}")
    stack = await start_stack(Agent("a", model=model))
    words = "täxt " * (size // 6)
    assert await stack.client.ask(thread, words, id="m1") == f"you said {len(words)}"
    assert text_of((await stack.client.history(thread))[0]) == words
    assert (await stack.client.send(thread, words, id="m1")).disposition == "duplicate"
    assert (await stack.client.send(thread, words + "!", id="m1")).disposition == "conflict"
    with pytest.raises(UsageError, match="shorten"):
        await stack.client.send(thread, "x" * 11_000_000)


class Cupboard:
    """A tool that returns whatever a test puts into it, and what it was called with."""

    def __init__(self, value: object, arguments: str = "{}") -> None:
        self._value = value
        self.opened: list[dict[str, Any]] = []
        self.model = ScriptedModel(lambda asked: self._reply(asked, arguments))
        self.agent = Agent("a", model=self.model)
        self.agent.tool(self.open)

    async def open(self, id: int = 0, big: int = 0, text: str = "") -> object:
        """Open it."""
        self.opened.append({"id": id, "big": big, "text": text})
        return self._value

    def _reply(self, asked: Asked, arguments: str) -> Reply:
        return Reply("closed") if asked.results else Reply(Call("open", arguments))

    async def result(self, stack: Stack, thread: str) -> ToolResultPart:
        """The stored result of the one call."""
        assert await stack.client.ask(thread, "open it") == "closed"
        messages = await stack.client.history(thread)
        assert faults(messages) == []
        assert len(self.opened) == 1
        return next(part for part in messages[1].parts if isinstance(part, ToolResultPart))


async def test_nasty_arguments(start_stack: StackFactory, thread: str) -> None:
    """The tool gets every digit and character; the stored text of the arguments is byte for byte the model's."""
    arguments = f'{{"text":"\\u0000 \\ud800 \\ud83c\\udf89","id":{ID},  "big":1{"0" * 30}}}'
    cupboard = Cupboard("ok", arguments)
    stack = await start_stack(cupboard.agent)
    await cupboard.result(stack, thread)
    assert cupboard.opened == [{"id": ID, "big": 10**30, "text": "\x00 \ud800 \U0001f389"}]
    call = next(part for part in (await stack.client.history(thread))[1].parts if isinstance(part, ToolCallPart))
    assert call.arguments == arguments


async def test_result_of_5_mb(start_stack: StackFactory, thread: str) -> None:
    """It is stored whole, the model reads its beginning with a note of its size, and the tool ran once."""
    value = "ä0123456" * (5 * 1024 * 1024 // 9)
    cupboard = Cupboard(value)
    stack = await start_stack(cupboard.agent)
    part = await cupboard.result(stack, thread)
    assert part.blob is not None
    whole = await stack.store.get_blob(thread, part.blob)
    assert hashlib.sha256(whole).digest() == hashlib.sha256(value.encode()).digest()
    assert part.size_bytes == len(whole) > 5_000_000
    (read,) = cupboard.model.requests[-1].results
    assert value.startswith(part.content)
    assert read.startswith(part.content)
    assert str(part.size_bytes) in read


async def test_result_with_an_image(start_stack: StackFactory, thread: str) -> None:
    """Bytes cross as base64 and nothing of them is lost."""
    cupboard = Cupboard({"image": IMAGE})
    stack = await start_stack(cupboard.agent)
    part = await cupboard.result(stack, thread)
    assert part.blob is not None
    stored = json.loads(await stack.store.get_blob(thread, part.blob))
    assert base64.b64decode(stored["image"]) == IMAGE


async def test_result_that_json_has_no_form_for(start_stack: StackFactory, thread: str) -> None:
    """Dates, sets, decimals, NaN and odd text become strict JSON; integers keep all their digits."""
    value = {
        "when": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "set": {2, 1},
        "price": Decimal("1.10"),
        "nan": float("nan"),
        "id": ID,
        "text": NASTY,
        5: "k",
    }
    cupboard = Cupboard(value)
    stack = await start_stack(cupboard.agent)
    part = await cupboard.result(stack, thread)
    read = json.loads(part.content, parse_constant=pytest.fail)
    assert read == {
        "when": "2025-01-02T03:04:05+00:00",
        "set": [1, 2],
        "price": "1.10",
        "nan": "nan",
        "id": ID,
        "text": NASTY,
        "5": "k",
    }


@pytest.mark.parametrize(
    ("start", "refused"),
    [
        ({"title": NASTY}, False),
        ({"tenant": "ten\x00ant"}, True),
        ({"tenant": "x" * 5000}, True),
        ({"tenant": "ten\ud800ant"}, True),
    ],
)
async def test_nasty_start(start: dict[str, str], refused: bool, start_stack: StackFactory, thread: str) -> None:
    """A title may be anything; what cannot be a tenant is refused in a sentence, and does not leave a stuck thread."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: "hi")))
    if refused:
        with pytest.raises(PerdureError):
            await stack.client.start(thread, **start)
    else:
        await stack.client.start(thread, **start)
        assert (await stack.store.get_thread(thread)).title == start["title"]
    assert await stack.client.ask(thread, "hello") == "hi"


@pytest.mark.parametrize(
    ("signal", "arguments"),
    [
        ("user_message", []),
        ("user_message", [None]),
        ("user_message", [{"id": "m", "text": ""}]),
        ("user_message", [{"id": "m\ud800", "text": "hi"}]),
        ("user_message", [{"id": "m", "te\ud800xt": "hi"}]),
        ("user_message", [{"id": "m", "text": "hi", "mode": "perhaps"}]),
        ("user_message", [{"id": "m", "text": "hi"}, "more"]),
        ("user_message", [[1, 2]]),
        ("tool_result", []),
        ("tool_result", [{"call_id": "call_x", "content": "late"}]),
        ("tool_result", [{"call_id": 5}]),
        ("event", [{"id": "e1", "call_id": "call_x", "content": "lost"}]),
        ("event", ["nothing"]),
        ("interrupt", ["now", "please"]),
        ("no_such_signal", [1]),
    ],
)
async def test_nasty_signals(signal: str, arguments: list[Any], start_stack: StackFactory, thread: str) -> None:
    """What makes no sense changes nothing, stops nothing, and the thread goes on."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: f"you said {asked.user_text}")))
    assert await stack.client.ask(thread, "one", id="m1") == "you said one"
    await stack.handle(thread).signal(signal, args=arguments)
    assert await stack.client.ask(thread, "two", id="m2") == "you said two"
    messages = await stack.client.history(thread)
    kept = [text_of(message) for message in messages if message.role == "user"]
    assert (kept[0], kept[-1]) == ("one", "two")
    assert faults(messages) == []


@pytest.mark.parametrize(
    "argument", [None, {"id": "m", "te\ud800xt": "hi"}, {"text": " "}, 7, {"id": "", "text": "hi"}]
)
async def test_nasty_updates(argument: object, start_stack: StackFactory, thread: str) -> None:
    """The sender is told what is wrong, and the thread goes on."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: f"you said {asked.user_text}")))
    await stack.client.ask(thread, "one", id="m1")
    with pytest.raises(Exception, match="update"):
        await stack.handle(thread).execute_update("send", argument)  # pyright: ignore[reportUnknownMemberType]  # the SDK's `args` has no type
    assert await stack.client.ask(thread, "two", id="m2") == "you said two"
    assert len(await stack.client.history(thread)) == 4


async def test_more_waits_than_a_run_can_carry(start_stack: StackFactory, thread: str) -> None:
    """Queued words of several MB outlast runs that end: what Temporal carries from one to the next is limited."""
    started = Reply("started", start_delay_s=1)
    model = ScriptedModel(lambda asked: started if asked.user_text == "go" else f"heard {len(asked.user_text)}")
    stack = await start_stack(Agent("a", model=model, limits=Limits(history_events=60)))
    await stack.client.send(thread, "go", id="go")
    words = "漢" * 10_000
    last = ""
    for number in range(60):
        last = await stack.client.post(thread, f"{number} {words}", id=f"m{number}", mode="queue")
    await stack.client.wait_settled(thread, last)
    messages = await stack.client.history(thread)
    heard = [message.input_id for message in messages if message.role == "user"]
    assert heard == ["go", *(f"m{number}" for number in range(60))]
    assert faults(messages) == []
    assert len(await chained_runs(stack.temporal, thread)) >= 2


async def test_one_signal_as_large_as_temporal_takes(start_stack: StackFactory, thread: str) -> None:
    """A script may send 1.9 MB in one signal, past our client: it is refused in a sentence, and the thread goes on.

    Escaped it could be three times as long, and a batch with it would be more than Temporal takes.
    """
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: f"heard {len(asked.user_text)}")))
    await stack.client.ask(thread, "one", id="m1")
    await stack.handle(thread).signal("user_message", {"id": "m2", "text": "x" * 1_900_000})
    await eventually(lambda: _has_refused(stack, thread), timeout=30)
    assert await stack.client.ask(thread, "three", id="m3") == "heard 5"


async def _has_refused(stack: Stack, thread: str) -> bool:
    return any("the Python client stores large texts" in why for why in (await stack.client.status(thread)).problems)
