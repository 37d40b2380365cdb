"""A long conversation with the real OpenAI client, and what it sends. As a program it prints digests of that."""

import asyncio
import hashlib
import json

from activities.complete import CompleteActivities
from perdure.agent import Agent, Agents
from perdure.context import Context, ProviderRun
from perdure.history_provider import HistoryProvider
from perdure.records import Summary
from perdure.tools import Tool
from tests.activities.conversation import Conversation
from tests.fakes.openai_server import Completion, FakeOpenAI

TURNS = 12
SUMMARY_AFTER, NEW_PROCESS_AFTER = 6, 9
TOOLS = ("delta", "alpha", "echo", "bravo", "golf", "foxtrot", "hotel", "charlie")


class Teller:
    """Says something else in each turn."""

    name = "teller"

    async def before_run(self, run: ProviderRun) -> Context:
        """See the class."""
        return Context(messages=[f"It is turn {run.turn}."])


def talker(server: FakeOpenAI) -> Agent:
    """An agent with eight tools, whose words of context are kept."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    tools = [Tool(name, f"Does {name}.", schema, kind="client") for name in TOOLS]
    return Agent(
        "a",
        model="openai:fake-model",
        instructions="Be brief.",
        settings={"base_url": server.url, "temperature": 0},
        tools=tools,
        context=[Teller(), HistoryProvider(store_context=True)],
    )


def script() -> list[Completion]:
    """Two calls, one of them with arguments in an odd order, then words, in each turn."""
    answers: list[Completion] = []
    for turn in range(TURNS):
        calls = [("x", "delta", f'{{"days": {turn}, "city": "Zürich"}}'), ("x", "alpha", '{"city":"Å"}')]
        answers += [Completion("Let me see.", reasoning="It may rain.", calls=calls), Completion(f"Done {turn}. 😀")]
    return answers


async def requests() -> list[bytes]:
    """The bodies of all requests, with a summary in the middle and a new process after that."""
    async with FakeOpenAI(script()) as server:
        agent = talker(server)
        thread = await Conversation.start(agent)
        for turn in range(TURNS):
            await thread.say(f"Question {turn}?")
            await thread.commit(await thread.complete(), "r" * 20_000, f"é {turn}")
            await thread.commit(await thread.complete())
            if turn == SUMMARY_AFTER:
                await thread.store.add_summary(await summary(thread))
            if turn == NEW_PROCESS_AFTER:
                await thread.activities.close()
                thread.activities = CompleteActivities(thread.store, Agents([agent]))
        await thread.activities.close()
        return [request.body for request in server.requests]


async def summary(thread: Conversation) -> Summary:
    """One that stands for the first half of what there is."""
    path = await thread.store.load_history_with_ancestors("t")
    last = path.messages[len(path.messages) // 4 * 2 - 1]
    assert last.role == "assistant"
    return Summary(id="s", thread_id="t", message_id=last.id, parts=len(last.parts), text="They spoke of the weather.")


if __name__ == "__main__":
    print(json.dumps([hashlib.sha256(body).hexdigest() for body in asyncio.run(requests())]))
