"""The activity `complete` of a conversation so long that its request is built in a thread."""

import asyncio
import threading

import pytest

from activities.request_builder import LONG_PATH
from perdure.agent import Agent
from perdure.batch import AppendMessage
from perdure.messages import Message, Status, TextPart
from perdure.testing import Asked, ScriptedModel
from tests.activities.conversation import Conversation


class Watched(ScriptedModel):
    """Notes in which threads it is asked what it is, which happens for every response of a request."""

    def __init__(self) -> None:
        super().__init__(lambda asked: asked.user_text)
        self.threads: set[int] = set()
        self.reached = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def system(self) -> str:
        """See the class."""
        self.threads.add(threading.get_ident())
        self.reached.set()
        if threading.get_ident() != threading.main_thread().ident:
            assert self.gate.wait(10)
        return super().system


async def talked(model: Watched, messages: int) -> Conversation:
    """A conversation of so many messages, words and answers in turn, and last words `go`."""
    thread = await Conversation.start(Agent("a", model=model))
    spoken = [
        Message(
            id=f"m{number}",
            thread_id=thread.thread_id,
            role="assistant" if number % 2 else "user",
            turn=0,
            status=Status(),
            parts=(TextPart(text=f"words {number}"),),
        )
        for number in range(messages)
    ]
    await thread.sync(*(AppendMessage(message=message) for message in spoken))
    await thread.say("go")
    return thread


def shown(asked: Asked) -> list[str]:
    """The texts of a request, in order."""
    return [str(getattr(part, "content", "")) for message in asked.messages for part in message.parts]


@pytest.mark.parametrize(("messages", "in_thread"), [(20, False), (LONG_PATH + 1, True)])
async def test_a_long_request_is_built_in_a_thread(messages: int, in_thread: bool) -> None:
    """A short one is built at once; both show all there is, in order."""
    model = Watched()
    thread = await talked(model, messages)
    model.threads.clear()
    model.gate.clear()
    call = asyncio.create_task(thread.complete())
    if in_thread:
        # The event loop goes on while the thread is held up.
        await asyncio.to_thread(model.reached.wait, 10)
        assert not call.done()
    model.gate.set()
    await call
    assert (model.threads - {threading.main_thread().ident} != set()) == in_thread
    (asked,) = model.requests
    assert shown(asked) == [*(f"words {number}" for number in range(messages)), "go"]
