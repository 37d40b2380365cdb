"""How an admitted callback is recorded: by a signal to the thread's workflow, or by a row that clients read.

Large content goes into the thread's blobs first, and its reference travels. Blobs have the digest of their content as
their id, so a callback that is sent again after a failure stores nothing twice.
"""

import re
import uuid
from typing import Final

from gateway.refusal import Refusal
from perdure.codec import dumps, head
from perdure.contract import ThreadStart
from perdure.errors import TooManyViews, UsageError
from perdure.inputs import INLINE_BYTES, Event, ToolResult
from perdure.large_text import LargeTexts
from perdure.messages import FileRef
from perdure.ports import Store
from perdure.rap.callback import (
    Callback,
    ChoiceCallback,
    EventCallback,
    Image,
    OAuthCallback,
    ResultCallback,
    ViewCallback,
)
from perdure.records import Choice, ThreadRecord
from perdure.thread_calls import ThreadCalls

MAX_IMAGES: Final = 100
"""In one result; no model takes more at once."""

MAX_VIEW_BYTES: Final = 1_000_000
"""Of a view's content as JSON, which is ASCII. Every reader is sent all views of a thread."""

_media_type = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


class Delivery:
    """Records callbacks. Each of them is recorded by the last thing that is done, so a failure recorded nothing."""

    def __init__(self, store: Store, calls: ThreadCalls) -> None:
        self._store = store
        self._calls = calls
        self._texts = LargeTexts(store)

    async def deliver(self, callback: Callback, thread: ThreadRecord, call_id: str, request_id: str | None) -> None:
        """Record a callback.

        Raises:
            Refusal: 413 if it carries more than a thread takes.
            CallNotOpen: if a question comes for a call that was settled meanwhile.
            StoreUnavailable, Unreachable: if the database or Temporal is away. A signal whose answer did not come may
                have arrived nevertheless; a result counts once in any case, an event has its id.
        """
        match callback:
            case ResultCallback():
                await self._signal(thread, "tool_result", await self._result(callback, thread.thread_id))
            case EventCallback():
                await self._signal(thread, "event", await self._event(callback, thread.thread_id, request_id))
            case OAuthCallback() | ChoiceCallback():
                await self._store.put_choice(thread.thread_id, _choice(callback, call_id))
            case ViewCallback():
                await self._view(callback, thread.thread_id)

    async def _signal(self, thread: ThreadRecord, signal: str, content: ToolResult | Event) -> None:
        await self._calls.signal_with_start(thread.thread_id, signal, content, ThreadStart(title=thread.title))

    async def _result(self, callback: ResultCallback, thread_id: str) -> ToolResult:
        if len(callback.images) > MAX_IMAGES:
            raise Refusal(413, f"A result carries at most {MAX_IMAGES} images.")
        encoded = callback.words.encode("utf-8", "surrogatepass")
        is_large = len(encoded) > INLINE_BYTES
        return ToolResult(
            call_id=callback.id,
            content=head(encoded, INLINE_BYTES) if is_large else callback.words,
            outcome=callback.outcome,
            blob=await self._store.put_blob(thread_id, encoded) if is_large else None,
            size_bytes=len(encoded),
            subscription=callback.opens_subscription,
            files=tuple([await self._file(thread_id, image) for image in callback.images]),
            display=_inline(callback.display),
        )

    async def _file(self, thread_id: str, image: Image) -> FileRef:
        media_type = image.media_type if _media_type.fullmatch(image.media_type) else "application/octet-stream"
        blob = await self._store.put_blob(thread_id, image.data, media_type)
        return FileRef(media_type=media_type, blob=blob, size_bytes=len(image.data))

    async def _view(self, callback: ViewCallback, thread_id: str) -> None:
        content = callback.json_text
        if len(content) > MAX_VIEW_BYTES:
            raise Refusal(413, f"The content of a view has at most {MAX_VIEW_BYTES:,} bytes, as JSON in ASCII.")
        try:
            await self._store.put_view(thread_id, callback.view_type, content)
        except TooManyViews as error:
            raise Refusal(413, str(error)) from error

    async def _event(self, callback: EventCallback, thread_id: str, request_id: str | None) -> Event:
        try:
            content, blob, sha256 = await self._texts.put(thread_id, callback.text)
        except UsageError as error:
            raise Refusal(413, str(error)) from error
        return Event(
            # Made before the first try to send it, so that the tries of one request are one event.
            id=request_id or f"event-{uuid.uuid4().hex}",
            call_id=callback.tool_call_id,
            content=content,
            blob=blob,
            sha256=sha256,
            associative=callback.associative,
            final=callback.final,
            source="subscription",
        )


def _inline(display: str | None) -> str | None:
    """Segments that fit into the signal, as it writes them. Without them people are shown the result's own words."""
    return display if display is not None and len(dumps(display)) <= INLINE_BYTES else None


def _choice(callback: OAuthCallback | ChoiceCallback, call_id: str) -> Choice:
    """A question of a call. A call has one of each kind: a newer one takes the place of the one before."""
    if isinstance(callback, OAuthCallback):
        return Choice(id=f"{call_id}-oauth", call_id=call_id, kind="oauth", auth_url=callback.auth_url)
    return Choice(
        id=call_id,
        call_id=call_id,
        prompt=callback.prompt,
        choices=callback.choices,
        default=callback.default,
        response_url=callback.response_url,
    )
