"""The agents that the benchmarks' workers serve. Their models answer by script, so what is measured is the runtime.

`endless`, `crash`, `idle`, `callbacks` and `children` do what the words of the user say. The tools of `crash` note each
run in the folder that `RUNS` names, so that a second run after a crash shows up.
"""

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.memory import bytes_in_use
from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.compaction import Compaction
from perdure.limits import Limits
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel

RUNS: Final = "BENCHMARK_RUNS"

QUESTION: Final = "q" * 100
ANSWER: Final = "a" * 200
RESULT: Final = "r" * 100

WEIGH: Final = "weigh"
"""Asked this, `idle` answers with the bytes that its worker uses."""

PHASE_S: Final = 2.0
"""How long a slow answer of `crash` streams and its slow tool runs."""

CHILDREN: Final = 1000
"""How many children `children` may spawn in one step."""

COMPACTION_S: Final = 4.0
"""How long the summariser of `compacting` streams."""

_CHUNKS: Final = 40
_CHILD: Final = re.compile(r'call close_thread with thread_id "([^"]+)"')


def _agent(name: str, script: Callable[[Asked], Reply | str], **options: Any) -> Agent:
    def answer(asked: Asked) -> Reply | str:
        # The model keeps what it was asked, for tests to look at; here that would grow and be measured.
        model.requests.clear()
        return script(asked)

    model = ScriptedModel(answer)
    return Agent(name, model=model, **options)


def _two_calls(asked: Asked) -> Reply | str:
    return ANSWER if asked.results else Reply(Call("look_up", {"key": "first"}), Call("look_up", {"key": "second"}))


def _endless(asked: Asked) -> Reply | str:
    match asked.user_text:
        case "stream":
            return Reply("word " * 20_000, chunk_chars=5, delay_s=0.01)
        case "tool":
            return Reply(Call("wait"))
        case "fail":
            return Reply(ANSWER, failures=[Failure(429, retry_after_s=30)] * 10_000)
        case _:
            return ANSWER


def _crash(asked: Asked) -> Reply | str:
    if asked.results:
        return ANSWER
    match asked.user_text.split(maxsplit=1):
        case ["stream", _]:
            return Reply(ANSWER, chunk_chars=len(ANSWER) // _CHUNKS, delay_s=PHASE_S / _CHUNKS)
        case ["tool", label]:
            return Reply(Call("quick", {"label": label}), Call("slow", {"label": label}))
        case _:
            return ANSWER


def _callbacks(asked: Asked) -> Reply | str:
    return ANSWER if asked.results else Reply(*[Call("ask")] * int(asked.user_text))


def _children(asked: Asked) -> Reply | str:
    """The root spawns as many children as it is told; each of them reports at once and ends with it."""
    if asked.results:
        child = _CHILD.search(asked.results[-1])
        return Reply(Call("close_thread", {"thread_id": child[1], "report_to_parent": ANSWER})) if child else ANSWER
    thread_id, children = asked.user_text.split()
    arguments = {"instructions": QUESTION, "child_of": [thread_id]}
    return Reply(*[Call("spawn_thread", arguments)] * int(children))


def _sum_up(asked: Asked) -> Reply:
    return Reply("s" * 1_000, chunk_chars=1_000 // _CHUNKS, delay_s=COMPACTION_S / _CHUNKS)


def _idle(asked: Asked) -> str:
    return str(bytes_in_use()) if asked.user_text == WEIGH else ANSWER


chat: Final = _agent("chat", lambda asked: ANSWER)
tools: Final = _agent("tools", _two_calls)
endless: Final = _agent("endless", _endless)
crash: Final = _agent("crash", _crash)
idle: Final = _agent("idle", _idle)
callbacks: Final = _agent("callbacks", _callbacks)
children: Final = _agent("children", _children, toolsets=[Threads()], limits=Limits(parallel_calls=CHILDREN))

compacting: Final = _agent("compacting", lambda asked: ANSWER, compaction=Compaction(model=ScriptedModel(_sum_up)))


@tools.tool
async def look_up(key: str) -> str:
    """Return at once."""
    return RESULT


@endless.tool
async def wait() -> str:
    """Return long after the benchmark has ended."""
    await asyncio.sleep(3600)
    return RESULT


@crash.tool
async def quick(label: str) -> str:
    """Note the run and return at once."""
    _note(f"{label}-quick")
    return RESULT


@crash.tool
async def slow(label: str) -> str:
    """Note the run and return after a while."""
    _note(f"{label}-slow")
    await asyncio.sleep(PHASE_S)
    return RESULT


@callbacks.tool(kind="client")
async def ask() -> str:
    """Wait for a result that comes through the gateway."""
    raise AssertionError("answered from outside")


def _note(run: str) -> None:
    with (Path(os.environ[RUNS]) / run).open("ab") as file:
        file.write(b".")
