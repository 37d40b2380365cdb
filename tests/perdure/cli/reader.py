"""A reader of a conversation, for tests: a terminal that keeps what is written, and changes as they come."""

from datetime import UTC

from perdure.cli.conversation import Conversation
from perdure.messages import Message, Part, Status, ToolCallPart, ToolResultPart
from perdure.records import Change, OpenCall, Path, Snapshot, ThreadRecord
from perdure.turn_buffer import Chunk

THREAD = ThreadRecord(thread_id="t1", agent="demo")
QUESTION = Message(id="u1", thread_id="t1", role="user")
ANSWER = Message(id="a1", thread_id="t1", role="assistant", parent_id="u1", turn=1, status=Status(state="running"))
CALL = ToolCallPart(call_id="c1", tool="get_weather", arguments='{"city": "Paris", "days": 2}')


class Paper:
    """An output that keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, style: str = "") -> None:
        """Keep it."""
        self.text += text

    def fresh(self) -> None:
        """Start a line."""
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"

    def line(self, text: str, style: str = "") -> None:
        """Keep a line."""
        self.fresh()
        self.text += text + "\n"


class Reader:
    """A conversation with an output, and changes numbered as they come."""

    def __init__(self, *messages: Message, **snapshot: object) -> None:
        self.paper = Paper()
        self.conversation = Conversation(self.paper, zone=UTC)
        self.seq = 1
        self.conversation.show(
            Snapshot.model_validate({"thread": THREAD, "path": Path(messages=messages), "seq": 1} | snapshot)
        )

    def tell(self, **change: object) -> None:
        """The next change."""
        self.seq += 1
        message = change.get("message")
        if isinstance(message, Message) and not self.conversation.view.message(message.id):
            change["message"] = message.with_(seq=self.seq)  # a new one is told by the change that has its number
        self.conversation.show(Change.model_validate({"seq": self.seq} | change))

    def tell_all(self, **snapshot: object) -> None:
        """The whole of it, as it is now."""
        self.seq += 1
        self.conversation.show(Snapshot.model_validate({"thread": THREAD, "seq": self.seq} | snapshot))

    def stream(self, text: str, *, index: int = 0, attempt: int = 1, step: int = 0, part: Part | None = None) -> None:
        """The model says something more."""
        self.tell(turn=1, step=step, attempt=attempt, chunk=Chunk(index=index, delta=text, part=part))

    def commit(self, *parts: Part, at: int = 0) -> None:
        """Parts of the answer are committed."""
        for position, part in enumerate(parts, at):
            self.tell(message_id="a1", position=position, part=part)

    def settle(self, **status: object) -> None:
        """The turn ends."""
        self.tell(message=ANSWER.with_(status=Status.model_validate(status)))

    @property
    def lines(self) -> list[str]:
        """What was written, without blank lines."""
        return [line for line in self.paper.text.split("\n") if line]


def open_call(
    call_id: str, started: int = 0, result: ToolResultPart | None = None, call_id_shown: str | None = None
) -> OpenCall:
    """A call that was started so often, or has its result."""
    return OpenCall(
        call_id=call_id_shown or call_id,
        message_id="a1",
        turn=1,
        step=0,
        index=0,
        tool="get_weather",
        started=started,
        result=result,
    )
