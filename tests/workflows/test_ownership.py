"""What an agent sees of the threads and subscriptions that it owns, in requests that begin as those before them do."""

import itertools
from typing import Any

from temporalio.client import Client

from perdure.builtins import Threads
from perdure.compaction import Compaction
from perdure.testing import Asked, Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, FakeTool
from tests.workflows.family import child_of, shown
from tests.workflows.rap_stack import RapStack


def instructions(asked: Asked) -> list[Any]:
    """What the model is told before the conversation."""
    return [part.content for part in asked.parameters.instruction_parts or ()]


async def test_an_agent_sees_who_it_is_and_what_it_owns_in_every_request(
    temporal: Client, store: PostgresStore, thread: str
) -> None:
    """Its own id and stack stand in the instructions, which never change, nor does what it was told once.

    Child threads and subscriptions are added to the conversation, so that a request begins with the one before it. A
    compaction, which begins anew, names them all again.
    """
    compaction = Compaction(keep=0.0, strategy="window")
    async with (
        FakeRapServer(FakeTool("subscribe")) as server,
        RapStack(temporal, store, server, toolsets=[Threads()], compaction=compaction) as stack,
    ):
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("spawn_thread", {"instructions": "look", "child_of": [thread]}))
        await stack.heard(thread, "was started")
        child = child_of(thread, turn=2)
        await eventually(lambda: any(child in str(asked.messages[-1]) for asked in stack.model.requests))
        await stack.client.ask(thread, "and now?")

        own = [asked for asked in stack.model.requests if "You are now in the child thread" not in str(asked.messages)]
        for before, after in itertools.pairwise(own):
            assert shown(after.messages)[: len(before.messages)] == shown(before.messages)
        owned = str(own[-1].messages)
        assert subscription.id in owned
        assert child in owned

        await stack.client.compact(thread)

        async def is_shorter() -> bool:
            return (await store.load_history_with_ancestors(thread)).summary is not None

        await eventually(is_shorter)
        await stack.client.ask(thread, "still there?")
        last = stack.model.requests[-1]
        assert len(last.messages) < len(own[-1].messages)
        note = str(last.messages[0])
        assert subscription.id in note
        assert child in note

        told = instructions(own[0])
        assert f'your stack of threads is ["{thread}"]' in told[-1]
        assert all(instructions(asked) == told for asked in stack.model.requests)
