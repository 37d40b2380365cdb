"""A thread that waits for people, as they meet it: in the chat, and by commands, each a process of its own."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.builtins import Threads, Timers
from perdure.dev.temporal_server import TemporalServer
from perdure.limits import Limits
from perdure.rap.toolset import RapToolset
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.tools import Toolset
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CHOICE, FakeRapServer, FakeTool
from tests.fakes.screen import TerminalProgram
from tests.gateway.served import Served
from tests.stack import Stack

pytestmark = pytest.mark.slow  # each starts processes

CALLS = {
    "deploy": Call("deploy", {"to": "production"}),
    "subscribe": Call("subscribe"),
    "colour": Call("ask_person", {"question": "Which colour?"}),
    "sleep": Call("sleep", {"seconds": 86_400}),
    "wait": Call("sleep_until_event_or_input"),
}


def script(asked: Asked) -> Reply:
    """Words call a tool of theirs, `spawn` a child that waits; results are repeated."""
    last = asked.results[-1] if asked.results else ""
    if "Your task is this alone" in last:
        return Reply(CALLS["wait"])
    if last and "was interrupted" not in last and "was cut short" not in last:
        return Reply(f"heard {last}")
    if asked.user_text.startswith("spawn "):
        stack = [asked.user_text.removeprefix("spawn ")]
        return Reply(Call("spawn_thread", {"instructions": "Count the stars.", "child_of": stack}))
    return Reply(CALLS[asked.user_text]) if asked.user_text in CALLS else Reply(f"you said {asked.user_text}")


class Waits:
    """A stack with a tool server that the test speaks for, and programs over it."""

    def __init__(self, stack: Stack, server: FakeRapServer, thread: str, env: dict[str, str]) -> None:
        self.client = stack.client
        self.server = server
        self.thread = thread
        self._env = env

    def chat(self) -> AbstractAsyncContextManager[TerminalProgram]:
        """A chat in a terminal of its own."""
        return TerminalProgram("-m", "perdure", "chat", self.thread, env=self._env)

    async def perdure(self, *arguments: str, stdin: str = "") -> tuple[int | None, str]:
        """A command about the thread: exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", arguments[0], self.thread, *arguments[1:]),
            env=os.environ | self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(stdin.encode())
        return process.returncode, output.decode()

    async def open_call(self) -> str:
        """The call that the thread waits for."""

        async def waiting() -> list[str]:
            return [call.call_id for call in await self.client.open_calls(self.thread) if call.state == "waiting"]

        return (await eventually(waiting))[0]

    @property
    def answers(self) -> list[object]:
        """What the server was told of people's choices."""
        return [json.loads(received.body)["selected"] for received in self.server.received(CHOICE)]


@pytest.fixture
async def waits(
    temporal: Client, store: PostgresStore, temporal_server: TemporalServer, database_url: str, thread: str
) -> AsyncGenerator[Waits]:
    """An agent with everything that makes a thread wait."""
    async with FakeRapServer(FakeTool("deploy"), FakeTool("subscribe")) as server:
        toolsets: list[Toolset] = [RapToolset(server.url), Timers(), Threads()]
        limits = Limits(events_per_subscription=1, idle=timedelta(minutes=5))
        agent = Agent("a", model=ScriptedModel(script), toolsets=toolsets, limits=limits)

        @agent.tool(kind="client")
        def ask_person(question: str) -> str:
            """Ask the person."""
            raise AssertionError("runs on the person's side")

        stack = Stack(temporal, store, [agent])
        env = {
            "PERDURE_DATABASE_URL": database_url,
            "PERDURE_TASK_QUEUE": stack.settings.task_queue,
            "TEMPORAL_ADDRESS": temporal_server.address,
        }
        async with Served(temporal, store, task_queue=stack.settings.task_queue) as gateway:
            stack.settings = stack.settings.model_copy(update={"gateway_url": gateway.base})
            async with stack:
                yield Waits(stack, server, thread, env)


async def test_a_question_is_answered_in_the_chat(waits: Waits) -> None:
    """By its number, or with its default by Escape; whoever joins later is asked as well, and sees it answered."""
    async with waits.chat() as first:
        await first.sees("A new thread.")
        first.types("deploy\r")
        invocation = await waits.server.invoked()
        await waits.server.choice(invocation, "Sure?", "yes", "no", default=1)
        await first.sees("  2 no (the default)")
        async with waits.chat() as second:
            await second.sees('? deploy(to="production") asks: Sure?')
            for typed in ("3", "2x", "ye"):
                first.types(f"{typed}\r")
                await first.sees(f"There is no choice {typed}: ")
            assert waits.answers == []
            first.types("7\x7f1\r")
            await second.sees("✓ answered: Sure?")
        await first.sees("› yes")
        await waits.server.choice(invocation, "Really?", "yes", "no", default=1)
        await first.sees('? deploy(to="production") asks: Really?')
        first.types("\x1b")
        await first.sees("› (the default)")
        await first.sees("✓ answered: Really?")
        assert waits.answers == [0, 1]
        await waits.server.result(invocation, "deployed")
        await first.sees("heard deployed")
    assert "Sure?" not in await waits.client.transcript(waits.thread)


async def test_a_link_is_shown_until_its_call_has_its_result(waits: Waits) -> None:
    """It is shown to whoever comes while the call waits, and to nobody afterwards."""
    link = "https://login.example/start?state=1"
    async with waits.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("deploy\r")
        invocation = await waits.server.invoked()
        await waits.server.oauth(invocation, link)
        await chat.sees(link)
        async with waits.chat() as second:
            await second.sees(link)
        await waits.server.result(
            invocation, "for the model", display_as=[{"type": "text", "content": "It is deployed."}]
        )
        await chat.sees('← deploy(to="production"): It is deployed.')
        await chat.sees("heard for the model")
        async with waits.chat() as third:
            await third.sees("heard for the model")
            assert not any(link in line for line in third.screen.lines)


async def test_a_call_that_waits_for_the_person_is_answered_in_the_chat(waits: Waits) -> None:
    """The chat says that it waits for them; what they give is its result."""
    async with waits.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("/result nothing\r")
        await chat.sees("✗ No call waits for your result.")
        chat.types("colour\r")
        await chat.sees('? ask_person(question="Which colour?") waits for you: /result TEXT')
        chat.types("/result deep blue\r")
        await chat.sees("heard deep blue")


async def test_a_sleeper_says_so_and_words_wake_it(waits: Waits) -> None:
    """With the time if there is one; without it an event is waited for."""
    async with waits.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("sleep\r")
        await chat.sees("☾ sleep(seconds=86400) sleeps until ")
        chat.types("/status\r")
        await chat.sees("sleeping until ")
        chat.types("wait\r")
        await chat.sees("☾ sleep_until_event_or_input() sleeps until something happens")
        chat.types("good morning\r")
        await chat.sees("you said good morning")


async def test_a_script_answers_what_a_tool_asks(waits: Waits) -> None:
    """Without a terminal the next line is the answer: nobody waits for a turn that waits for them."""

    async def ask() -> None:
        invocation = await waits.server.invoked()
        await waits.server.choice(invocation, "Sure?", "yes", "no")
        await eventually(lambda: waits.answers == [1])
        await waits.server.result(invocation, "not deployed")

    asking = asyncio.create_task(ask())
    code, output = await waits.perdure("chat", stdin="colour\n/result blue\ndeploy\nno\nbye\n")
    await asking
    assert code == 0
    lines = [line for line in output.split("\n") if line]
    assert [line for line in lines if line.startswith(("heard", "you said"))] == [
        "heard blue",
        "heard not deployed",
        "you said bye",
    ]


async def test_a_question_is_answered_by_command(waits: Waits) -> None:
    """It is shown with its choices; words or dismissal answer it; what cannot be is one line and exit code 2."""
    assert await waits.perdure("start") == (0, f"{waits.thread}\n")
    assert await waits.perdure("choose") == (0, "No question waits in this thread.\n")
    assert await waits.perdure("choose", "1") == (2, "perdure: No question waits in this thread.\n")
    await waits.client.send(waits.thread, "deploy")
    invocation = await waits.server.invoked()
    await waits.server.choice(invocation, "Sure?", "yes", "no")
    code, shown = await waits.perdure("choose")
    assert (code, shown.splitlines()[1:]) == (0, ["  1 yes (the default)", "  2 no"])
    question = shown.split(":")[0]
    for arguments, error in (
        (("3",), "There is no choice 3: give a number from 1 to 2, or the words of a choice."),
        (("1", "--dismiss"), "Give an answer or --dismiss, not both."),
        (("1", "--question", "other"), "No question 'other' waits in this thread."),
    ):
        assert await waits.perdure("choose", *arguments) == (2, f"perdure: {error}\n")
    assert await waits.perdure("choose", "NO", "--question", question) == (0, "Answered: no\n")
    await waits.server.choice(invocation, "Really?", "yes", "no")
    assert await waits.perdure("choose", "--dismiss") == (0, "Dismissed, which means the default: yes\n")
    assert waits.answers == [1, 0]


async def test_a_call_is_answered_by_command(waits: Waits) -> None:
    """With words or the standard input; a second result, and one for no call, are refused in one line."""
    await waits.client.send(waits.thread, "colour")
    call = await waits.open_call()
    assert (await waits.perdure("result", "call_x", "blue"))[0] == 2
    assert await waits.perdure("result", call, "-", "--outcome", "denied", stdin="not now") == (
        0,
        f"The thread has the result (denied) of {call}.\n",
    )
    answer = await waits.client.wait_settled(waits.thread)
    assert [(part.outcome, part.content) for part in answer.parts if part.kind == "tool_result"] == [
        ("denied", "not now")
    ]
    assert await waits.perdure("result", call, "blue") == (
        2,
        f"perdure: The call '{call}' is not open: it is settled, or there never was one.\n",
    )


async def test_subscriptions_children_and_closing_by_command(waits: Waits) -> None:
    """What a thread is subscribed to, who works for it, and its end; the wrong ids in one line."""
    await waits.client.send(waits.thread, "subscribe")
    invocation = await waits.server.invoked()
    await waits.server.result(invocation, "subscribed", subscription=True)
    await eventually(lambda: waits.client.store.get_active_subscriptions(waits.thread))
    await waits.client.event(waits.thread, invocation.id, "news", id="e1")

    async def is_paused() -> bool:
        return (await waits.client.store.get_active_subscriptions(waits.thread))[0].paused is not None

    await eventually(is_paused)
    shown = f"subscription: subscribe {invocation.id}, 1 event, paused: it has sent 1 event, as many as one"
    assert (await waits.perdure("subscriptions"))[1].startswith(shown)
    assert await waits.perdure("subscriptions", "--resume", invocation.id) == (
        0,
        f"{invocation.id} goes on.\nsubscription: subscribe {invocation.id}, 0 events\n",
    )
    assert await waits.perdure("subscriptions", "--cancel", invocation.id) == (
        0,
        f"{invocation.id} is ended.\nNo subscriptions.\n",
    )
    code, error = await waits.perdure("subscriptions", "--cancel", invocation.id)
    assert (code, error.split(" is ")[1]) == (2, f"no active subscription of the thread '{waits.thread}'.\n")

    assert await waits.perdure("children") == (0, "No child threads.\n")
    await waits.client.ask(waits.thread, f"spawn {waits.thread}")
    (child,) = await eventually(lambda: waits.client.children(waits.thread))

    async def sleeps() -> bool:
        return (await waits.client.status(child.thread_id)).state == "waiting"

    await eventually(sleeps)
    assert await waits.perdure("children") == (0, f"{child.thread_id} · child · waiting · turn 1 · Count the stars.\n")
    shown_as_json = json.loads((await waits.perdure("children", "--json"))[1])
    assert {name: shown_as_json[name] for name in ("thread_id", "parent_thread_id", "kind", "state", "turn")} == {
        "thread_id": child.thread_id,
        "parent_thread_id": waits.thread,
        "kind": "child",
        "state": "waiting",
        "turn": 1,
    }
    assert await waits.perdure("stop") == (0, "No turn was running here; told to stop: 1 child thread below it.\n")

    async def is_stopped() -> bool:
        return (await waits.client.status(child.thread_id)).state == "idle"

    await eventually(is_stopped)
    assert await waits.perdure("interrupt") == (0, "Nothing was running.\n")
    assert await waits.perdure("stop") == (0, "Nothing was running.\n")

    assert await waits.perdure("close") == (0, "The thread is closed.\n")
    assert await waits.perdure("send", "hello?") == (
        2,
        f"perdure: The thread '{waits.thread}' is closed and takes nothing more; start another one.\n",
    )
    assert "■ The thread is closed: it takes nothing more." in (await waits.perdure("history"))[1]
    assert (await waits.perdure("status"))[1].startswith("closed · agent a")


async def test_words_at_a_question_are_words(waits: Waits) -> None:
    """What does not look like an answer interrupts the turn and is said; `/say` does that with what looks like one."""
    async with waits.chat() as chat:
        await chat.sees("A new thread.")
        for at, (typed, said) in enumerate((("tell me why", "tell me why"), ("/say 3", "3"), ("/say yes", "yes"))):
            chat.types("deploy\r")
            invocation = await waits.server.invoked(at + 1)
            await waits.server.choice(invocation, f"Sure of {at}?", "yes", "no")
            await chat.sees(f'? deploy(to="production") asks: Sure of {at}?')
            chat.types(f"{typed}\r")
            await chat.sees(f"you said {said}")
    assert waits.answers == []
