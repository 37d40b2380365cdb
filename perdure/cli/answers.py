"""Calls that wait for the person at the terminal: found, said, and answered by what is typed."""

from collections.abc import Awaitable, Callable

from perdure.cli.conversation import Conversation, Output
from perdure.cli.printable import one_line
from perdure.contract import ThreadStatus
from perdure.errors import UsageError


class Answers:
    """The client-side calls of a thread.

    A reader of the store cannot tell them from calls that are about to start: only the workflow knows who carries a
    call out. So it is asked, once for each call that nothing has started.

    Args:
        conversation: what is shown.
        output: where it is shown.
        status: asks the thread for its status.
    """

    def __init__(
        self, conversation: Conversation, output: Output, status: Callable[[], Awaitable[ThreadStatus]]
    ) -> None:
        self._conversation = conversation
        self._output = output
        self._status = status
        self._known: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """The calls that wait for the person, in call order."""
        return [call_id for call_id in self._conversation.unstarted if call_id in self._waiting]

    @property
    def unknown(self) -> bool:
        """Whether `look` has something to find out."""
        return not self._known.issuperset(self._conversation.unstarted)

    async def look(self) -> None:
        """Say what calls wait for that nothing has started."""
        status = await self._status()
        unstarted = set(self._conversation.unstarted)
        for call in status.open_calls:
            if call.call_id not in unstarted or call.call_id in self._known or call.state in ("settled", "approval"):
                continue
            self._known.add(call.call_id)
            text = self._conversation.call_text(call.call_id)
            if call.kind == "workflow":
                self._output.line(f"☾ {text} sleeps until something happens", "dim")
            elif call.kind in ("client", None):
                self._waiting.add(call.call_id)
                self._output.line(f"? {text} waits for you: /result TEXT is its result", "yellow")
        # Those that were not found have been settled meanwhile, or are other people's to carry out.
        self._known |= unstarted

    def read(self, typed: str) -> tuple[str, str]:
        """The call and the result out of `TEXT` or `CALL_ID TEXT`.

        Raises:
            UsageError: if no call waits, or it is not clear which one is meant.
        """
        waiting = self.waiting
        call_id, _, text = typed.strip().partition(" ")
        if call_id in waiting and text.strip():
            return call_id, text.strip()
        if not waiting:
            raise UsageError("No call waits for your result.")
        if len(waiting) > 1:
            raise UsageError(f"{len(waiting)} calls wait; say which: /result {one_line(waiting[0])} TEXT, or another.")
        return waiting[0], typed.strip()
