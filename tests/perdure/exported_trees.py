"""Hypothesis strategies for stored trees with content of every kind, and what becomes of an export elsewhere."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from hypothesis import strategies as st

from perdure.approval import APPROVES, ApprovalOption, ApprovalQuestion, ApprovalRequest, Decision
from perdure.codec import dumps, loads
from perdure.import_rules import settled
from perdure.interchange import ImportResult, export_tree, read_import
from perdure.message_content import entries, parts_of, with_context, without_context
from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    FileRef,
    IncompleteReason,
    Message,
    Part,
    ProviderData,
    ReasoningPart,
    Status,
    StatusState,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    TurnOptions,
    Usage,
)
from perdure.records import OpenCall, StoredTree, TreeMessage
from tests.properties import hostile_text

THREAD = "thread"
words = hostile_text
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
_empty: st.SearchStrategy[Any] = st.sampled_from(["[]", "{}"]).map(loads)
values: st.SearchStrategy[Any] = st.one_of(
    _scalars, st.lists(_scalars, max_size=2), st.dictionaries(words, _empty | _scalars, max_size=2)
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
large_words = st.sampled_from(["long " * 9, "\x00 large \ud800"])
contents = st.one_of(
    words,
    values.map(dumps),
    st.sampled_from(
        ['{"a": 1}', "[1,2]", "1e999", "NaN", '""', '"x"', "null", "false", "0", " 1", "-0", "1.0", "9" * 30]
    ),
)
arguments = st.one_of(words, st.dictionaries(words, values, max_size=3).map(dumps), st.sampled_from(['{"a": 1}', ""]))
providers = st.none() | st.builds(
    ProviderData, name=st.none() | words, details=st.none() | st.dictionaries(words, values, max_size=2)
)
options = st.builds(
    ApprovalOption,
    id=words,
    kind=st.sampled_from([*APPROVES, "_custom"]),
    label=words,
    grants=st.sampled_from(["arguments", "tool"]),
    confirm=st.booleans(),
)
questions = st.builds(
    ApprovalQuestion, id=names, header=st.none() | words, options=st.lists(options, max_size=1).map(tuple)
)
requests = st.builds(
    ApprovalRequest,
    prompt=words,
    display=st.sampled_from(["decision", "select", "text", "questions"]),
    options=st.lists(options, max_size=2).map(tuple),
    questions=st.lists(questions, max_size=1).map(tuple),
    dismissible=st.booleans(),
    expires_s=st.sampled_from([None, 0.5, 60.0]),
)
decisions = st.builds(
    Decision,
    approved=st.none() | st.booleans(),
    resolution=st.sampled_from([None, None, "cancelled", "expired"]),
    option_id=st.none() | names,
    answers=st.none() | st.dictionaries(words, values, max_size=1),
    reason=st.none() | words,
    by=st.none() | words,
    remembered=st.booleans(),
    at=st.sampled_from([0.0, 1.5e9]),
)
stored_files = st.tuples(
    st.sampled_from(["image/png", "text/plain", "application/octet-stream", "image/svg+xml", "image/a;b"]),
    st.binary(max_size=20),
)


@dataclass
class Stored:
    """A tree and what its blobs hold."""

    tree: StoredTree
    files: dict[str, bytes]

    def export(self) -> dict[str, Any]:
        """Its export."""
        return export_tree(self.tree, self.files)


def encoded(export: Mapping[str, Any]) -> bytes:
    """The file of an export."""
    return dumps(export).encode("ascii")


def imported(result: ImportResult) -> Stored:
    """What a store holds after an import into an empty thread that keeps the ids."""
    calls = [open_call(one.message, part.call_id, interim=part) for one in result.messages for part in one.interim]
    messages = [
        TreeMessage(
            message=one.message,
            parent_id=one.message.parent_id,
            place=place,
            created_at=None if one.created_at is None else datetime.fromisoformat(one.created_at),
        )
        for place, one in enumerate(result.messages)
    ]
    return Stored(tree_of(messages, result.head_id, calls), {blob: data for blob, (_, data) in result.files.items()})


def open_call(message: Message, call_id: str, **fields: Any) -> OpenCall:
    """An open call of a message."""
    found = [(place, part) for place, part in enumerate(message.parts) if isinstance(part, ToolCallPart)]
    place, part = next((place, part) for place, part in found if part.call_id == call_id)
    return OpenCall(
        call_id=call_id,
        message_id=message.id,
        turn=1,
        step=part.step,
        index=0,
        position=place,
        tool=part.tool,
        arguments=part.arguments,
        approval=part.approval,
        decision=part.decision,
        **fields,
    )


def again(export: Mapping[str, Any]) -> dict[str, Any]:
    """The export of what an export becomes elsewhere."""
    return imported(read_import(encoded(export))).export()


def tree_of(messages: Sequence[TreeMessage], head_id: str | None, calls: Sequence[OpenCall] = ()) -> StoredTree:
    """The tree of messages, opened along the path to its head."""
    parents = {one.message.id: one.parent_id for one in messages}
    last = {one.parent_id: one.message.id for one in messages}
    remembered: list[tuple[str | None, str]] = []
    name = head_id
    while name is not None:
        if last[parents[name]] != name:
            remembered.append((parents[name], name))
        name = parents[name]
    return StoredTree(head_id=head_id, messages=tuple(messages), remembered=tuple(remembered), calls=tuple(calls))


@st.composite
def stored_trees(draw: st.DrawFn, *, at_rest: bool = False, max_size: int = 4) -> Stored:
    """Trees of messages of every kind; `at_rest`, as they are when no turn of theirs is under way."""
    content = _Content(draw, {})
    shape = [draw(st.integers(0, number)) for number in range(draw(st.integers(0, max_size)))]
    messages: list[TreeMessage] = []
    calls: list[OpenCall] = []
    for number, parent in enumerate(shape):
        message = Message(
            id=f"m{number + 1}",
            thread_id=THREAD,
            role=draw(st.sampled_from(["assistant", "assistant", "user", "event"])),
            parent_id=None if parent == 0 else f"m{parent}",
            input_id=draw(st.none() | names),
            source_id=draw(st.none() | st.sampled_from(["m1", "gone"])),
            metadata=draw(st.none() | st.dictionaries(words, values, min_size=1, max_size=2) | _lifted),
        )
        if message.role == "assistant":
            message = message.with_(usage=draw(_usages))
            parts, status = content.of_turn(number), draw(_statuses)
            if at_rest:
                said, context = without_context(parts)
                found, order = entries(said)
                found, status = settled(found, status, followed=number + 1 in shape)
                parts = with_context(parts_of(found, order), context)
            message = message.with_(parts=parts, status=status)
            if status.state in ("running", "requires_action"):
                calls += content.of_calls(message)
        else:
            options = draw(_turn_options) if message.role == "user" else None
            message = message.with_(parts=tuple(content.parts()), options=options)
        created_at = draw(st.none() | st.datetimes(timezones=st.just(UTC)))
        messages.append(TreeMessage(message=message, parent_id=message.parent_id, place=number, created_at=created_at))
    head_id = draw(st.sampled_from([one.message.id for one in messages])) if messages else None
    return Stored(tree_of(messages, head_id, calls), content.files)


class _Content:
    """Draws the content of messages, and keeps what its blobs hold."""

    def __init__(self, draw: st.DrawFn, files: dict[str, bytes]) -> None:
        self.draw = draw
        self.files = files

    def parts(self) -> list[Part]:
        """Parts of any kind, in any order."""
        return self.draw(st.lists(_parts(self.files), max_size=4))

    def of_turn(self, number: int) -> tuple[Part, ...]:
        """Parts with calls of their own ids, and results of some of those, wherever they may stand."""
        parts = [
            part.with_(call_id=f"c{number}.{place}") if isinstance(part, ToolCallPart) else part
            for place, part in enumerate(self.parts())
        ]
        for part in list(parts):
            if isinstance(part, ToolCallPart) and self.draw(st.booleans()):
                result = self.draw(_results(self.files)).with_(call_id=part.call_id)
                place = self.draw(st.integers(parts.index(part) + 1, len(parts)))
                parts.insert(place, result.with_(step=part.step) if self.draw(st.booleans()) else result)
        return tuple(parts)

    def of_calls(self, message: Message) -> list[OpenCall]:
        """What a store keeps beside the open calls of a message."""
        calls: list[OpenCall] = []
        for entry in entries(without_context(message.parts)[0])[0]:
            if isinstance(entry.part, ToolCallPart) and entry.is_open:
                told = self.draw(_results(self.files)).with_(call_id=entry.part.call_id)
                # The first one has no result: a turn of which all calls have theirs waits for nobody.
                places = ["", "interim", "result"] if calls else ["", "interim"]
                kept = self.draw(st.sampled_from(places))
                fields: dict[str, ToolResultPart] = {kept: told} if kept else {}
                calls.append(open_call(message, entry.part.call_id, **fields))
        return calls


_lifted = st.fixed_dictionaries(
    {"runConfig": st.dictionaries(words, values, max_size=1)},
    optional={
        "feedback": st.sampled_from([{"value": "positive"}, {"value": "negative", "comment": ""}, {"value": 3}])
        | values,
        "perdure": values,
        "submittedFeedback": values,
    },
)
_statuses = st.one_of(
    st.builds(
        Status,
        state=st.sampled_from(get_args(StatusState)),
        reason=st.none() | st.sampled_from(get_args(IncompleteReason)),
        detail=st.none() | words,
    ),
    st.sampled_from([Status(state="requires_action"), Status(state="requires_action", reason="interrupt")]),
)
_steps = st.integers(0, 3)
_counts = st.integers(0, 9)
_usages = st.none() | st.builds(
    Usage, requests=_counts, input_tokens=_counts, output_tokens=_counts, cached_tokens=_counts, nano_usd=_counts
)
_turn_options = st.none() | st.builds(
    TurnOptions, model=st.none() | names, settings=st.none() | st.dictionaries(words, values, max_size=2)
)


def _parts(files: dict[str, bytes]) -> st.SearchStrategy[Part]:
    blobs = _blobs(files)
    texts = st.builds(TextPart, text=words, blob=blobs, provider=providers, step=_steps)
    thoughts = st.builds(ReasoningPart, text=words, signature=st.none() | words, provider=providers, step=_steps)
    pictures = st.builds(_picture(files), stored_files, name=st.none() | words, step=_steps, size=st.integers(0, 9))
    calls = st.builds(
        ToolCallPart,
        call_id=names,
        tool=words,
        arguments=arguments,
        error=st.none() | words,
        provider=providers,
        approval=st.none() | requests,
        decision=st.none() | decisions,
        interrupt=st.none() | st.dictionaries(words, values, max_size=1),
        step=_steps,
    )
    events = st.builds(
        EventPart,
        event_id=names,
        origin_call_id=names,
        content=words,
        blob=blobs,
        origin_tool=st.none() | words,
        origin_arguments=st.none() | words,
    )
    context = st.builds(ContextPart, source=words, text=words, step=_steps)
    return st.one_of(texts, calls, calls, thoughts, pictures, _results(files), events, context)


def _picture(files: dict[str, bytes]) -> Callable[..., FilePart]:
    def picture(file: tuple[str, bytes], name: str | None, step: int, size: int) -> FilePart:
        media_type, data = file
        blob = _kept(files, data)
        return FilePart(media_type=media_type, blob=blob, name=name, step=step, size_bytes=size or len(data))

    return picture


def _results(files: dict[str, bytes]) -> st.SearchStrategy[ToolResultPart]:
    refs = stored_files.map(
        lambda file: FileRef(media_type=file[0], blob=_kept(files, file[1]), size_bytes=len(file[1]))
    )
    return st.builds(
        ToolResultPart,
        call_id=names,
        outcome=st.sampled_from(["ok", "error", "denied", "interrupted", "cancelled", "expired"]),
        content=contents,
        size_bytes=st.integers(0, 99),
        blob=_blobs(files),
        files=st.lists(refs, max_size=2).map(tuple),
        display=st.none() | words,
        artifact=values,
        model_content=values,
        step=_steps,
    )


def _blobs(files: dict[str, bytes]) -> st.SearchStrategy[str | None]:
    return st.none() | large_words.map(lambda text: _kept(files, text.encode("utf-8", "surrogatepass")))


def _kept(files: dict[str, bytes], data: bytes) -> str:
    blob = hashlib.sha256(data).hexdigest()
    files[blob] = data
    return blob
