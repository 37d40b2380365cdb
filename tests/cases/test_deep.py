"""A conversation of 30,000 messages, over the client and a real worker: no change of its tree takes long."""

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure import ids
from perdure.batch import AppendMessage, Operation
from perdure.codec import digest
from perdure.errors import UsageError
from perdure.messages import Message, TextPart
from perdure.ports import Store
from perdure.testing import Asked
from tests.cases.conftest import Converse
from tests.cases.conversation import text_of
from tests.stores.builders import write

DEPTH = 30_000
WITHIN_S = 2.0
TIMES = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Times:
    """How long things took, in seconds of a machine that does nothing else, by what was done."""

    def __init__(self) -> None:
        self._taken: defaultdict[str, list[float]] = defaultdict(list)

    @asynccontextmanager
    async def of(self, what: str) -> AsyncGenerator[None]:
        """What is done here."""
        before = slowdown()
        began = time.monotonic()
        yield
        self._taken[what].append((time.monotonic() - began) / max(1.0, (before + slowdown()) / 2))

    @property
    def medians(self) -> dict[str, float]:
        """The middle one of each."""
        return {what: round(statistics.median(taken), 2) for what, taken in self._taken.items()}


def slowdown() -> float:
    """How many times longer work takes than its own computing: others may use the machine as well."""
    began, worked = time.monotonic(), time.process_time()
    assert sum(range(5_000_000))
    return (time.monotonic() - began) / (time.process_time() - worked)


def answered(_: Asked) -> str:
    """Answer whatever comes."""
    return "answered"


async def fill(store: Store, thread_id: str) -> None:
    """Questions and answers down to the depth, in a thread that holds nothing."""
    for batch in range(3):
        operations: list[Operation] = []
        for at in range(batch * DEPTH // 6, (batch + 1) * DEPTH // 6):
            words = Message(
                id=ids.input_message_id(thread_id, f"i{at}"),
                thread_id=thread_id,
                role="user",
                parts=(TextPart(text=f"question {at}"),),
                input_id=f"i{at}",
            )
            answer = Message(
                id=ids.turn_message_id(thread_id, at + 1),
                thread_id=thread_id,
                role="assistant",
                turn=at + 1,
                parts=(TextPart(text=f"answer {at}"),),
            )
            operations += [AppendMessage(message=words, digest=digest(f"question {at}")), AppendMessage(message=answer)]
        await write(store, batch + 1, *operations, thread_id=thread_id)


async def test_a_deep_thread(converse: Converse) -> None:
    """Switched over its whole depth, deleted from at the top, answered anew at the bottom, edited in the middle."""
    talk = await converse(script=answered)
    client, thread = talk.client, talk.thread
    await client.start(thread)
    await fill(client.store, thread)
    path = await talk.ids()
    assert len(path) == DEPTH
    bottom, changes, others = path[-1], Times(), Times()
    with pytest.raises(UsageError, match="no message"):
        # The workflow has loaded an empty thread, and finds out here that it was written by somebody else.
        await client.switch_branch(thread, "nowhere")
    for attempt in range(TIMES):
        async with changes.of("edit in the middle"):
            await client.edit(thread, path[DEPTH // 2], f"rather this {attempt}", run=False)
        async with changes.of("switch to the bottom"):
            await client.switch_branch(thread, bottom)
        async with changes.of("regenerate at the bottom"):
            regenerated = await client.regenerate(thread, bottom)
        async with others.of("the new answer"):
            answer = await client.wait_settled(thread, regenerated.message_id)
        assert text_of(answer) == "answered"
        async with changes.of("delete at the top"):
            await client.delete_message(thread, path[attempt])
        async with changes.of("export"):
            exported = await client.export_thread(thread)
        assert len(exported["messages"]) == DEPTH + 1 + attempt
        async with others.of("branches"):
            assert len(await client.branches(thread, bottom)) == attempt + 2
        async with others.of("history"):
            assert len(await client.history(thread)) == DEPTH - attempt - 1
    async with others.of("reset to the top"):
        await client.reset(thread, path[TIMES])
    assert await talk.ids() == [path[TIMES]]
    logging.getLogger(__name__).info("seconds: %s", changes.medians | others.medians)
    assert {what: taken for what, taken in changes.medians.items() if taken >= WITHIN_S} == {}
