"""2,000 numbered inputs from several senders, while the workflow goes from run to run."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.limits import Limits
from perdure.messages import Message, TextPart
from perdure.testing import ScriptedModel
from tests.chaos.faults import faults
from tests.recorded import chained_runs
from tests.workflows.conftest import StackFactory

pytestmark = pytest.mark.slow

SENDERS = ("ann", "bob", "cem", "dee")
Send = Callable[[PerdureClient, str, str, str], Awaitable[object]]


async def _post(client: PerdureClient, thread: str, text: str, id: str) -> object:
    return await client.post(thread, text, id=id)


async def _send(client: PerdureClient, thread: str, text: str, id: str) -> object:
    return await client.send(thread, text, id=id)


@pytest.mark.parametrize(("send", "each", "runs"), [(_post, 500, 5), (_send, 75, 5)], ids=["signals", "updates"])
async def test_no_input_of_a_storm_is_lost_doubled_or_overtaken(
    send: Send, each: int, runs: int, start_stack: StackFactory, thread: str
) -> None:
    """All arrive once, each sender's in the order in which they were sent, over many runs; the last is answered.

    Signals are sent as fast as Temporal takes them. A sender of updates waits for each answer, so that nearly each is a
    turn of its own, which the next one stops: there are fewer of them.
    """
    model = ScriptedModel(lambda asked: f"you said {asked.user_text}")
    stack = await start_stack(Agent("a", model=model, limits=Limits(history_events=300)))

    async def storm(sender: str) -> None:
        for number in range(each):
            await send(stack.client, thread, f"{sender} {number}", f"{sender}-{number}")

    await asyncio.gather(*(storm(sender) for sender in SENDERS))
    last = await stack.client.post(thread, "over", id="over")
    await stack.client.wait_settled(thread, last)

    messages = await stack.client.history(thread)
    heard: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        if message.role == "user":
            sender, _, number = _text(message).partition(" ")
            heard[sender].append(number)
    assert heard.pop("over") == [""]
    assert heard == {sender: [str(number) for number in range(each)] for sender in SENDERS}
    assert faults(messages) == []
    assert _text(messages[-1]) == "you said over"
    assert len(await chained_runs(stack.temporal, thread)) >= runs
    assert (await stack.client.status(thread)).problems == ()


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))
