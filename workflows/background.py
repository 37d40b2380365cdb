"""Work of a run that its loop does not wait for, but that must be over before the run ends."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.board import Board
    from workflows.failure import sentence


class Background:
    """Tasks under way. What fails is shown where people look; nobody else waits for it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handled = 0

    @property
    def busy(self) -> bool:
        """Whether anything is under way: a run that ended now would cut it off."""
        return bool(self._tasks) or self._handled > 0

    @contextmanager
    def handling(self) -> Generator[None]:
        """Around the work of an update, whose sender waits for it and is told of its failure."""
        self._handled += 1
        try:
            yield
        finally:
            self._handled -= 1

    def start(self, work: Coroutine[Any, Any, Any], what: str, about: str = "") -> "asyncio.Task[Any]":
        """Begin some work; `what` begins the sentence that tells of its failure, a problem `about` something."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def ended(task: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._board.problem(sentence(error, what), about)

        task.add_done_callback(ended)
        return task
