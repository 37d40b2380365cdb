"""Builds the request of a model call out of the path and what providers say."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from activities.model_messages import accepted_files, to_messages
from perdure.agent import Agent
from perdure.collector import paused_collector
from perdure.contract import CompleteRequest
from perdure.errors import BlobNotFound
from perdure.ports import Store
from perdure.records import Path
from perdure.turn_context import TurnContext
from perdure.view import Request, Response, view

Built = TypeVar("Built")

LONG_PATH = 1_000
"""Parts of a conversation above which its request is built in a thread: that of so many takes 10 ms."""


class RequestBuilder:
    """What a model reads, as pydantic-ai's messages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._long_paths = asyncio.Lock()

    async def build(
        self, agent: Agent, request: CompleteRequest, path: Path, context: TurnContext, model: Model[Any]
    ) -> list[ModelMessage]:
        """The conversation for this model, with what the providers say in its place."""
        seen, wanted = await self._built(path, _seen, path, model)
        loaded = await asyncio.gather(*(self._file(request.thread_id, blob) for blob in wanted))
        found = {blob: data for blob, data in zip(wanted, loaded, strict=True) if data is not None}
        return await self._built(path, to_messages, seen, model, found)

    async def _built(self, path: Path, build: Callable[..., Built], *arguments: object) -> Built:
        """What a pure function makes of a path.

        A long one takes a second or two: heartbeats, and the other model calls of the worker, go on meanwhile. One at a
        time, since more would take no less time and would keep the collector from ever running.
        """

        def built() -> Built:
            with paused_collector():
                return build(*arguments)

        if sum(len(message.parts) for message in path.messages) <= LONG_PATH:
            return built()
        async with self._long_paths:
            return await asyncio.to_thread(built)

    async def _file(self, thread_id: str, blob: str) -> bytes | None:
        try:
            return await self._store.get_blob(thread_id, blob)
        except BlobNotFound:
            # One file that is not stored must not fail every later request: the model reads a note in its place.
            return None


def _seen(path: Path, model: Model[Any]) -> tuple[tuple[Request | Response, ...], list[str]]:
    """What the model is to read, and the blobs of the files in it."""
    seen = view(path)
    return seen, sorted(set(accepted_files(seen, model)))
