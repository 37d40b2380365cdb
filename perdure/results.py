"""What comes from outside for the calls of a thread: their results, and events of the subscriptions that they opened.

A thread that is asleep wakes for it.
"""

from perdure.codec import clip, dumps, is_json
from perdure.contract import PREVIEW_CHARS, TreeChanged
from perdure.control import ThreadControl, made
from perdure.errors import CallNotOpen, UnknownMessage, UsageError
from perdure.inputs import Event, ToolResult
from perdure.messages import Outcome, ToolCallPart, ToolResultPart
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from perdure.settings import load_settings


class ThreadResults(ThreadControl):
    """Brings results and events.

    All methods raise ThreadNotFound and ThreadClosed, and Unreachable if Temporal did not take it in time.
    """

    async def tool_result(
        self,
        thread_id: str,
        call_id: str,
        content: object,
        *,
        outcome: Outcome = "ok",
        subscription: bool = False,
        message_id: str | None = None,
        preliminary: bool = False,
    ) -> TreeChanged | None:
        """Give the result of a call, on whatever branch. Safe to repeat: it takes one result, later ones are dropped.

        Args:
            thread_id: the thread.
            call_id: the call.
            content: text, or any other JSON value: the model reads its JSON. False, 0, "" and None are results too.
            outcome: how the call went.
            subscription: one that went well goes on, and whoever gave the result may send events of it (`event`).
            message_id: the message of the call. Then the result is also taken if nobody waits for it any more: it is
                stored in the place of what was put there when the turn ended, and nothing runs.
            preliminary: it is shown until the next one comes, and the call stays open.

        Returns:
            What became of it, if `message_id` is given or it is preliminary: then the thread is waited for. Otherwise
            nobody is told, and no worker need be up.

        Raises:
            UsageError: if the content is no JSON value, the thread has no such call, or the thread, where it is waited
                for, does not take it: nobody waits for it, or the call has another result already.
        """
        start = await self._open(thread_id)
        text = _text(content)
        inline, blob, _ = await self._texts.put(thread_id, text)
        result = made(
            ToolResult,
            call_id=call_id,
            content=inline,
            outcome=outcome,
            blob=blob,
            size_bytes=len(text.encode("utf-8", "surrogatepass")),
            subscription=subscription,
            message_id=message_id,
            preliminary=preliminary,
        )
        if message_id is None and not preliminary:
            await self._check_known(thread_id, call_id)
            await self._calls.signal_with_start(thread_id, "tool_result", result, start)
            return None
        taken = await self._calls.update_with_start(thread_id, "add_result", result, TreeChanged, start)
        if taken.disposition not in ("settled", "changed", "duplicate"):
            raise UsageError(f"Nobody waits for a result of the call {clip(call_id, PREVIEW_CHARS)!r}.")
        if message_id is not None and not preliminary:
            await self._check_counted(thread_id, message_id, result)
        return taken

    async def callback_url(self, thread_id: str, call_id: str, *, gateway_url: str | None = None) -> str:
        """Where whoever has no client posts the result of an open call: a browser, another service.

        It is a secret, good for this call alone, until that is settled and its subscription has ended. It is the same
        each time.

        Args:
            thread_id: the thread.
            call_id: the call.
            gateway_url: where the gateway is; left out, where the settings of this process say (`PERDURE_GATEWAY_URL`).

        Raises:
            CallNotOpen: if nobody waits for a result of the call.
            ConfigurationError: if a setting of this process is wrong.
        """
        await self._open(thread_id)
        if (await self.store.get_call(thread_id, call_id)).result is not None:
            raise CallNotOpen(call_id)
        base = load_settings().callback_base if gateway_url is None else gateway_url
        token = callback_token(await self.store.get_key(CALLBACK_KEY), thread_id, call_id)
        return callback_url(base, thread_id, call_id, token)

    async def event(
        self, thread_id: str, call_id: str, content: str, *, id: str, associative: bool = True, final: bool = False
    ) -> None:
        """Bring an event of the subscription that the call `call_id` opened. Safe to repeat with the same `id`.

        An associative event joins the conversation, another one is handled in a child thread of its own; after the
        `final` one the subscription has ended.
        """
        start = await self._open(thread_id)
        inline, blob, sha256 = await self._texts.put(thread_id, content)
        event = made(
            Event,
            id=id,
            call_id=call_id,
            content=inline,
            blob=blob,
            sha256=sha256,
            associative=associative,
            final=final,
        )
        await self._calls.signal_with_start(thread_id, "event", event, start)

    async def _check_known(self, thread_id: str, call_id: str) -> None:
        """Whether the thread has such a call, asked of the store: nobody is woken for one that there never was.

        One that is over is known too: whoever brings its result once more has done nothing wrong.
        """
        try:
            await self.store.get_call(thread_id, call_id)
            return
        except CallNotOpen:
            pass
        # In this order: people see a call while it streams, and it may be stored while this looks for it.
        live = (await self.store.snapshot(thread_id)).live
        streaming = live.parts if live else ()
        stored = (part for one in (await self.store.load_tree(thread_id)).messages for part in one.message.parts)
        if not any(isinstance(part, ToolCallPart) and part.call_id == call_id for part in (*streaming, *stored)):
            raise UsageError(f"There is no call {clip(call_id, PREVIEW_CHARS)!r} in this thread.")

    async def _check_counted(self, thread_id: str, message_id: str, given: ToolResult) -> None:
        """Whether a result is the one that its call has: what a tool has returned is never replaced.

        Only the store can tell, once the thread has written: of two that come at the same time one counts.
        """
        found = await self._result_of(thread_id, message_id, given.call_id)
        if found is None or _is_same(found, given):
            return
        words = f": {clip(found.content, PREVIEW_CHARS)}" if found.content.strip() else ""
        raise UsageError(
            f"The result did not count: the call {clip(given.call_id, PREVIEW_CHARS)!r} has one already "
            f"({found.outcome}{words}), which stays."
        )

    async def _result_of(self, thread_id: str, message_id: str, call_id: str) -> ToolResultPart | None:
        """The result of a call, or the one that waits for others of its step; None if neither is there any more."""
        tree = await self.store.load_tree(thread_id, parts=False)
        parents = {one.message.id: one.parent_id for one in tree.messages}
        staged = next((call.result for call in tree.calls if call.call_id == call_id), None)
        if staged is not None or message_id not in parents:
            return staged
        try:
            path = await self.store.load_history_with_ancestors(thread_id, parents[message_id], message_id, whole=True)
        except UnknownMessage:  # deleted since the tree was read
            return None
        parts = (part for part in path.messages[-1].parts if isinstance(part, ToolResultPart))
        return next((part for part in parts if part.call_id == call_id), None)


def _is_same(found: ToolResultPart, given: ToolResult) -> bool:
    if found.outcome != given.outcome:
        return False
    # What opens a subscription is told how to end it, behind what its tool has said.
    is_told = found.content == given.content or (given.subscription and found.content.startswith(given.content))
    return found.blob == given.blob if given.blob else is_told


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not is_json(content):
        raise UsageError("A result is text or another JSON value.")
    return dumps(content)
