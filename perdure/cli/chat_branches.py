"""The branches of a thread as its chat shows and changes them. Messages go by the numbers of the last list."""

import re
from typing import Final

from perdure.cli.conversation import Conversation, Output
from perdure.cli.printable import one_line
from perdure.cli.tree_lines import places, tree_lines
from perdure.client import PerdureClient
from perdure.errors import StoreUnavailable, UsageError

SHOWN_LINES: Final = 100
_NUMBERED: Final = re.compile(r"#(\d{1,9})\s+(?=\S)")
_NUMBER: Final = re.compile(r"#?(\d{1,9})")


class ChatBranches:
    """The message tree of one thread."""

    def __init__(self, client: PerdureClient, thread_id: str, conversation: Conversation, output: Output) -> None:
        self._client = client
        self._thread_id = thread_id
        self._conversation = conversation
        self._output = output
        self._listed: list[str] = []

    async def find_places(self) -> None:
        """Find out which messages stand beside others, for the snapshot that is about to be shown."""
        try:
            tree = await self._client.store.load_tree(self._thread_id, parts=False)
        except StoreUnavailable:  # the watch tries again for as long as it takes, and the next snapshot has the marks
            return
        self._conversation.places = places(tree)

    async def show(self) -> None:
        """List the messages of all branches, numbered."""
        lines = tree_lines(await self._client.tree(self._thread_id))
        self._listed = [line.message.id for line in lines]
        if not lines:
            self._output.line("Nothing was said yet.", "dim")
            return
        shown = [line.text(f"#{number}") for number, line in enumerate(lines, 1)]
        if (earlier := len(shown) - SHOWN_LINES) > 0:
            all_of_it = f"`perdure branches {one_line(self._thread_id)}`"
            shown = [f"… {earlier:,} lines before these: {all_of_it}", *shown[-SHOWN_LINES:]]
        self._output.line("\n".join([*shown, "/switch N shows another branch; * is what is shown."]), "dim")

    async def switch(self, typed: str) -> None:
        """Show the branch of a message."""
        await self._client.switch_branch(self._thread_id, self._numbered(typed))

    async def regenerate(self, typed: str) -> str:
        """Answer once more, without a number the last message; returns the id of the new answer."""
        head = self._conversation.view.head
        if not typed and head is None:
            raise UsageError("Nothing was said yet.")
        message_id = head.id if head and not typed else self._numbered(typed)
        return (await self._client.regenerate(self._thread_id, message_id)).message_id or ""

    def to_edit(self, typed: str) -> tuple[str, str]:
        """The message to say something else for, and the words, out of `TEXT` or `#N TEXT`.

        Raises:
            UsageError: if there is none.
        """
        if found := _NUMBERED.match(typed):
            return self._numbered(found[1]), typed[found.end() :]
        messages = reversed(self._conversation.view.messages)
        said = (message.id for message in messages if message.role == "user" and message.thread_id == self._thread_id)
        if (message_id := next(said, None)) is None:
            raise UsageError("Nothing was said yet that could be edited.")
        return message_id, typed

    def _numbered(self, typed: str) -> str:
        found = _NUMBER.fullmatch(typed.strip())
        number = int(found[1]) if found else 0
        if not 1 <= number <= len(self._listed):
            raise UsageError(f"No message was listed as {one_line(typed)}: /branches numbers them.")
        return self._listed[number - 1]
