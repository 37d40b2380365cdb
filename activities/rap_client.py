"""The way to one RAP server: its manifest, its calls, and what it is told of threads and calls that end.

A call is sent once, unless it is certain that it did not arrive, the server says that it failed (5xx), or the tool is
marked `idempotent`. What may have arrived waits for its result, since that may still come.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from temporalio import activity

from activities.rap_http import NoAnswer, NotSent, RapHttp, Reply
from activities.recent import Recent
from activities.tool_output import Pending, ToolOutput, error_output
from perdure.codec import clip, loads, loads_object
from perdure.contract import DispatchRequest
from perdure.errors import StoreUnavailable, ToolsetUnavailable, UsageError
from perdure.ports import Store
from perdure.rap.manifest import DISCOVERY, RapTool, essence, read_manifest
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from perdure.rap.toolset import RapToolset
from perdure.records import OpenCall
from perdure.tools import Tool, approval_of, approvals_by_name

RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Half a minute: a server that is started again comes back within it, and a person still waits."""

UNCERTAIN: Final = timedelta(minutes=10)
"""How long a result is waited for when nobody knows whether the call arrived. Most results come within it if they come
at all; a call that was lost must not keep its thread waiting for ever."""

MANIFEST_BYTES: Final = 1_000_000
MANIFEST_S: Final = 10.0
"""How long a conversation waits for a manifest, all tries together: until then its model is not asked."""

NOTICE_S: Final = 5.0
"""How long a server may take to hear that a call or thread has ended. Nobody waits for it, and it is not told again."""

NO_GATEWAY: Final = (
    "This tool's result would come to a gateway, and none is known. It was not called; set PERDURE_GATEWAY_URL."
)

_FEW: Final = 2
"""How often a manifest or an answer is sent for again: somebody waits for these."""

USER: Final = "user_id"
_STORE_DELAYS_S: Final = 0.2, 5.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Caller:
    """For whom a thread calls: the threads above it, root first, and the end user if one is known."""

    ancestors: tuple[str, ...]
    user: str | None


class RapClient:
    """One toolset's server, as `ToolsetClient` has it.

    `gateway_url` is where servers can reach the gateway; calls are refused without it.
    """

    def __init__(
        self,
        toolset: RapToolset,
        store: Store,
        gateway_url: str | None,
        *,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self._toolset = toolset
        self._store = store
        self._gateway_url = gateway_url
        self._retry_delays_s = retry_delays_s
        self._http = RapHttp(toolset)
        self._callers = Recent[str, _Caller]()
        self._key: bytes | None = None
        self._timeout_s = toolset.timeout.total_seconds()
        self._expires_s = None if toolset.expires is None else toolset.expires.total_seconds()

    @property
    def name(self) -> str:
        """The toolset's name."""
        return self._toolset.name

    async def fetch(self) -> dict[str, Any]:
        """The manifest, checked, without what nobody reads.

        Raises:
            ToolsetUnavailable: with a sentence.
        """
        reply = await self._manifest()
        if not reply.is_ok:
            raise ToolsetUnavailable(f"{self.name} answers the request for its manifest with HTTP {reply.status}.")
        if reply.body is None:
            raise ToolsetUnavailable(f"The manifest of {self.name} is longer than {MANIFEST_BYTES:,} bytes.")
        try:
            listing: object = loads(reply.body.removeprefix(b"\xef\xbb\xbf"))
        except ValueError as error:
            raise ToolsetUnavailable(f"The manifest of {self.name} is not JSON ({clip(str(error), 200)}).") from error
        if not isinstance(listing, dict):
            raise ToolsetUnavailable(f"The manifest of {self.name} is not a JSON object.")
        valid = cast("dict[str, Any]", listing)
        self.tools(valid)
        return essence(valid)

    async def _manifest(self) -> Reply:
        url = self._toolset.base_url + DISCOVERY
        try:
            async with asyncio.timeout(min(MANIFEST_S, self._timeout_s)):
                return await self._http.get(url, self._timeout_s, MANIFEST_BYTES, self._retry_delays_s[:_FEW])
        except NotSent as error:
            raise ToolsetUnavailable(f"The tool server {self.name} cannot be reached.") from error
        except (NoAnswer, TimeoutError) as error:
            raise ToolsetUnavailable(f"The tool server {self.name} does not send its manifest.") from error

    def tools(self, listing: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of a manifest.

        Raises:
            ToolsetUnavailable: with a sentence that says what is wrong with it.
        """
        approval = self._toolset.approval
        tools = read_manifest(listing, self.name).tools
        # A misspelt name must not leave the tool that was meant without its approval.
        for name in approvals_by_name(approval) or ():
            if name not in {tool.operation for tool in tools}:
                raise ToolsetUnavailable(f"{self.name} offers no tool {name!r}, whose approval is declared.")
        return tuple(
            replace(
                tool,
                approval=approval_of(approval, tool.operation or tool.name, destructive=tool.destructive),
            )
            for tool in tools
        )

    async def call(self, tool: Tool, call: OpenCall, request: DispatchRequest) -> ToolOutput | Pending:
        """Have the server take the call on; its result comes to the gateway.

        Once sent it is never sent again, other than with the same id and where that does no harm: `call.started`
        above 1 says that an earlier execution, of which nothing is known, may have sent it.
        """
        if not isinstance(tool, RapTool):
            raise TypeError(f"bug: {tool.name} is no tool of a RAP server")
        if self._gateway_url is None:
            return error_output(NO_GATEWAY)
        if call.started > 1 and not tool.retry_safe:
            self._log(tool, call, "may have been sent before", 0.0)
            return Pending(self._uncertain_s)
        message = await self._invocation(tool, call, request.thread_id, self._gateway_url)
        started = time.monotonic()
        output, outcome = await self._invoke(tool, message)
        self._log(tool, call, outcome, time.monotonic() - started)
        return output

    async def _invoke(self, tool: RapTool, message: dict[str, Any]) -> tuple[ToolOutput | Pending, str]:
        """What comes of the call, and a word on it for the log. No sentence names the endpoint, which may be secret."""
        try:
            reply = await self._http.post(
                tool.endpoint, message, self._timeout_s, self._retry_delays_s, resend=tool.retry_safe
            )
        except NotSent:
            sentence = f"The server of {tool.operation} cannot be reached. The call was not carried out."
            return error_output(sentence), "not reached"
        except NoAnswer:
            return Pending(self._uncertain_s), "not acknowledged"
        status = f"HTTP status {reply.status}"
        if reply.is_ok:
            return Pending(self._expires_s), status
        if reply.status < 400:
            return error_output(f"The call of {tool.operation} was answered with a redirect ({status})."), status
        if reply.status < 500:
            return error_output(f"The call of {tool.operation} was refused with {status}."), status
        return error_output(f"The server of {tool.operation} failed with {status}; it was asked several times."), status

    async def _invocation(self, tool: RapTool, call: OpenCall, thread_id: str, gateway_url: str) -> dict[str, Any]:
        """The message (RAP, basic/tool-invocation). Ids of ancestors and of the user are the store's."""
        caller = await _read(lambda: self._caller(thread_id))
        token = callback_token(await _read(self._callback_key), thread_id, call.call_id)
        return {
            "operation": tool.operation,
            "arguments": loads_object(call.arguments),
            "id": call.call_id,
            "call_id": None,
            "callback_url": callback_url(gateway_url, thread_id, call.call_id, token),
            "group_id": thread_id,
            "thread_ancestors": list(caller.ancestors) or None,
        } | ({USER: caller.user} if caller.user else {})

    async def _caller(self, thread_id: str) -> _Caller:
        """Read once: a thread stays where it is, and a user is set only before its first message (`load`).

        The user is the root's, whose metadata hold all that its servers have offered, too much to read for each call.
        """
        if known := self._callers.get(thread_id):
            return known
        chain = await self._store.get_ancestor_chain(thread_id)
        ancestors = tuple(thread.thread_id for thread in chain[:-1])
        user = (await self._caller(ancestors[0])).user if ancestors else await self._user(thread_id)
        return self._callers.put(thread_id, _Caller(ancestors, user))

    async def _user(self, root: str) -> str | None:
        user = (await self._store.get_metadata(root)).get(USER)
        return user if isinstance(user, str) else None

    async def _callback_key(self) -> bytes:
        if self._key is None:
            self._key = await self._store.get_key(CALLBACK_KEY)
        return self._key

    @property
    def _uncertain_s(self) -> float:
        uncertain_s = UNCERTAIN.total_seconds()
        return uncertain_s if self._expires_s is None else min(uncertain_s, self._expires_s)

    def _log(self, tool: Tool, call: OpenCall, outcome: str, seconds: float) -> None:
        facts = {"operation": tool.operation, "call_id": call.call_id, "outcome": outcome, "seconds": round(seconds, 3)}
        activity.logger.info("a call of a RAP server", extra=facts)

    async def cancel(self, thread_id: str, call_id: str) -> None:
        """Tell the server that nobody waits for the call, or wants its events, any more. Told once; never raises."""
        await self._tell("/cancel_tool_call", {"thread_id": thread_id, "tool_call_id": call_id})

    async def closed(self, thread_id: str) -> None:
        """Tell the server that the thread is closed. Told once; never raises."""
        await self._tell("/close_thread", {"thread_id": thread_id})

    async def _tell(self, path: str, message: dict[str, str]) -> None:
        try:
            reply = await self._http.post(self._toolset.base_url + path, message, NOTICE_S)
            outcome = f"HTTP status {reply.status}"
        except (NotSent, NoAnswer) as error:
            outcome = type(error).__name__
        # Servers that keep nothing have no such route, so no answer to this is worth a warning.
        facts = {"toolset": self.name, "path": path, "outcome": outcome}
        activity.logger.info("a RAP server was told of an end", extra=facts)

    async def choose(self, tool: RapTool, url: str, call_id: str, selected: int) -> None:
        """Post a person's choice, zero-based, to where the tool's server waits for it. Safe to repeat.

        Raises:
            UsageError: the URL leads to a host that the toolset does not trust, or the server refuses the answer.
            ToolsetUnavailable: it does not take it now; another try may help.
        """
        if not self._toolset.trusts(url, tool.endpoint):
            raise UsageError(
                f"{self.name} wants the answer sent to {clip(urlsplit(url).netloc, 100)!r}, neither its host nor a "
                "trusted one. If that is right, add it to the toolset's `trusted_hosts`."
            )
        message = {"id": call_id, "selected": selected}
        try:
            reply = await self._http.post(url, message, self._timeout_s, self._retry_delays_s[:_FEW], resend=True)
        except (NotSent, NoAnswer) as error:
            raise ToolsetUnavailable(f"{self.name} does not take the answer now.") from error
        if reply.status >= 500:
            raise ToolsetUnavailable(f"{self.name} failed with HTTP status {reply.status} when it got the answer.")
        if not reply.is_ok:
            raise UsageError(f"{self.name} refuses the answer with HTTP status {reply.status}; it may be too late.")

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


async def _read(read: Callable[[], Awaitable[Answer]]) -> Answer:
    """Read from the store, as soon as it answers.

    The start of the call is counted already, so failing here would have the next attempt take the call for sent.
    """
    delay_s, longest_s = _STORE_DELAYS_S
    while True:
        try:
            return await read()
        except StoreUnavailable:
            activity.logger.warning("the store is away; the call of a RAP server waits")
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, longest_s)
