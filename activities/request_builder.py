"""Builds the request of a model call out of the path and what providers say.

What was built of a conversation is kept with its path in the worker's cache, and the next request adds only what is
new: whole turns are taken once, by the view and by the translation for a model, and the last turn, which still grows,
each time. Nothing is taken on trust here either: what is kept serves a path only if that begins with the very messages
that it was made of, which the cache hands out again as long as they have not changed.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any, Final, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from temporalio.exceptions import ApplicationError

from activities.model_messages import accepted_files, has_many_images, to_messages
from activities.path_cache import PathCache
from perdure.agent import Agent
from perdure.codec import dumps
from perdure.collector import paused_collector
from perdure.contract import CompleteRequest
from perdure.errors import BlobNotFound
from perdure.messages import Message
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import Path, Summary
from perdure.request_room import REQUEST_BYTES, Room
from perdure.turn_context import TurnContext
from perdure.view import ViewBuilder, last_turn
from perdure.view_items import UserFile, Viewed

Built = TypeVar("Built")

LONG_PATH: Final = 1_000
"""New parts of a conversation above which its request is built in a thread: that of so many takes 10 ms."""

RESERVED_BYTES: Final = 1_000_000
"""Of a request, for its tools and all that is not of the conversation; and the step in which more is set aside."""

KEPT_MODELS: Final = 2
"""For how many models a conversation is kept translated: the one that answers, and the one before it."""

_ITEM_CHARS: Final = 600
"""What an item of a view weighs in memory with its translation, without its text, which is that of the path."""

_Gone = Mapping[int, frozenset[tuple[int, int]]]


@dataclass(frozen=True)
class _Translation:
    """Messages for a model, those of whole turns, and what they were made of besides the view.

    `gone` is what had given way then, `files` what of files was to be sent.
    """

    model: Model[Any]
    messages: list[ModelMessage]
    files: tuple[UserFile, ...] = ()
    many_images: bool = False
    gone: _Gone | None = None


@dataclass(frozen=True)
class _Kept:
    """What was built of the whole turns of a path. Never changed: two attempts may go on from it at once.

    `files` are contents of files that the last turn needs: each of its steps would load them all again.
    """

    limit: int
    summary: Summary | None
    messages: tuple[Message, ...]
    builder: ViewBuilder
    view: tuple[Viewed, ...]
    room: Room
    items: int = 0
    translations: tuple[_Translation, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def chars(self) -> int:
        """What it weighs in memory, roughly, counted like the texts of the path."""
        files = sum(file.size_bytes for translation in self.translations for file in translation.files)
        return files + sum(map(len, self.files.values())) + self.items * _ITEM_CHARS * len(self.translations)

    def serves(self, path: Path, limit: int) -> bool:
        """Whether the path goes on from here."""
        same = self.summary is path.summary and self.limit == limit and len(self.messages) <= len(path.messages)
        return same and all(map(is_, self.messages, path.messages))


@dataclass(frozen=True)
class _Draft:
    """The view of a path: what is kept of it, and its last turn."""

    kept: _Kept
    last: tuple[Viewed, ...]
    room: Room

    def gone(self, end: int) -> _Gone:
        """What has given way of the first messages."""
        return {number: places for number, places in self.room.gone.items() if number < end}

    def begun(self, model: Model[Any]) -> _Translation:
        """What is translated for this model already."""
        for translation in self.kept.translations:
            if translation.model is model and translation.gone == self.gone(len(translation.messages)):
                return translation
        return _Translation(model, [])

    def shown(self, start: int) -> list[Viewed]:
        """The view from this message on, without what has given way."""
        view = (*self.kept.view[start:], *self.last)
        return [self.room.shown(number, message) for number, message in enumerate(view, start)]


class RequestBuilder:
    """What a model reads, as pydantic-ai's messages.

    Args:
        store: where files are.
        paths: keeps what was built; without it everything is built anew each time.
        limit: bytes of a whole request, whatever the model.
    """

    def __init__(self, store: Store, paths: PathCache | None = None, limit: int = REQUEST_BYTES) -> None:
        self._store = store
        self._paths = paths
        self._limit = limit
        self._long_paths = asyncio.Lock()

    async def build(
        self, agent: Agent, request: CompleteRequest, path: Path, context: TurnContext, model: Model[Any]
    ) -> list[ModelMessage]:
        """The conversation for this model, with what the providers say in its place.

        Raises:
            ApplicationError: of type `ErrorType.TOO_LONG`, if it has no room in a request even without its files and
                with its long texts cut.
        """
        limit = self._limit - _reserved(agent.instructions, context.instructions)
        kept = self._kept(request.thread_id, path, context, limit)
        fresh = path.messages[len(kept.messages) :]
        draft = await self._built(_parts(fresh), _drafted, kept, path, context)
        if draft.room.is_crossed:
            raise ApplicationError(
                f"The conversation has no room in a request of {self._limit:,} bytes.",
                type=ErrorType.TOO_LONG,
                non_retryable=True,
            )
        return await self._translated(request.thread_id, draft, model, context)

    async def _translated(
        self, thread_id: str, draft: _Draft, model: Model[Any], context: TurnContext
    ) -> list[ModelMessage]:
        begun = draft.begun(model)
        shown = draft.shown(len(begun.messages))
        many = has_many_images((*begun.files, *accepted_files(shown, model)))
        if many != begun.many_images:
            # The first images are judged otherwise now.
            begun = _Translation(model, [], many_images=many)
            shown = draft.shown(0)
        blobs = await self._files(thread_id, accepted_files(shown, model), draft)
        size = sum(len(message.items) for message in shown)
        new = await self._built(size, lambda: to_messages(shown, model, blobs, many_images=many))
        messages = [*begun.messages, *new]
        if context.replace is None:
            settled = len(draft.kept.view)
            files = (*begun.files, *accepted_files(shown[: settled - len(begun.messages)], model))
            translation = _Translation(model, messages[:settled], files, many, draft.gone(settled))
            last = {file.blob for file in accepted_files(shown[settled - len(begun.messages) :], model)}
            kept = replace(draft.kept, files={blob: data for blob, data in blobs.items() if blob in last})
            self._keep(thread_id, kept, translation)
        return messages

    def _kept(self, thread_id: str, path: Path, context: TurnContext, limit: int) -> _Kept:
        """What is kept for this path, or the beginning of it."""
        kept = self._paths.built(thread_id) if self._paths and context.replace is None else None
        if isinstance(kept, _Kept) and kept.serves(path, limit):
            return kept
        builder = ViewBuilder() if context.replace is not None else ViewBuilder.begin(path.summary)
        return _Kept(limit, path.summary, (), builder, (), Room(limit))

    def _keep(self, thread_id: str, kept: _Kept, translation: _Translation) -> None:
        if self._paths is not None:
            others = [each for each in kept.translations if each.model is not translation.model]
            translations = (translation, *others[: KEPT_MODELS - 1])
            self._paths.keep_built(thread_id, replace(kept, translations=translations))

    async def _built(self, size: int, build: Callable[..., Built], *arguments: object) -> Built:
        """What a pure function makes of something of this size.

        A long path takes a second or two: heartbeats, and the other model calls of the worker, go on meanwhile. One at
        a time, since more would take no less time and would keep the collector from ever running.
        """

        def built() -> Built:
            with paused_collector():
                return build(*arguments)

        if size <= LONG_PATH:
            return built()
        async with self._long_paths:
            return await asyncio.to_thread(built)

    async def _files(self, thread_id: str, files: list[UserFile], draft: _Draft) -> dict[str, bytes]:
        """The contents of files, by their blobs."""
        room, known = draft.room, draft.kept.files
        sizes = {file.blob: file.size_bytes for file in files}
        missing = sorted(sizes.keys() - known.keys())
        loaded = await asyncio.gather(*(self._file(thread_id, blob) for blob in missing))
        found = {blob: data for blob, data in zip(missing, loaded, strict=True) if data is not None}
        found |= {blob: known[blob] for blob in sizes.keys() & known.keys()}
        # One that is larger than it was said to be has no room that was kept for it.
        left = room.limit - room.used
        for blob, data in sorted(found.items()):
            left -= max(len(data) - sizes[blob], 0) * 4 // 3
            if left < 0:
                del found[blob]
        return found

    async def _file(self, thread_id: str, blob: str) -> bytes | None:
        try:
            return await self._store.get_blob(thread_id, blob)
        except BlobNotFound:
            # One file that is not stored must not fail every later request: the model reads a note in its place.
            return None


def _drafted(kept: _Kept, path: Path, context: TurnContext) -> _Draft:
    """The view of a path that goes on from what is kept."""
    start = last_turn(path.messages)
    if context.replace is None and start > len(kept.messages):
        kept = _extended(kept, path.messages[:start])
    builder, room = kept.builder.fork(), kept.room.fork()
    builder.add_last_turn(path.messages[start:], context)
    for message in builder.built:
        room.add(message)
    return _Draft(kept, tuple(builder.built), room)


def _extended(kept: _Kept, messages: tuple[Message, ...]) -> _Kept:
    """With all whole turns of a path; what else it needs is made anew."""
    builder, room = kept.builder.fork(), kept.room.fork()
    builder.add_turns(messages[len(kept.messages) :])
    for message in builder.built:
        room.add(message)
    new = tuple(builder.built)
    items = kept.items + sum(len(message.items) for message in new)
    return replace(kept, messages=messages, builder=builder, view=kept.view + new, room=room, items=items)


def _reserved(*instructions: str) -> int:
    """In steps, so that what is left does not change with every word: nothing that was built would serve then."""
    steps = 1 + sum(len(dumps(text)) for text in instructions) // RESERVED_BYTES
    return (1 + steps) * RESERVED_BYTES


def _parts(messages: tuple[Message, ...]) -> int:
    return sum(len(message.parts) for message in messages)
