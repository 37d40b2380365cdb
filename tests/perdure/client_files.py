"""Files as clients write them: nothing in them is ours."""

from typing import Any

from hypothesis import strategies as st

from perdure.codec import dumps
from perdure.interchange import ImportResult, read_import
from perdure.messages import Message, ToolCallPart, ToolResultPart

Json = dict[str, Any]

PAUSED: Json = {"type": "requires-action", "reason": "tool-calls"}
INTERRUPTED: Json = {"type": "requires-action", "reason": "interrupt"}
RUNNING: Json = {"type": "running"}
STOPPED: Json = {"type": "complete", "reason": "stop"}
DONE: Json = {"type": "complete", "reason": "unknown"}
CANCELLED: Json = {"type": "incomplete", "reason": "cancelled"}

PENDING: Json = {"id": "q1", "prompt": "Really?"}
APPROVED: Json = {"id": "q1", "prompt": "Really?", "approved": True}
DENIED: Json = {"id": "q1", "approved": False}
PAYLOAD: Json = {"type": "human", "payload": {"which": ["a", "b"]}}


def user(id: str, parent: str | None = None, content: object = "hi", **fields: object) -> Json:
    """An item with words of the user."""
    return {"parentId": parent, "message": {"id": id, "role": "user", "content": content, **fields}}


def assistant(id: str, parent: str | None, *content: Json, **fields: object) -> Json:
    """An item with an answer; without `status` none is given."""
    return {"parentId": parent, "message": {"id": id, "role": "assistant", "content": content, **fields}}


def text(words: str) -> Json:
    """A text entry."""
    return {"type": "text", "text": words}


def call(id: str = "c1", **fields: object) -> Json:
    """A tool call's entry."""
    return {"type": "tool-call", "toolCallId": id, "toolName": "buy", "args": {"n": 1}, "argsText": '{"n":1}', **fields}


def read(*items: Json, head: str | None = None) -> ImportResult:
    """What is read of a file."""
    return read_import(dumps({"headId": head, "messages": items}).encode("ascii"))


def message_of(result: ImportResult, id: str) -> Message:
    """The message of an id."""
    return next(one.message for one in result.messages if one.message.id == id)


def call_of(message: Message, id: str = "c1") -> ToolCallPart:
    """The call of an id."""
    return next(part for part in message.parts if isinstance(part, ToolCallPart) and part.call_id == id)


def results_of(message: Message) -> dict[str, tuple[str, str]]:
    """Outcome and content of the result of each call."""
    return {part.call_id: (part.outcome, part.content) for part in message.parts if isinstance(part, ToolResultPart)}


_statuses = st.sampled_from([None, PAUSED, INTERRUPTED, RUNNING, STOPPED, DONE, CANCELLED])
_settled: dict[str, st.SearchStrategy[Any]] = {
    "result": st.sampled_from([None, 0, "", "x", {"a": 1}]),
    "isError": st.booleans(),
    "interrupt": st.just(PAYLOAD),
    "approval": st.sampled_from([PENDING, APPROVED, DENIED]),
}
_fields: st.SearchStrategy[Json] = st.fixed_dictionaries({}, optional=_settled)
_wild_fields: st.SearchStrategy[Json] = st.fixed_dictionaries({}, optional={**_settled, "isPreliminary": st.booleans()})


@st.composite
def client_files(draw: st.DrawFn, *, wild: bool = True) -> list[Json]:
    """Messages in any order, some of them of no tree; the first always stays.

    If `wild` some are placeholders, calls have preliminary results, and their ids come again.
    """
    items = [user("m0")]
    for number in range(1, draw(st.integers(1, 6))):
        parent = draw(st.sampled_from([None, "gone", *(f"m{other}" for other in range(number))]))
        status = draw(_statuses)
        fields: Json = {} if status is None else {"status": status}
        if wild and draw(st.integers(0, 5)) == 0:
            fields["metadata"] = {"isOptimistic": True}
        content = [text("so") for _ in range(draw(st.integers(0, 1)))]
        for place in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(["c1", "c2", "c3"])) if wild else f"c{number}.{place}"
            content.append(call(name, **draw(_wild_fields if wild else _fields)))
        items.append(assistant(f"m{number}", parent, *content, **fields))
    return draw(st.permutations(items))
