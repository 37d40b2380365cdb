"""Paths for tests of the view: built by hand, and drawn at random."""

from hypothesis import strategies as st

from perdure.messages import (
    EventPart,
    FilePart,
    FileRef,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.records import Path, Summary


def path(*messages: tuple[Role, list[Part]], summary: str | None = None) -> Path:
    """A path of messages m0, m1, ..."""
    built = tuple(
        Message(id=f"m{number}", thread_id="t", role=role, parts=tuple(parts))
        for number, (role, parts) in enumerate(messages)
    )
    hung = Summary(id="s", thread_id="t", message_id="old", parts=1, text=summary) if summary is not None else None
    return Path(messages=built, summary=hung)


def user(text: str) -> tuple[Role, list[Part]]:
    """A message of the user."""
    return "user", [TextPart(text=text)]


def call(call_id: str, tool: str = "a", arguments: str = "{}", step: int = 0) -> ToolCallPart:
    """A call in a step."""
    return ToolCallPart(call_id=call_id, tool=tool, arguments=arguments, step=step)


def result(call_id: str, content: str, step: int = 0) -> ToolResultPart:
    """Its result."""
    return ToolResultPart(call_id=call_id, content=content, step=step)


# Few ids, so that they clash and cross; odd characters, so that encoding matters.
texts = st.one_of(st.sampled_from(["", " ", "\n", "hi", "a\x00b", "\ud83d", "\ud83d\ude00", "é"]), st.text(max_size=5))
call_ids = st.sampled_from(["", "c1", "c2", "c3", "dup", "bad id", "\ud800", "x" * 70])
arguments = st.one_of(
    st.sampled_from(
        ["{}", "", "[]", "null", '{"a":', '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}', '{"\\udc00":[1]}']
    ),
    st.sampled_from(["[" * 2_000, '{"a":' * 150 + "1" + "}" * 150]),
    texts,
)
steps = st.integers(0, 2)
files = st.lists(
    st.builds(
        FileRef,
        media_type=st.sampled_from(["image/png", "image/jpeg", "application/pdf", "", "odd"]),
        blob=st.sampled_from(["b", "f"]),
        size_bytes=st.integers(0, 4_000),
    ),
    max_size=3,
).map(tuple)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=texts, step=steps),
    st.builds(ReasoningPart, text=texts, signature=st.none() | st.sampled_from(["s1", "\ud800"]), step=steps),
    st.builds(ToolCallPart, call_id=call_ids, tool=texts, arguments=arguments, error=st.none() | texts, step=steps),
    st.builds(
        ToolResultPart,
        call_id=call_ids,
        content=texts,
        outcome=st.sampled_from(["ok", "error", "denied", "interrupted", "cancelled", "expired"]),
        blob=st.none() | st.just("b"),
        files=files,
        step=steps,
    ),
    st.builds(
        EventPart,
        event_id=st.sampled_from(["e1", "e2"]),
        origin_call_id=call_ids,
        content=texts,
        origin_tool=st.none() | texts,
        origin_arguments=st.none() | arguments,
    ),
    st.builds(
        FilePart, media_type=st.just("image/png"), blob=st.just("b"), size_bytes=st.integers(0, 4_000), name=texts
    ),
)
messages: st.SearchStrategy[tuple[Role, list[Part]]] = st.tuples(
    st.sampled_from(["user", "assistant", "event"]), st.lists(parts, max_size=7)
)


def thoughts_of(conversation: Path) -> frozenset[tuple[str, str | None]]:
    """Every thought with its signature, as it was stored."""
    found = (part for message in conversation.messages for part in message.parts if isinstance(part, ReasoningPart))
    return frozenset((part.text, part.signature) for part in found)
