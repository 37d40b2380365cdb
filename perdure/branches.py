"""Conversations as people rearrange them: answers are made anew, branches shown, messages deleted, trees carried away.

All of it goes through the thread's workflow, the only one who writes: a thread that is asleep wakes for it. Each call
may be repeated under the same `id`; without one it is given a new one, and is another request each time.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from perdure.codec import Text, dumps, is_json
from perdure.contract import ThreadStart, TreeChanged
from perdure.control import ThreadControl, check_object, made
from perdure.errors import BlobNotFound, ThreadClosed, UsageError
from perdure.exported_message import FEEDBACK
from perdure.inputs import ROOT, Disposition, Regenerate, TreeChange
from perdure.interchange import export_tree, named_blobs, read_import
from perdure.large_text import MISSING
from perdure.thread_calls import new_id

_NOT_CHANGED: Final[dict[Disposition, str]] = {
    "conflict": "its id was used before for something else; take another id",
    "dropped": "the thread could not store it; ask again",
    "refused": "it cannot be done",
}


class Imported(TreeChanged):
    """The answer to an import; `warnings` say what of the file was left out or put right."""

    warnings: tuple[Text, ...] = ()


class ThreadBranches(ThreadControl):
    """Rearranges conversations.

    All methods raise, besides what they say:
        ThreadNotFound, ThreadClosed: there is no such thread, or it takes nothing more.
        UsageError: with the thread's sentence, if it is asked for what cannot be done. Nothing was changed then.
        Unreachable: if Temporal or the workers did not answer in time. Then it may have been done or not.
    """

    async def regenerate(self, thread_id: str, message_id: str, *, id: str | None = None) -> TreeChanged:
        """Answer once more: beside an answer, which stays, or below words. Stops a turn that is under way.

        Returns:
            What became of it; `message_id` is the new answer, which `wait_settled` waits for. Of a `duplicate` it is
            the answer that there is for the same `id`, None if that was deleted.
        """
        request = made(Regenerate, id=new_id() if id is None else id, message_id=message_id)
        changed = await self._change_tree(thread_id, "regenerate", request)
        if changed.disposition != "duplicate":
            return changed
        # Nobody need have asked twice: a reply that was lost is asked for again, by whoever has taken over meanwhile.
        messages = (one.message for one in (await self.store.load_tree(thread_id, parts=False)).messages)
        answer = next((message.id for message in messages if message.input_id == request.id), None)
        return changed.with_(message_id=answer)

    async def switch_branch(self, thread_id: str, message_id: str, *, id: str | None = None) -> TreeChanged:
        """Show the branch of a message, and below it what was last shown there. A turn that runs goes on, unseen."""
        return await self._change(thread_id, "switch", id, message_id=message_id)

    async def delete_message(
        self, thread_id: str, message_id: str, *, replacement_id: str | None = None, id: str | None = None
    ) -> TreeChanged:
        """Delete one message, and its content for good. What follows it moves up to its parent, or to another message.

        Args:
            thread_id: the thread.
            message_id: what goes. If it is a turn under way, that is stopped first.
            replacement_id: where what follows it goes; `perdure.inputs.ROOT` for the beginning of the conversation.
            id: by which a repetition is known. Whoever deletes the same message under another one is told `duplicate`.
        """
        return await self._change(thread_id, "delete", id, message_id=message_id, replacement_id=replacement_id)

    async def reset(self, thread_id: str, message_id: str | None = None, *, id: str | None = None) -> TreeChanged:
        """Delete all that follows a message, on all branches, for good; without one, all there is."""
        return await self._change(thread_id, "reset", id, message_id=ROOT if message_id is None else message_id)

    async def annotate(
        self, thread_id: str, message_id: str, metadata: Mapping[str, Any], *, id: str | None = None
    ) -> TreeChanged:
        """Merge values into a message's metadata, which no model ever reads; None removes a key.

        Raises UsageError if they are not JSON, or above 32 KiB of it.
        """
        check_object("metadata", values := dict(metadata))
        return await self._change(thread_id, "annotate", id, message_id=message_id, metadata=values)

    async def feedback(
        self,
        thread_id: str,
        message_id: str,
        value: str | float | bool | None,
        comment: Text | None = None,
        *,
        id: str | None = None,
    ) -> TreeChanged:
        """Say what a person thinks of a message; it replaces what was said before. Kept in the metadata, `feedback`.

        Args:
            thread_id: the thread.
            message_id: the message.
            value: such as `positive` or `negative`, or a number; None withdraws what was said.
            comment: more words.
            id: by which a repetition is known.
        """
        said = {"value": value} | ({} if comment is None else {"comment": comment})
        return await self.annotate(thread_id, message_id, {FEEDBACK: None if value is None else said}, id=id)

    async def export_thread(self, thread_id: str) -> dict[str, Any]:
        """The whole conversation, all its branches, as JSON: `{"headId", "messages": [{"parentId", "message"}]}`.

        assistant-ui loads it as it is; what only threads here hold is in fields named `perdure`, and files are inside.
        So is the agent, `["perdure"]["agent"]`: `start` another thread with it. What a child thread inherits is not.
        The thread is only read: it need not run.
        """
        tree = await self.store.load_tree(thread_id)
        files = {blob: await self._file(thread_id, blob) for blob in sorted(named_blobs(tree))}
        return export_tree(tree, files, (await self.store.get_thread(thread_id)).agent)

    async def import_thread(
        self, thread_id: str, data: Mapping[str, Any] | bytes | str, *, id: str | None = None
    ) -> Imported:
        """Add the messages of an export to a thread, and show what it shows. What is there stays.

        A message whose id is one of this thread's is changed if the export says something else of it; so importing
        twice, or importing what was exported here, changes nothing. The thread keeps its agent. Turns of the file that
        were under way are over, but for those that wait for people.

        Args:
            thread_id: the thread, which has to be there (`start`).
            data: the export, or what a file holds that it was written to.
            id: by which a repetition is known.

        Raises:
            UsageError: what is wrong with the export, and where. Nothing was sent then.
        """
        await self._open(thread_id)
        encoded = _encoded(data)
        read = await asyncio.to_thread(read_import, encoded)
        blob = await self.store.put_blob(thread_id, encoded, "application/json")
        changed = await self._change(thread_id, "import", id, blob=blob)
        return Imported(**changed.stated(), warnings=read.warnings)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _file(self, thread_id: str, blob: str) -> bytes:
        try:
            return await self.store.get_blob(thread_id, blob)
        except BlobNotFound:
            # Whoever gave a result named a blob that is not stored; the rest can be carried away all the same.
            return MISSING.encode()

    async def _change(
        self,
        thread_id: str,
        action: Literal["switch", "delete", "reset", "import", "annotate"],
        id: str | None,
        **fields: Any,
    ) -> TreeChanged:
        request = made(TreeChange, id=new_id() if id is None else id, action=action, **fields)
        return await self._change_tree(thread_id, "change_tree", request)

    async def _change_tree(self, thread_id: str, update: str, request: Regenerate | TreeChange) -> TreeChanged:
        if isinstance(request, TreeChange) and request.takes_away:
            start = ThreadStart(title=(await self.store.get_thread(thread_id)).title)
        else:
            start = await self._open(thread_id)
        changed = await self._calls.update_with_start(thread_id, update, request, TreeChanged, start)
        if changed.disposition == "rejected":
            raise ThreadClosed.of(thread_id)
        if why := _NOT_CHANGED.get(changed.disposition):
            raise UsageError(f"The conversation was not changed ({changed.disposition}): {why}.")
        return changed


def _encoded(data: object) -> bytes:
    """An export as a file holds it, whatever it was given as."""
    match data:
        case bytes() | bytearray():
            return bytes(data)
        case str():
            return data.encode("utf-8", "surrogatepass")
        case Mapping() if is_json(content := dict(cast("Mapping[str, Any]", data))):
            return dumps(content).encode()
        case _:
            raise UsageError("An export is a JSON object, and this one is not, or is nested too deeply.")
