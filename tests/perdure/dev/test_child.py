"""What keeps a worker running: it starts another one after every end, less and less often while that fails."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest
from temporalio.client import Client

from perdure.dev.child import describe_end, keep_running
from perdure.dev.worker_process import WorkerProcess
from perdure.errors import ConfigurationError
from tests.eventually import eventually

CLIENT = cast("Client", None)  # the scripted worker below asks nobody
SHORT, LONG = timedelta(seconds=1), timedelta(minutes=1)


class ScriptedWorker(WorkerProcess):
    """A worker whose lives are given: how long each lasts and how it ends. The last one lasts."""

    def __init__(self, lives: Sequence[tuple[timedelta, int]]) -> None:
        super().__init__("some:agent", database_url="", temporal_address="")
        self._lives = iter(lives)
        self.starts = 0
        self.now = 0.0

    async def start(self) -> None:
        """Begin the next life."""
        self.starts += 1

    async def ready(self, client: Client) -> None:
        """Serves at once."""

    async def wait(self) -> int:
        """Live, then end as it was given."""
        await asyncio.sleep(0)
        life = next(self._lives, None)
        if life is None:
            await asyncio.Event().wait()
            raise AssertionError
        self.now += life[0].total_seconds()
        return life[1]


async def watch(worker: ScriptedWorker, ends: int) -> tuple[list[str], list[float]]:
    """Keep it running until it was started once more than it ended; returns what was said and the pauses."""
    said: list[str] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    watching = asyncio.create_task(keep_running(worker, CLIENT, said.append, sleep=sleep, clock=lambda: worker.now))
    await eventually(lambda: len(said) == 2 * ends + 1)
    watching.cancel()
    assert worker.starts == ends + 1
    return said, pauses


async def test_a_worker_that_dies_is_started_again() -> None:
    """After its end, by a signal or by itself, another worker is started and both are told."""
    said, _ = await watch(ScriptedWorker([(SHORT, -9), (SHORT, 1)]), ends=2)
    assert said == [
        "The worker serves some:agent.",
        "The worker was ended by SIGKILL; another one starts in 0.5 s.",
        "The worker serves some:agent.",
        "The worker ended with exit code 1; another one starts in 1 s.",
        "The worker serves some:agent.",
    ]


async def test_pauses_grow_while_workers_die_young() -> None:
    """The pause doubles up to 15 s, so that a worker that cannot live fills no screen."""
    _, pauses = await watch(ScriptedWorker([(SHORT, 1)] * 8), ends=8)
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]


async def test_a_long_life_makes_the_next_pause_short() -> None:
    """A worker that dies after it has lived for long is replaced at once."""
    _, pauses = await watch(ScriptedWorker([(SHORT, 1), (SHORT, 1), (LONG, 1), (SHORT, 1)]), ends=4)
    assert pauses == [0.5, 1, 0.5, 1]


async def test_a_worker_that_cannot_start_is_not_started_again() -> None:
    """A first worker that ends with exit code 2 has said what is wrong; nothing is repeated."""
    worker = ScriptedWorker([(SHORT, 2)])
    said: list[str] = []
    assert await keep_running(worker, CLIENT, said.append) == 2
    assert worker.starts == 1
    assert said == ["The worker serves some:agent."]


async def test_a_worker_that_cannot_start_any_more_is_tried_again() -> None:
    """Exit code 2 of a later worker may be a typo that is about to be mended, so the next one gets its chance."""
    said, _ = await watch(ScriptedWorker([(SHORT, -9), (SHORT, 2)]), ends=2)
    assert said[-2:] == [
        "The worker ended with exit code 2; another one starts in 1 s.",
        "The worker serves some:agent.",
    ]


def test_a_worker_that_was_not_started_says_so() -> None:
    """What needs a process says that there is none yet."""
    with pytest.raises(ConfigurationError, match="not started"):
        WorkerProcess(database_url="", temporal_address="").pid  # noqa: B018  # reading it is the test


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-15, "was ended by SIGTERM")]
)
def test_ends_in_words(code: int, words: str) -> None:
    """An exit code and a signal are told apart."""
    assert describe_end(code) == words
