"""POST /callbacks/{thread}/{call}/{token}: everything that tool servers of the RAP protocol send about a call.

200 means that it is durably accepted: Temporal has the signal, or the store the row. Servers that hear anything else
send an error result in its place, so nothing that was recorded is answered otherwise: recording
is the last thing that happens. The first result of a call counts; a later one gets 200 too, and changes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gateway.admission import Admission
from gateway.body import ClientGone, largest_body, read_body
from gateway.delivery import Delivery
from gateway.refusal import Refusal, answer, try_again
from gateway.room import Room
from perdure.codec import digest, dumps
from perdure.errors import CallNotOpen, PerdureError, ThreadNotFound, UsageError
from perdure.ports import Store
from perdure.rap.callback import Callback, EventCallback, read_callback
from perdure.rap.token import CALLBACK_KEY, verify
from perdure.thread_calls import ThreadCalls

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

log: "BoundLogger" = structlog.get_logger("perdure.gateway")

IN_FLIGHT: Final = 64
"""Callbacks that are recorded at once. Others wait for a moment."""

ROOM_BYTES: Final = 64 * 2**20
"""What their bodies may have together, since each is held in memory, with copies, until it is recorded."""

_ANY_SITE: Final = {"Access-Control-Allow-Origin": "*"}
_ASKED_FIRST: Final = _ANY_SITE | {"Access-Control-Allow-Methods": "POST", "Access-Control-Allow-Headers": "*"}
"""What browsers need to hear to let a page of another site post, and read the answer. It lets nobody in: no cookie or
login counts here, only the URL does, and a page that has it could have another program post."""

_TURN_S: Final = 5.0
_WORK_S: Final = 15.0
"""How long a callback may wait for room and for its turn, and how long recording it may take. Then the server is to
send again."""


class Callbacks:
    """Takes callbacks in.

    Attributes:
        answers: how often each status was answered.
    """

    def __init__(self, store: Store, calls: ThreadCalls, limit_bytes: int) -> None:
        self.answers: Counter[int] = Counter()
        self._store = store
        self._admission = Admission(store)
        self._delivery = Delivery(store, calls)
        self._limit_bytes = limit_bytes
        self._turns = asyncio.Semaphore(IN_FLIGHT)
        self._room = Room(ROOM_BYTES, _TURN_S)
        self._key: bytes | None = None

    async def receive(self, request: Request, thread_id: str, call_id: str, token: str) -> Response:
        """Answer a callback. Safe to repeat, but for events without a request id: each is taken for another one."""
        response = await self._answered(request, thread_id, call_id, token)
        self.answers[response.status_code] += 1
        return response

    async def _answered(self, request: Request, thread_id: str, call_id: str, token: str) -> Response:
        try:
            await self._take(request, thread_id, call_id, token)
        except Refusal as refusal:
            log.info("callback refused", status=refusal.status, reason=refusal.sentence)
            return answer(refusal.status, refusal.sentence)
        except ThreadNotFound:
            return answer(404, "There is no such thread.")
        except CallNotOpen:  # it was settled while the callback was worked on
            return answer(410, "The call waits for nothing any more.")
        except ClientGone:
            return Response(status_code=400)  # nobody reads it
        except (PerdureError, TimeoutError) as error:
            log.warning("callback not recorded", reason=str(error) or "it took too long")
            return try_again("The callback could not be recorded now; send it again.")
        return JSONResponse({"ok": True})

    async def _take(self, request: Request, thread_id: str, call_id: str, token: str) -> None:
        # The token comes first: who has none can neither make us read a body nor learn what threads there are.
        if not verify(await self._callback_key(), thread_id, call_id, token):
            raise Refusal(403, "The token in this URL does not belong to its thread and call.")
        # Not before: in a path that is wrong a token may stand where an id should.
        structlog.contextvars.bind_contextvars(thread_id=thread_id, call_id=call_id)
        largest = largest_body(request, self._limit_bytes)
        # The turn comes last: who sends slowly must not have one.
        async with self._room.receive(lambda: read_body(request, self._limit_bytes), largest) as body, self._turn():
            callback = self._read(body, thread_id, call_id)
            async with asyncio.timeout(_WORK_S):
                await self._record(callback, thread_id, call_id, _request_id(request, callback, call_id))

    async def _callback_key(self) -> bytes:
        if self._key is None:
            self._key = await self._store.get_key(CALLBACK_KEY)
        return self._key

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        async with asyncio.timeout(_TURN_S) as deadline, self._turns:
            deadline.reschedule(None)
            yield

    def _read(self, body: bytes, thread_id: str, call_id: str) -> Callback:
        try:
            callback = read_callback(body)
        except UsageError as error:
            raise Refusal(400, str(error)) from error
        if not callback.is_about(thread_id, call_id):
            raise Refusal(403, "The callback names another thread or call than the URL that it was sent to.")
        return callback

    async def _record(self, callback: Callback, thread_id: str, call_id: str, request_id: str | None) -> None:
        thread = await self._admission.thread(thread_id)
        if await self._admission.is_wanted(callback, thread_id, call_id):
            await self._delivery.deliver(callback, thread, call_id, request_id)
        else:
            log.info("callback dropped", reason="the call has its result", type=callback.type)


def callback_routes(callbacks: Callbacks) -> APIRouter:
    """The route of callbacks."""
    router = APIRouter()

    async def receive(request: Request) -> Response:
        response = await callbacks.receive(request, **request.path_params)
        response.headers.update(_ANY_SITE)
        return response

    async def permit(_: Request) -> Response:
        return Response(status_code=204, headers=_ASKED_FIRST)

    # The thread is all that is left of the path: its id may hold slashes, and a path is unquoted before it is split.
    # Not `router.post`: what FastAPI does for parameters would be a fifth of the work that a callback makes.
    path = "/callbacks/{thread_id:path}/{call_id}/{token}"
    # Some servers put a slash behind every URL, and take the redirect that they would get for a refusal.
    for route in (path, f"{path}/"):
        router.add_route(route, receive, methods=["POST"])
        router.add_route(route, permit, methods=["OPTIONS"])
    return router


def _request_id(request: Request, callback: Callback, call_id: str) -> str | None:
    """What makes a repeated request the same event, None if the server does not say.

    Hashed together with the call: what servers count must not meet ids of other servers, or of messages of people.
    """
    if given := request.headers.get("idempotency-key"):
        return f"event-{digest(f'{call_id} {given}')}"
    # Proxies and servers hand this one on from request to request, so events that differ may have it in common.
    if (given := request.headers.get("x-request-id")) and isinstance(callback, EventCallback):
        return f"event-{digest(dumps([call_id, given, callback.text]))}"
    return None
