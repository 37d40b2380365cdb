"""One run of a Python tool: whatever it does, the model gets a text, and only a stop from outside gets through."""

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from activities.tool_output import ToolOutput
from activities.tool_run import run_tool
from activities.tool_thread import in_thread
from perdure.errors import ToolError
from perdure.tools import Tool, function_tool
from tests.eventually import eventually

SHORT = timedelta(seconds=0.05)


def tool_of(function: Callable[..., Any], **options: Any) -> Tool:
    """The function as a tool."""
    return function_tool(function, name="tool", **options)


# -- what it returns ----------------------------------------------------------------------------------------------


async def test_async_and_sync_functions_run_with_checked_arguments() -> None:
    """Async ones on the loop, sync ones in a thread of their own."""

    async def on_loop(number: int) -> int:
        """Double."""
        assert threading.current_thread() is threading.main_thread()
        return number * 2

    def in_own_thread(number: int) -> int:
        """Double."""
        assert threading.current_thread() is not threading.main_thread()
        assert threading.current_thread().daemon
        return number * 2

    for function in (on_loop, in_own_thread):
        assert await run_tool(tool_of(function), '{"number":"21"}') == ToolOutput("42")


async def test_a_sync_function_may_return_an_awaitable() -> None:
    """Partials and callable objects hide that they are async; what they return is awaited on the loop."""

    async def greet(name: str, greeting: str) -> str:
        """Greet."""
        assert threading.current_thread() is threading.main_thread()
        return f"{greeting} {name}"

    class Greeter:
        async def __call__(self, name: str) -> str:
            """Greet."""
            return f"hi {name}"

    assert await run_tool(tool_of(functools.partial(greet, greeting="hi")), '{"name":"x"}') == ToolOutput("hi x")
    assert await run_tool(tool_of(Greeter()), '{"name":"x"}') == ToolOutput("hi x")


async def test_arguments_that_do_not_fit_run_nothing() -> None:
    """The sentence goes to the model."""
    runs = 0

    def count(number: int) -> int:
        """Count."""
        nonlocal runs
        runs += 1
        return number

    output = await run_tool(tool_of(count), '{"number":"many"}')
    assert output.outcome == "error"
    assert "number: Input should be a valid integer" in output.content
    assert runs == 0


async def test_a_validator_that_fails_is_an_error_too() -> None:
    """Types of parameters are code of the tool's author; their failure must not be retried for ever."""

    class Fragile:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
            from pydantic_core import core_schema

            def fail(value: object) -> object:
                raise LookupError("no table")

            return core_schema.no_info_plain_validator_function(fail)

        @classmethod
        def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, str]:
            return {"type": "string"}

    def look_up(key: Fragile) -> str:
        """Look up."""
        return "never"

    assert await run_tool(tool_of(look_up), '{"key":"x"}') == ToolOutput("LookupError: no table", "error")


async def test_something_huge_is_encoded_beside_the_loop() -> None:
    """While it is written the heart goes on beating."""
    beats = 0

    async def huge() -> list[list[int]]:
        """Huge."""
        return [[1, 2, 3]] * 150_000

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    heart = asyncio.create_task(beat())
    output = await run_tool(tool_of(huge), "{}")
    heart.cancel()
    assert output.outcome == "ok"
    assert beats > 3


# -- how it fails -------------------------------------------------------------------------------------------------


class Nameless(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abort(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("There is no such city."), "There is no such city."),
        (ToolError(" "), "ToolError"),
        (ValueError("bad"), "ValueError: bad"),
        (Exception(), "Exception"),
        (Nameless(), "Nameless"),
        (TimeoutError("the server's own"), "TimeoutError: the server's own"),
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(2), "SystemExit: 2"),
        (Abort("stop"), "Abort: stop"),
        (ExceptionGroup("several", [ValueError("a")]), "ExceptionGroup: several (1 sub-exception)"),
        (BaseExceptionGroup("several", [SystemExit(1)]), "BaseExceptionGroup: several (1 sub-exception)"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (MemoryError(), "MemoryError"),
    ],
)
@pytest.mark.parametrize("sync", [True, False])
async def test_b49_whatever_a_tool_raises_is_an_error_with_a_name(error: BaseException, text: str, sync: bool) -> None:
    """Never an empty text, never the end of the turn or of the worker: also for what is no Exception at all."""

    def fail() -> str:
        """Fail."""
        raise error

    async def fail_on_loop() -> str:
        """Fail."""
        raise error

    assert await run_tool(tool_of(fail if sync else fail_on_loop), "{}") == ToolOutput(text, "error")


async def test_an_iteration_that_ends_where_it_should_not_is_an_error() -> None:
    """StopIteration cannot cross a coroutine, and must not hang one either."""

    def fail() -> str:
        """Fail."""
        raise StopIteration

    output = await run_tool(tool_of(fail), "{}")
    assert output.outcome == "error"
    assert "StopIteration" in output.content


async def test_a_keyboard_interrupt_ends_the_process() -> None:
    """Somebody at the terminal means the process, not this call."""

    async def stop() -> str:
        """Stop."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await _step(run_tool(tool_of(stop), "{}"))


async def _step(work: Any) -> None:
    # Driven by hand: as a task it would take the event loop of the tests along, as it should a worker's.
    with pytest.raises(KeyboardInterrupt) as caught:
        work.send(None)
    raise caught.value


# -- time and stops -----------------------------------------------------------------------------------------------


async def test_b49_a_tool_that_takes_too_long_is_cut_off() -> None:
    """The model reads how long it had."""

    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    output = await run_tool(tool_of(wait, timeout=SHORT), "{}")
    assert output == ToolOutput("tool did not return within 0.05 s.", "error")


async def test_a_sync_tool_that_takes_too_long_may_still_be_running() -> None:
    """Nothing can stop a thread, and the model is told so; what it returns later is dropped."""
    release, ended = threading.Event(), threading.Event()

    def wait() -> str:
        """Wait."""
        release.wait(10)
        ended.set()
        return "late"

    output = await run_tool(tool_of(wait, timeout=SHORT), "{}")
    assert output == ToolOutput("tool did not return within 0.05 s. It may still be running.", "error")
    release.set()
    await eventually(ended.is_set)


async def test_a_tool_that_turns_its_time_limit_into_another_error_is_late_all_the_same() -> None:
    """What counts is that it did not return in time."""

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("disturbed") from None
        return "never"

    assert "did not return within" in (await run_tool(tool_of(wait, timeout=SHORT), "{}")).content


async def test_a_result_that_comes_with_the_time_limit_counts() -> None:
    """A tool that saves what it has when it is cut off is not called late."""

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "half of it"

    assert await run_tool(tool_of(wait, timeout=SHORT), "{}") == ToolOutput("half of it")


@pytest.mark.parametrize("disguised", [False, True])
async def test_a_stop_from_outside_gets_through(disguised: bool) -> None:
    """Also if the tool turns it into another error: it did not end by itself, so that is not its result."""
    started = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if disguised:
                raise ConnectionError("closed") from None
            raise
        return "never"

    run = asyncio.create_task(run_tool(tool_of(wait), "{}"))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_stop_does_not_wait_for_a_thread() -> None:
    """The wait ends at once; the thread runs on, and its answer reaches nobody."""
    release, started = threading.Event(), threading.Event()

    def wait() -> str:
        """Wait."""
        started.set()
        release.wait(10)
        return "late"

    run = asyncio.create_task(run_tool(tool_of(wait), "{}"))
    await eventually(started.is_set)
    began = time.monotonic()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert time.monotonic() - began < 1
    release.set()


# -- threads ------------------------------------------------------------------------------------------------------


async def test_hanging_threads_take_no_room_from_others() -> None:
    """There is no pool that they could fill."""
    release = threading.Event()
    hanging = [asyncio.create_task(in_thread(release.wait, 10)) for _ in range(60)]
    assert await asyncio.wait_for(in_thread(lambda: "quick"), 5) == "quick"
    release.set()
    assert await asyncio.gather(*hanging) == [True] * 60


async def test_a_thread_sees_the_context_of_its_caller() -> None:
    """Context variables, and with them the activity's info and its logger, are there."""
    variable = contextvars.ContextVar[str]("variable")
    variable.set("outer")

    def read() -> str:
        seen = variable.get()
        variable.set("inner")
        return seen

    assert await in_thread(read) == "outer"
    assert variable.get() == "outer", "what a thread sets is its own"


def test_a_thread_that_outlives_the_loop_disturbs_nobody() -> None:
    """The worker has ended; an answer that comes after that is dropped without a word."""
    release, threads = threading.Event(), list[threading.Thread]()

    def wait() -> None:
        threads.append(threading.current_thread())
        release.wait(10)

    async def leave() -> None:
        waiting = asyncio.create_task(in_thread(wait))
        await eventually(lambda: bool(threads))
        waiting.cancel()

    asyncio.run(leave())
    release.set()
    threads[0].join(5)
    assert not threads[0].is_alive()
