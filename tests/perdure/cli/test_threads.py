"""The commands that do one thing to one thread, each a process of its own."""

import asyncio
import json
import os
import sys
from datetime import datetime, timedelta

import pytest

from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalRequest
from perdure.cli.ending import exit_code
from perdure.cli.main import app
from perdure.cli.threads import retry_line, status_lines
from perdure.contract import CallStatus, Retry, SubscriptionStatus, ThreadStatus
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ThreadNotFound
from perdure.messages import Status, Usage
from perdure.records import Choice
from perdure.testing import Asked, Reply, ScriptedModel
from perdure.waiting import PendingApproval
from tests.eventually import eventually
from tests.perdure.cli.desk import Desk
from tests.workflows.conftest import StackFactory


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words, or hang if they ask for it."""
    return Reply("one", hang=True) if asked.user_text == "hang" else Reply(f"you said {asked.user_text}")


@pytest.mark.slow
async def test_one_command_for_each_thing(
    start_stack: StackFactory, database_url: str, temporal_server: TemporalServer, thread: str
) -> None:
    """Start, send, wait, stop, interrupt, status, history, for people and as JSON; errors in one line."""
    stack = await start_stack(Agent("demo", model=ScriptedModel(echo)))
    env = {
        "PERDURE_DATABASE_URL": database_url,
        "PERDURE_TASK_QUEUE": stack.settings.task_queue,
        "TEMPORAL_ADDRESS": temporal_server.address,
    }

    async def perdure(*arguments: str, stdin: str = "") -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", *arguments),
            env=os.environ | env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(stdin.encode())
        return process.returncode, output.decode()

    assert await perdure("start", thread, "--title", "Paris") == (0, f"{thread}\n")
    assert await perdure("send", thread, "hi", "--wait") == (0, "you said hi\n")
    assert await perdure("send", thread, "-", "--id", "m1", "--wait", stdin="from a pipe") == (
        0,
        "you said from a pipe\n",
    )
    code, sent = await perdure("send", thread, "other", "--id", "m1")
    assert (code, sent) == (
        1,
        "perdure: The message was not taken (conflict): its id was used before with other words; take another id.\n",
    )
    assert await perdure("send", thread, "other", "--id", "m1", "--wait") == (code, sent)
    assert (await perdure("send", thread, ""))[0] == 2
    assert await perdure("stop", thread) == (0, "Nothing was running.\n")
    await perdure("send", thread, "hang")
    code, sent = await perdure("send", thread, "too soon", "--mode", "reject")
    assert (code, sent.split(":")[1]) == (1, " The message was not taken (rejected)")
    assert await perdure("stop", thread) == (0, "Turn 3 is stopped.\n")
    assert await perdure("interrupt", thread) == (0, "Nothing was running.\n")
    assert (await perdure("status", thread))[1].startswith(
        "idle · agent demo · turn 3\nthe last turn ended early: canc"
    )
    assert json.loads((await perdure("status", thread, "--json"))[1])["turn"] == 3
    assert (await perdure("history", thread))[1].split("\n")[:4] == [
        "› hi",
        "you said hi",
        "› from a pipe",
        "you said from a pipe",
    ]
    messages = [json.loads(line) for line in (await perdure("history", thread, "--json"))[1].splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert await perdure("subscriptions", thread) == (0, "No subscriptions.\n")
    assert await perdure("start", f"{thread}-2") == (0, f"{thread}-2\n")
    assert await perdure("history", f"{thread}-2") == (0, "Nothing was said yet.\n")
    await perdure("send", f"{thread}-2", "hang")
    assert await perdure("interrupt", f"{thread}-2", "--reason", "enough") == (0, "Turn 1 is being stopped.\n")
    assert (await stack.client.wait_settled(f"{thread}-2")).status.reason == "cancelled"
    assert await perdure("close", f"{thread}-2") == (0, "The thread is closed.\n")
    assert await perdure("close", f"{thread}-2") == (0, "The thread was closed already.\n")
    code, error = await perdure("status", "nope")
    assert (code, error) == (2, "perdure: There is no thread 'nope'; `perdure start` and `client.start` begin one.\n")


@pytest.mark.slow
async def test_a_thread_that_no_worker_has_taken_up_is_interrupted(desk: Desk) -> None:
    """Its words wait for a worker, and so does what stops them; a thread that there is not is the control."""
    assert "There is no thread" in await desk.fails("interrupt")
    await desk.stack.stop_worker()
    await desk.client.post(desk.thread, "hang")
    assert await desk.does("interrupt") == (
        "The thread has not begun yet; it is told to stop as soon as a worker takes it up.\n"
    )
    await desk.stack.start_worker()
    assert await desk.client.ask(desk.thread, "hi") == "answer 1 to hi"
    assert await desk.does("interrupt") == "Nothing was running.\n"


@pytest.mark.slow
async def test_ctrl_c_ends_a_command_that_waits_and_not_the_turn(desk: Desk) -> None:
    """With the code of shells and without a word; the turn goes on until somebody stops it."""
    async with desk.terminal("send", desk.thread, "hang", "--wait") as command:

        async def runs() -> bool:
            try:
                return (await desk.client.status(desk.thread)).state == "running"
            except ThreadNotFound:
                return False

        await eventually(runs)
        command.types("\x03")
        assert await command.ends() == 130
        assert [line for line in command.screen.lines if line.strip() not in ("", "^C")] == []
    assert await desk.does("stop") == "Turn 1 is stopped.\n"


def test_the_status_says_who_waits_for_what() -> None:
    """Every number that a person needs, and what went wrong; words of others made safe."""
    status = ThreadStatus(
        thread_id="t1",
        agent="demo",
        state="running",
        turn=3,
        step=1,
        last=Status(state="incomplete", reason="error", detail="no \x1bkey"),
        open_calls=(CallStatus(call_id="c1", tool="look", preview="{}", state="running"),),
        queued=1,
        deferred=2,
        usage=Usage(requests=4, input_tokens=12_000, output_tokens=5),
        problems=("a sync was refused",),
    )
    assert status_lines(status) == [
        "running · agent demo · turn 3, step 2",
        "the last turn ended early: error (no ␛key)",
        "running: look({}) c1",
        "1 message queued, 2 events deferred",
        "4 model calls, 12,000 tokens in, 5 out",
        "problem: a sync was refused",
    ]


def test_the_status_says_what_else_a_thread_waits_for() -> None:
    """Questions with their choices, links, sleepers, subscriptions with their pauses, children, what was dropped."""
    status = ThreadStatus(
        thread_id="t1",
        agent="demo",
        state="waiting",
        turn=1,
        open_calls=(
            CallStatus(call_id="c1", tool="look", preview="{}", kind="rap"),
            CallStatus(call_id="c2", tool="sleep_until_event_or_input", kind="workflow"),
        ),
        choices=(
            Choice(id="q1", call_id="c1", prompt="May\x1b I?", choices=("yes", "no"), default=1),
            Choice(id="l1", call_id="c1", kind="oauth", auth_url="https://login.example/"),
        ),
        subscriptions=(
            SubscriptionStatus(call_id="c3", tool="mail", received=3),
            SubscriptionStatus(call_id="c4", tool="prices", received=1, paused="too\nmany"),
        ),
        dropped=7,
        children=True,
    )
    assert status_lines(status)[1:-1] == [
        "waiting for its tool server: look({}) c1",
        "sleeping until something happens: sleep_until_event_or_input() c2",
        "question q1: May␛ I?",
        "  1 yes",
        "  2 no (the default)",
        "open to sign in: https://login.example/",
        "subscription: mail c3, 3 events",
        "subscription: prices c4, 1 event, paused: too␊many",
        "child threads: `perdure children t1`",
        "events or results dropped, since nothing waited for them: 7",
    ]


def test_the_status_says_why_a_thread_does_not_go_on() -> None:
    """What is tried again comes first, one line each, made safe; of what runs at this moment there is no time."""
    status = ThreadStatus(
        thread_id="t1",
        agent="demo",
        state="running",
        turn=1,
        last=Status(state="incomplete", reason="error"),
        retrying=(
            Retry(what="turn 1 · step 1 · m", attempt=4, why="m: away.\nDetails: \x1b"),
            Retry(what="sync 3, waiting for the store", attempt=2),
        ),
    )
    assert status_lines(status)[1:4] == [
        "retrying: turn 1 · step 1 · m, attempt 4 now: m: away.␊Details: ␛",
        "retrying: sync 3, waiting for the store, attempt 2 now",
        "the last turn ended early: error",
    ]


def test_the_next_try_has_its_time() -> None:
    """That of this machine; of another day it has its date."""
    at = datetime(2026, 12, 1, 12, 30, 5).astimezone()
    retry = Retry(what="look()", attempt=3, why="No.", next_try=at.timestamp())
    assert retry_line(retry, at.date()) == "retrying: look(), attempt 3 at 12:30:05: No."
    other_day = retry_line(retry, at.date() - timedelta(days=1))
    assert other_day == f"retrying: look(), attempt 3 at 2026-12-01 12:30:05 {at:%Z}: No."


def test_the_status_says_what_is_asked_before_a_call_runs() -> None:
    """Once, with the options and the command that answers; a call of which nothing more is known keeps its line."""
    status = ThreadStatus(
        thread_id="t1",
        agent="demo",
        state="waiting",
        open_calls=(CallStatus(call_id="c1", tool="pay", preview="{}", state="approval"),),
    )
    request = ApprovalRequest(prompt="Pay?", options=(ApprovalOption(id="yes", label="Yes"),))
    asked = PendingApproval(call_id="c1", message_id="a1", tool="pay", arguments='{"to": "\\u001b"}', request=request)
    assert status_lines(status, (asked,))[1:-1] == [
        '? pay(to="\\u001b") waits for approval: Pay?',
        "  1 Yes",
        "  `perdure approve t1 c1`, or `perdure deny`",
    ]
    assert status_lines(status)[1:-1] == ["waiting for approval: pay({}) c1"]


def test_one_is_not_several() -> None:
    """A single model call is called one."""
    status = ThreadStatus(thread_id="t1", agent="demo", state="idle", turn=1, usage=Usage(requests=1, input_tokens=9))
    assert status_lines(status)[-1] == "1 model call, 9 tokens in, 0 out"


def test_money_is_told_where_it_is_known() -> None:
    """Beside the tokens; of a thread without a price nothing is said of it."""
    status = ThreadStatus(thread_id="t1", agent="demo", state="idle", turn=1, usage=Usage(requests=1))
    assert "$" not in status_lines(status)[-1]
    priced = status.with_(usage=Usage(requests=1, nano_usd=5_000_000))
    assert status_lines(priced)[-1] == "1 model call, 0 tokens in, 0 out, $0.005"


@pytest.mark.parametrize(
    "arguments", [("start", ""), ("chat", ""), ("status", "x" * 201), ("send", "t", "hi", "--id", "a\nb")]
)
def test_what_cannot_be_an_id_is_said_in_our_words(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is reached, in one sentence with what an id may be; code 2."""
    assert exit_code(lambda: app(arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("perdure: ")
    assert said.endswith(" cannot be an id: it has 1 to 200 characters, and no control characters.\n")
