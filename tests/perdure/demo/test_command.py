"""`perdure demo` as one runs it: it passes, it fails when a tool is sabotaged, it takes down what it started."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.openai_server import Completion, FakeOpenAI

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def started(*arguments: str, target: str = "", **environment: str) -> AsyncGenerator[Process]:
    """The command as a process of its own, ended with the test; with a target, its workers serve other agents."""
    program = ["-m", "perdure", "demo", *arguments]
    if target:
        program = ["-c", f"import sys; from perdure.demo.command import *; sys.exit(run(Demo(target={target!r})))"]
    ours = ("PERDURE_", "TEMPORAL_", "OPENAI_")
    known = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, stdout=PIPE, stderr=STDOUT, cwd=ROOT, env={**known, **environment}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def output_of(process: Process) -> str:
    """All that it writes."""
    output, _ = await process.communicate()
    return output.decode()


async def lines_until(process: Process, words: str) -> str:
    """What it writes up to the line with these words."""
    assert process.stdout
    lines: list[str] = []
    while not lines or words not in lines[-1]:
        line = (await process.stdout.readline()).decode()
        assert line, f"it ended before {words!r}:\n{''.join(lines)}"
        lines.append(line)
    return "".join(lines)


async def connects(address: str) -> bool:
    """Whether a server listens there."""
    host, _, port = address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@dataclass(frozen=True)
class Ended:
    """A demo that has ended: its exit code, all that it wrote, and how often it has asked its model if that is ours."""

    returncode: int | None
    output: str
    requests: int = 0


@dataclass(frozen=True)
class Demos:
    """Demos that run beside each other: most of the time of each is waiting for Temporal to miss a killed worker."""

    sabotaged: Ended
    real_model: Ended


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def demos() -> Demos:
    """Both, when the last one has ended."""
    return Demos(*await asyncio.gather(ended_sabotaged(), ended_with_a_real_model()))


async def ended_sabotaged() -> Ended:
    """The scripted demo, whose workers serve an agent that breaks a promise."""
    async with started(target="tests.perdure.demo.sabotaged:agents") as process:
        output = await output_of(process)
    return Ended(process.returncode, output)


@pytest.mark.slow
async def test_the_demo_passes() -> None:
    """It plays all scenes on servers of its own, keeps every promise, and leaves nothing running or lying about."""
    async with started() as process:
        output = await output_of(process)
    assert process.returncode == 0, output
    assert "The second delivery was a duplicate" in output
    assert "■ interrupted" in output
    assert output.count("kill -9 ") == 4  # two titles, two kills
    assert "so its outcome is unknown" in output
    assert "one for 4." in output
    assert "All 8 promises were kept" in output
    assert re.search(
        r"The thread in the Temporal UI: http://127\.0\.0\.1:\d+/namespaces/default/workflows/thread", output
    )
    seconds = re.search(r"kept \((\d+) s\)", output)
    assert seconds
    assert int(seconds.group(1)) < 60
    folder = re.search(r"host=(/.*?perdure-demo-[^/]+)/", output)
    assert folder
    assert not Path(folder.group(1)).exists()


@pytest.mark.slow
def test_a_tool_that_runs_twice_makes_the_demo_fail(demos: Demos) -> None:
    """Workers that serve a demo agent whose booking is declared retry_safe run it again after the kill."""
    output = demos.sabotaged.output
    assert demos.sabotaged.returncode == 1, output
    promise = "no call runs its tool twice, unless it is retry_safe and was cut off"
    fault = 'book_table(people=4, restaurant="Chez Marie") ran 2 times for 1 call(s)'
    assert f"✗ Not kept: “{promise}”: {fault}\n" in output


REQUESTS = 10
"""How often the demo asks a model that answers as this one does, the call that was killed included."""


async def ended_with_a_real_model() -> Ended:
    """The demo with a model by its name."""
    story = Completion(" ".join(f"In night {night} it was dark." for night in range(40)), fragment=8, delay_s=0.02)
    book = ("c1", "book_table", '{"restaurant":"Chez Marie","people":4}')
    look = ("c2", "get_weather", '{"city":"Berlin"}')
    script = [
        Completion("I am a model."),
        Completion(calls=[("a1", "get_weather", '{"city":"Paris"}'), ("a2", "get_weather", '{"city":"Oslo"}')]),
        Completion("Clouds and snow."),
        story,
        Completion("I do not know."),
        story,  # killed
        story,
        Completion(calls=[book, look]),
        Completion("I cannot tell whether it was booked."),
        Completion("You are welcome."),
    ]
    async with (
        FakeOpenAI(script) as server,
        started("--model", "openai:fake", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none") as process,
    ):
        output = await output_of(process)
    assert len(script) == REQUESTS
    return Ended(process.returncode, output, len(server.requests))


@pytest.mark.slow
def test_the_demo_talks_to_a_real_model(demos: Demos) -> None:
    """A model by name is asked through its provider's client; that it says the same words again breaks no promise."""
    output = demos.real_model.output
    assert demos.real_model.returncode == 0, output
    assert "All 8 promises were kept" in output
    assert demos.real_model.requests == REQUESTS


@pytest.mark.slow
async def test_everything_stays_up_until_it_is_interrupted() -> None:
    """With --keep the servers are there after the checks, and Ctrl-C takes them down.

    The model calls no tool and answers at once. That leaves promises unseen, which is said and breaks none.
    """
    async with (
        FakeOpenAI([Completion("No.")] * 7) as server,
        started("--model", "openai:fake", "--keep", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none") as process,
    ):
        output = await lines_until(process, "Everything stays up")
        assert "Kept as far as the model let it happen" in output
        address = re.search(r"Temporal +(127\.0\.0\.1:\d+)", output)
        assert address
        assert await connects(address.group(1))
        process.send_signal(signal.SIGINT)
        await output_of(process)
    assert process.returncode == 130
    assert not await connects(address.group(1))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("openai:gpt-5", "Model 'openai:gpt-5' needs a key: set OPENAI_API_KEY in the worker's environment."),
        ("nonsense:x", "Unknown model 'nonsense:x': name it provider:model, for instance openai:gpt-5."),
    ],
)
async def test_a_model_that_cannot_be_used_is_said_in_one_line(model: str, reason: str) -> None:
    """Before anything is started; with exit code 2."""
    async with started("--model", model) as process:
        output = await output_of(process)
    assert (process.returncode, output) == (2, f"perdure: {reason}\n")
