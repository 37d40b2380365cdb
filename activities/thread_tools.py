"""The tools by which threads reach each other: report_to_parent, close_thread, send_message_to_child.

Each may run again: what it sends has the id of its call.
"""

from activities.store_call import store_call
from activities.thread_mail import ThreadMail
from activities.tool_output import ToolOutput, error_output
from perdure.builtins import CLOSE_THREAD, REPORT_TO_PARENT, SEND_MESSAGE_TO_CHILD
from perdure.codec import clip, loads_object
from perdure.errors import ThreadNotFound, UsageError
from perdure.ports import Store
from perdure.records import OpenCall, ThreadRecord
from perdure.thread_texts import child_report, parent_message
from perdure.tools import Tool

_ID_CHARS = 100


class ThreadTools:
    """Carries out calls that tell other threads something."""

    def __init__(self, store: Store, mail: ThreadMail) -> None:
        self._store = store
        self._mail = mail

    async def run(self, tool: Tool, call: OpenCall, thread_id: str) -> ToolOutput:
        """Carry the call out. What is wrong with it is a result; ApplicationError asks for another try."""
        try:
            return await self._run(tool, call, thread_id)
        except UsageError as error:
            return error_output(str(error))

    async def _run(self, tool: Tool, call: OpenCall, thread_id: str) -> ToolOutput:
        arguments = loads_object(call.arguments)
        thread = await store_call(self._store.get_thread(thread_id))
        match tool.operation:
            case _ if tool.operation == REPORT_TO_PARENT:
                return await self._report(call, thread, str(arguments["report"]))
            case _ if tool.operation == CLOSE_THREAD:
                return await self._close(call, thread, str(arguments["thread_id"]), arguments.get("report_to_parent"))
            case _ if tool.operation == SEND_MESSAGE_TO_CHILD:
                return await self._message(call, thread, str(arguments["thread_id"]), str(arguments["message"]))
            case _:
                return error_output(f"bug: nothing carries out {tool.name}")

    async def _report(self, call: OpenCall, thread: ThreadRecord, report: str) -> ToolOutput:
        if thread.parent_thread_id is None:
            return error_output("This is the root thread: it has no parent to report to. Tell the user instead.")
        await self._tell_parent(call, thread, thread.parent_thread_id, report, closed=False)
        return ToolOutput("The report was sent.")

    async def _close(self, call: OpenCall, thread: ThreadRecord, closed: str, report: str | None) -> ToolOutput:
        if thread.parent_thread_id is None:
            return error_output("This is the root thread; only people close it.")
        if closed != thread.thread_id:
            return error_output(
                f"A thread can close only itself: you are in {thread.thread_id}, not {clip(closed, _ID_CHARS)!r}."
            )
        # A thread for one event is nothing its parent has asked for, so it ends without a word unless it has one.
        if thread.kind != "event" or report:
            await self._tell_parent(call, thread, thread.parent_thread_id, report, closed=True)
        return ToolOutput("The thread is closed.")

    async def _message(self, call: OpenCall, thread: ThreadRecord, child_id: str, message: str) -> ToolOutput:
        try:
            child = await self._store.get_thread(child_id)
        except ThreadNotFound:
            child = None
        if child is None or child.parent_thread_id != thread.thread_id:
            return error_output(f"This thread has no child {clip(child_id, _ID_CHARS)!r}.")
        if child.closed_at is not None:
            return error_output(f"The child {child_id} is closed and reads nothing any more.")
        origin = await self._mail.origin(child.thread_id)
        await self._mail.tell(child_id, f"message:{call.call_id}", origin, parent_message(message), "parent")
        return ToolOutput("The message was sent.")

    async def _tell_parent(
        self, call: OpenCall, thread: ThreadRecord, parent_id: str, report: str | None, *, closed: bool
    ) -> None:
        origin = await self._mail.origin(thread.thread_id)
        is_event = thread.kind == "event"
        active = is_event and any(
            known.call_id == origin for known in await store_call(self._store.get_active_subscriptions(parent_id))
        )
        text = child_report(
            thread.thread_id,
            report,
            closed=closed,
            event=is_event,
            subscription_call_id=origin if active else None,
        )
        await self._mail.tell(parent_id, f"report:{call.call_id}", origin, text, "child")
