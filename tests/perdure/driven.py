"""A manager over a naive store, driven by hand: what the tests of single decisions share."""

from collections.abc import Iterable
from typing import Any

from perdure import ids
from perdure.approval import ApprovalOption, ApprovalRequest
from perdure.batch import SyncBatch
from perdure.codec import dumps
from perdure.history import HistoryManager
from perdure.history_state import Phase, SubscriptionLimits
from perdure.inputs import AnyInput, Disposition, Event, Mode, UserMessage
from perdure.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.turn_buffer import Chunk
from tests.perdure.naive_store import THREAD, Declared, NaiveStore, outline

PLAIN = ApprovalRequest(
    options=(
        ApprovalOption(id="yes", kind="allow_once"),
        ApprovalOption(id="always", kind="allow_always"),
        ApprovalOption(id="same", kind="allow_always", grants="arguments"),
        ApprovalOption(id="no", kind="reject_once"),
        ApprovalOption(id="never", kind="reject_always"),
    )
)

TOOLS = {
    "sleep": Declared("workflow", passive=True),
    "watch": Declared("rap"),
    "close": Declared("thread", operation="close_thread"),
    "ask": Declared("client"),
    "pay": Declared(approval=PLAIN),
}


class Thread:
    """A manager over a naive store, and what one does with it."""

    def __init__(self, limits: SubscriptionLimits | None = None, *, pauses: bool = True) -> None:
        self.limits = limits
        self.pauses = pauses
        self.store = NaiveStore(TOOLS)
        self.reload()

    def say(self, text: str, name: str = "m1", mode: Mode = "interrupt") -> Disposition:
        """A user message, synced."""
        return self.take(UserMessage(id=name, text=text, mode=mode))

    def take(self, content: AnyInput) -> Disposition:
        """An input, synced; what became of it in the end."""
        told = self.history.handle_content(content)
        refused = [one for batch in self.sync() for one in self.store.refused.get(batch.sync_id, ())]
        dispositions = self.history.take_dispositions()
        if isinstance(content, UserMessage | Event):
            return dispositions[content.id]
        return "dropped" if any(one.message_id == "" for one in refused) else told

    def stream(self, *parts: Part) -> None:
        """A step begins and streams parts."""
        self.history.begin_step()
        for index, part in enumerate(parts):
            self.history.handle_completion(Chunk(index=index, part=part))

    def answer(self, *parts: Part) -> None:
        """A whole step, synced."""
        self.stream(*parts)
        self.history.flush_turn()
        self.sync()

    def act(self, *tools: str, arguments: str = '{"q":1}') -> list[str]:
        """A whole step that makes calls, as the workflow takes it from the store; returns their ids."""
        turn, step = self.history.begin_step()
        parts = tuple(
            ToolCallPart(call_id=ids.call_id(THREAD, turn, step, index), tool=tool, arguments=arguments, step=step)
            for index, tool in enumerate(tools)
        )
        self.store.finished[turn, step] = parts
        self.history.handle_step(outline(parts, TOOLS))
        self.history.flush_turn()
        self.sync()
        return self.calls

    def sync(self) -> list[SyncBatch]:
        """Write what is pending; the batches, refused ones too."""
        batches: list[SyncBatch] = []
        while (batch := self.history.take_pending("run")) is not None:
            batches.append(batch)
            self.history.synced(self.store.append_messages(batch))
        return batches

    def reload(self) -> None:
        """Another process takes over."""
        self.history = HistoryManager.from_tail(self.store.tail(), self.limits, pauses=self.pauses)

    def phase(self) -> Phase:
        """Where the thread stands now."""
        return self.history.phase

    @property
    def calls(self) -> list[str]:
        """The ids of the open calls."""
        return [call.call_id for call in self.history.open_turn.calls] if self.history.open_turn else []

    @property
    def last(self) -> Message:
        """The last stored message."""
        return self.store.messages[-1]

    def roles(self) -> list[str]:
        """Who spoke."""
        return [message.role for message in self.store.messages]


def call(tool: str = "t", error: str | None = None, **arguments: Any) -> ToolCallPart:
    """A call as it streams; its id is the manager's to give."""
    return ToolCallPart(call_id="", tool=tool, arguments=dumps(arguments), error=error)


def texts(parts: Iterable[Part]) -> list[str]:
    """The words among parts."""
    return [part.text for part in parts if isinstance(part, TextPart)]


def results(message: Message) -> list[tuple[str, str]]:
    """Outcome and content of the results."""
    return [(part.outcome, part.content) for part in message.parts if isinstance(part, ToolResultPart)]
