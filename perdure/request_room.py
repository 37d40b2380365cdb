"""How much a request may weigh, and what gives way to a note when it would be more.

Every provider refuses a request above some number of bytes, whatever its tokens, and one that has once become too
large would be refused for ever (case B54). So files give way, the oldest first and the newest last; and if what is left
is words, the longest texts are cut to their beginnings, the oldest first. What gives way is decided by what precedes it
and by what follows up to the end; when the bound is crossed, half of it is made free, so that the beginning of the
request changes rarely and not with every new item.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.codec import dumps
from perdure.messages import ProviderData
from perdure.view_files import LEFT_OUT, file_note
from perdure.view_items import (
    Call,
    ModelText,
    Reasoning,
    Request,
    RequestItem,
    Response,
    ResponseItem,
    Result,
    UserFile,
    UserText,
    Viewed,
)

REQUEST_BYTES: Final = 20_000_000
"""The tightest limit of a provider, for the whole body (Google's; others take 32 MB and more)."""

LONG_CHARS: Final = 4_000
"""A text above it may be cut."""

SHOWN_CHARS: Final = 1_000
"""What stays of it."""

ITEM_BYTES: Final = 400
"""What the JSON around an item takes, ids and names included, and the notes that a model which cannot read it gets."""

_WHOLE: Final = -1

_Place = tuple[int, int]
"""Where something stands in a message: the item, and the file in that; `_WHOLE` is the item itself."""

_Queue = deque[tuple[int, _Place, int]]
"""What may give way, the oldest first: the number of its message, its place there, the bytes that it makes free."""


@dataclass(slots=True)
class Room:
    """Takes the messages of a view in order, and knows which of their items have given way.

    Attributes:
        limit: bytes of them all.
        used: bytes of what is shown, as the JSON of the most wasteful client: in ASCII, files in base64.
        messages: how many were taken.
        gone: the places of what has given way, by the numbers of their messages.
    """

    limit: int = REQUEST_BYTES
    used: int = 0
    messages: int = 0
    gone: dict[int, frozenset[_Place]] = field(default_factory=dict[int, frozenset[_Place]])
    _files: _Queue = field(default_factory=_Queue)
    _texts: _Queue = field(default_factory=_Queue)

    def fork(self) -> "Room":
        """A copy that goes its own way."""
        return replace(self, gone=self.gone.copy(), _files=self._files.copy(), _texts=self._texts.copy())

    def add(self, message: Viewed) -> None:
        """Take the next message."""
        for index, item in enumerate(message.items):
            self._add(index, item)
        self.messages += 1

    @property
    def is_crossed(self) -> bool:
        """Whether there is too much even after everything has given way that can."""
        return self.used > self.limit

    def shown(self, number: int, message: Viewed) -> Viewed:
        """A message as it is shown; `number` is its place among those that were taken."""
        gone = self.gone.get(number)
        if gone is None:
            return message
        if isinstance(message, Response):
            return Response(
                tuple(_cut(item) if (at, _WHOLE) in gone else item for at, item in enumerate(message.items))
            )
        return Request(tuple(_shown(item, {f for i, f in gone if i == at}) for at, item in enumerate(message.items)))

    def _add(self, index: int, item: RequestItem | ResponseItem) -> None:
        self.used += ITEM_BYTES + _provider_bytes(item)
        match item:
            case UserText(text) | ModelText(text):
                self._add_text((index, _WHOLE), text)
            case Result():
                self._add_text((index, _WHOLE), item.text)
                for at, file in enumerate(item.files):
                    self._add_file((index, at), file)
            case UserFile():
                self._add_file((index, 0), item)
            case Reasoning():
                self.used += _bytes(item.text) + _bytes(item.signature or "")
            case Call():
                self.used += _bytes(item.arguments)
        self._make_room()

    def _add_text(self, place: _Place, text: str) -> None:
        size = _bytes(text)
        self.used += size
        if len(text) > LONG_CHARS:
            self._texts.append((self.messages, place, size - _bytes(text[:SHOWN_CHARS]) - ITEM_BYTES))

    def _add_file(self, place: _Place, file: UserFile) -> None:
        self.used += ITEM_BYTES + _bytes(file.name or "") + _bytes(file.media_type)
        size = (file.size_bytes + 2) // 3 * 4
        if size > self.limit:
            # Alone too large: it takes no other file along.
            self._leave_out(self.messages, place)
            return
        self.used += size
        self._files.append((self.messages, place, size))
        self._make_room()

    def _make_room(self) -> None:
        if self.used > self.limit:
            self._drop(self._files, self.limit // 2, keep=1)
        if self.used > self.limit:
            self._drop(self._texts, self.limit // 2)
        if self.used > self.limit:
            self._drop(self._files, self.limit)

    def _drop(self, queue: _Queue, limit: int, keep: int = 0) -> None:
        while self.used > limit and len(queue) > keep:
            number, place, size = queue.popleft()
            self._leave_out(number, place)
            self.used -= size

    def _leave_out(self, number: int, place: _Place) -> None:
        self.gone[number] = self.gone.get(number, frozenset()) | {place}


def fitted(view: tuple[Viewed, ...], limit: int = REQUEST_BYTES) -> tuple[Viewed, ...]:
    """The view without what has no room in so many bytes."""
    room = Room(limit)
    for message in view:
        room.add(message)
    return tuple(room.shown(number, message) for number, message in enumerate(view)) if room.gone else view


def how_to_go_on(call_id: str, offset: int) -> str:
    """How the model reads the rest of a result that it does not see in full."""
    return f'Read on with read_result(call_id="{call_id}", offset={offset}).'


def _shown(item: RequestItem, gone: set[int]) -> RequestItem:
    if not gone:
        return item
    match item:
        case UserFile():
            return UserText(file_note(item.media_type, item.size_bytes, LEFT_OUT, item.name))
        case UserText(text):
            return UserText(_beginning(text))
        case Result():
            return _shown_result(item, gone)


def _shown_result(item: Result, gone: set[int]) -> Result:
    text = item.text
    if _WHOLE in gone:
        beginning = text[:SHOWN_CHARS]
        go_on = how_to_go_on(item.call_id, len(beginning.encode("utf-8")))
        text = f"{beginning}\n\n[Cut off here to keep the request within its size limit. {go_on}]"
    dropped = [file for index, file in enumerate(item.files) if index in gone]
    notes = [file_note(file.media_type, file.size_bytes, LEFT_OUT) for file in dropped]
    files = tuple(file for index, file in enumerate(item.files) if index not in gone)
    return replace(item, text="\n\n".join([text, *notes]), files=files)


def _cut(item: ResponseItem) -> ResponseItem:
    # What a provider keeps beside the words belongs to all of them.
    return ModelText(_beginning(item.text)) if isinstance(item, ModelText) else item


def _beginning(text: str) -> str:
    return (
        f"{text[:SHOWN_CHARS]}\n\n[Cut off here to keep the request within its size limit: {len(text):,} characters.]"
    )


def _provider_bytes(item: RequestItem | ResponseItem) -> int:
    provider: ProviderData | None = getattr(item, "provider", None)
    return _bytes(provider) if provider is not None else 0


def _bytes(value: object) -> int:
    return len(dumps(value))
