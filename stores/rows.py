"""Between rows and records.

Bodies are the JSON text of `perdure.codec`. Rows come from the driver or, where a statement collects several of
them, as JSON objects of the same columns.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol

from pydantic import TypeAdapter

from perdure.approval import RememberedDecision
from perdure.codec import dumps, loads
from perdure.collector import paused_collector
from perdure.errors import StoreError, UnknownMessage
from perdure.messages import (
    Message,
    Part,
    Status,
    StatusReason,
    StatusState,
    ToolCallPart,
    ToolResultPart,
    TurnOptions,
    Usage,
)
from perdure.records import (
    Change,
    Choice,
    Deadline,
    OpenCall,
    Path,
    Spending,
    Spent,
    Step,
    StepOutcome,
    StoredTree,
    Subscription,
    Summary,
    SummaryItem,
    Tail,
    ThreadRecord,
    TreeMessage,
    View,
)
from perdure.turn_buffer import Chunk, TurnBuffer


class Columns(Protocol):
    """A row by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any:
        """The value of a column."""
        ...


_part: TypeAdapter[Part] = TypeAdapter(Part)


def encoded(value: object | None) -> str | None:
    """JSON text, None for None."""
    return None if value is None else dumps(value)


def decoded(text: str | None) -> Any:
    """The value of a JSON text, None for None."""
    return None if text is None else loads(text)


def to_part(body: str) -> Part:
    """A part from its body."""
    return _part.validate_python(loads(body))


def to_parts(bodies: Iterable[str]) -> tuple[Part, ...]:
    """Parts from their bodies."""
    return tuple(to_part(body) for body in bodies)


def to_chunks(bodies: Iterable[str]) -> tuple[Chunk, ...]:
    """Chunks from their bodies."""
    return tuple(Chunk.model_validate(loads(body)) for body in bodies)


def to_result(body: str | None) -> ToolResultPart | None:
    """A staged result."""
    return None if body is None else ToolResultPart.model_validate(loads(body))


def to_outcome(body: str | None) -> StepOutcome | None:
    """The outcome of a done step."""
    return None if body is None else StepOutcome.model_validate(loads(body))


def to_thread(row: Columns) -> ThreadRecord:
    """A row of `threads`."""
    return ThreadRecord(
        thread_id=row["thread_id"],
        agent=row["agent"],
        tenant=row["tenant"],
        kind=row["kind"],
        title=decoded(row["title"]),
        parent_thread_id=row["parent_thread_id"],
        root_thread_id=row["root_thread_id"],
        spawn_message_id=row["spawn_message_id"],
        spawn_parts=row["spawn_parts"],
        head_id=row["head_id"],
        version=row["version"],
        seq=row["seq"],
        turn=row["turn"],
        usage=Usage(
            requests=row["requests"],
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cached_tokens=row["cached_tokens"],
            nano_usd=row["nano_usd"],
            unpriced=row["unpriced"],
        ),
        model=decoded(row["model"]),
        created_at=row["created_at"],
        closed_at=row["closed_at"],
    )


def to_message(row: Columns, parts: tuple[Part, ...] = ()) -> Message:
    """A row of `messages`."""
    return Message(
        id=row["id"],
        thread_id=row["thread_id"],
        role=row["role"],
        parent_id=row["parent_id"],
        parent_parts=row["parent_parts"],
        turn=row["turn"],
        status=to_status(row),
        parts=parts,
        input_id=row["input_id"],
        metadata=decoded(row["metadata"]),
        source_id=row["source_id"],
        options=TurnOptions.model_validate(loads(row["options"])) if row["options"] is not None else None,
        usage=None if row["usage"] is None else to_usage(row["usage"]),
        seq=row["seq"],
    )


def to_usage(text: str | None) -> Usage:
    """A column `usage`."""
    return Usage() if text is None else Usage.model_validate(loads(text))


def to_status(row: Columns) -> Status:
    """The status in a row of `messages`."""
    return _status(row["state"], row["reason"], row["detail"])


@lru_cache(256)
def _status(state: StatusState, reason: StatusReason | None, detail: str | None) -> Status:
    # Most are alike, and a tree has many.
    return Status(state=state, reason=reason, detail=decoded(detail))


@paused_collector()
def to_tree(
    thread: Columns, messages: Sequence[Columns], parts: Iterable[Columns], calls: Iterable[Columns]
) -> StoredTree:
    """The rows of the statements `tree_messages`, `tree_parts` and `open_calls`."""
    own = {row["id"]: list[tuple[int, Part]]() for row in messages}
    for row in parts:
        own[row["message_id"]].append((row["position"], to_part(row["body"])))
    remembered = [(None, thread["remembered"]), *((row["id"], row["remembered"]) for row in messages)]
    return StoredTree(
        head_id=thread["head_id"] if thread["head_id"] in own else None,
        messages=tuple(
            TreeMessage(
                message=to_message(row, tuple(part for _, part in sorted(own[row["id"]], key=itemgetter(0)))),
                parent_id=row["parent_id"] if row["parent_id"] in own else None,
                place=row["ordered_place"],
                created_at=row["created_at"],
                given_id=row["given_id"],
            )
            for row in messages
        ),
        remembered=tuple((name, child) for name, child in remembered if child is not None),
        calls=tuple(map(to_call, calls)),
    )


def to_decision(row: Columns) -> RememberedDecision:
    """A row of `decisions`."""
    return RememberedDecision(
        tool=loads(row["tool"]),
        arguments=row["arguments"] or None,
        approved=row["approved"],
        by=decoded(row["decided_by"]),
    )


def to_call(row: Columns) -> OpenCall:
    """A row of `calls` with the `body` of its part."""
    part = to_part(row["body"])
    if not isinstance(part, ToolCallPart):
        raise TypeError(f"bug: the open call {row['call_id']} points to a {part.kind} part")
    return OpenCall(
        call_id=row["call_id"],
        message_id=row["message_id"],
        turn=row["turn"],
        step=row["step"],
        index=row["index"],
        position=row["position"],
        tool=part.tool,
        arguments=part.arguments,
        started=row["started"],
        result=to_result(row["result"]),
        due=row["due"],
        approval=part.approval,
        decision=part.decision,
        interim=to_result(row["interim"]),
    )


def to_step(row: Columns) -> Step:
    """A row of `steps` with its `chunks`; while it streams its parts are what the chunks give."""
    outcome = to_outcome(row["outcome"])
    return Step(
        turn=row["turn"],
        step=row["step"],
        attempt=row["attempt"],
        state="done" if outcome else "open",
        parts=to_parts(row["parts"]) if outcome else TurnBuffer(to_chunks(row["chunks"])).parts,
        outcome=outcome,
    )


@paused_collector()
def to_path(rows: Sequence[Columns], known: str | None, message_id: str | None) -> Path:
    """The rows of the statement `path`, oldest first. Raises UnknownMessage for one that is not the thread's."""
    oldest = rows[0]
    end_id = oldest["end_id"]
    if message_id is not None and end_id is None:
        raise UnknownMessage(f"There is no message {message_id!r} in this thread.")
    if oldest["id"] is None:  # no message at all, or none after the known one
        if end_id != known and end_id is not None:
            raise StoreError(f"The stored tree is broken: the path ends at message {end_id!r}, which is not stored.")
        extends = known if end_id == known else None
        return _empty_path(oldest).with_(extends=extends)
    summary = None
    if oldest["summary_id"] is not None:
        summary = _to_summary(oldest)
        # The summary stands for the message itself, unless parts were added after it.
        rows = rows if oldest["parts"] else rows[1:]
    extends = known if summary is None and known is not None and oldest["parent_id"] == known else None
    messages = tuple(to_message(row, to_parts(row["parts"])) for row in rows)
    return _empty_path(oldest).with_(messages=messages, summary=summary, extends=extends)


def _empty_path(row: Columns) -> Path:
    model = decoded(row["model"])
    return Path(seq=row["thread_seq"], shape=row["shape"], basis=row["basis"], model=model)


def _to_summary(row: Columns) -> Summary:
    return Summary(
        id=row["summary_id"],
        thread_id=row["summary_thread_id"],
        message_id=row["id"],
        parts=row["summary_parts"],
        text=loads(row["body"]),
        kind=row["kind"],
        items=tuple(SummaryItem.model_validate(item) for item in decoded(row["items"]) or ()),
        covered=row["covered"],
        previous_id=row["previous_id"],
        shape=row["summary_shape"],
        usage=to_usage(row["summary_usage"]),
    )


def to_spending(rows: Iterable[Columns]) -> Spending:
    """The rows of the statement `spending`."""
    return Spending(**{row["bound"]: Spent(usage=to_usage(row["usage"]), since=row["since"]) for row in rows})


def to_tail(row: Columns) -> Tail:
    """The row of the statement `tail`."""
    shown = decoded(row["message"])
    message = to_message(shown) if shown else None
    calls = tuple(to_call(call) for call in decoded(row["calls"]) or ())
    last = None
    if row["head_role"] == "assistant":
        last = Status(state=row["head_state"], reason=row["head_reason"], detail=decoded(row["head_detail"]))
    return Tail(
        thread=to_thread(row),
        message=message,
        parts=row["parts"],
        step=calls[-1].step if calls else _next_step(row, message, shown["done_step"] if shown else None),
        attempt=row["attempt"],
        calls=calls,
        subscriptions=tuple(to_subscription(subscription) for subscription in decoded(row["subscriptions"]) or ()),
        processed=tuple((input_id, digest or "") for input_id, digest in decoded(row["processed"]) or ()),
        children=row["children"],
        unstarted=tuple(row["unstarted"]),
        last=last,
        followers=row["followers"],
        hidden=row["hidden"],
        paused=last is not None and last.state == "requires_action",
        remembered=tuple(to_decision(decision) for decision in decoded(row["decisions"]) or ()),
        answered=row["answered"],
        deadline=Deadline(**decoded(row["deadline"])) if row["deadline"] else None,
    )


def _next_step(row: Columns, message: Message | None, done_step: int | None) -> int:
    # A step that was discarded or sealed leaves no part, one flushed without a turn buffer no mark. A turn that
    # goes on after later ones has a mark of its own.
    if message is None or message.role != "assistant":
        return 0
    marked = row["done_step"] + 1 if row["done_turn"] == message.turn else (-1 if done_step is None else done_step) + 1
    return max(marked, to_part(row["last_part"]).step + 1 if row["last_part"] else 0)


def to_subscription(row: Columns) -> Subscription:
    """A row of `subscriptions`."""
    return Subscription(
        call_id=row["call_id"],
        tool=row["tool"],
        arguments=loads(row["arguments"]),
        received=row["received"],
        paused=decoded(row["paused"]),
    )


def to_choice(row: Columns) -> Choice:
    """A row of `choices`; without a body it is answered."""
    if row["body"] is not None:
        return Choice.model_validate(loads(row["body"])).with_(seq=row["seq"])
    return Choice(id=loads(row["choice_id"]), call_id=row["call_id"], kind=row["kind"], answered=True, seq=row["seq"])


def to_view(row: Columns) -> View:
    """A row of `views`."""
    return View(view_type=loads(row["view_type"]), content=loads(row["content"]), seq=row["seq"])


def to_change(row: Columns) -> Change:
    """A row of the statement `changes`."""
    seq, body = row["seq"], row["body"]
    match row["kind"]:
        case "message":
            return Change(seq=seq, message=to_message(loads(body)))
        case "part":
            return Change(seq=seq, message_id=row["message_id"], position=row["position"], part=to_part(body))
        case "call":
            return Change(seq=seq, call=to_call(loads(body)))
        case "choice":
            return Change(seq=seq, choice=to_choice(loads(body)))
        case "view":
            return Change(seq=seq, view=to_view(loads(body)))
        case "summary":
            return Change(seq=seq, summary=_to_summary(loads(body)))
        case "tree":
            return Change(seq=seq, tree=True)
        case "attempt":
            return Change(seq=seq, turn=row["turn"], step=row["step"], attempt=row["attempt"], new_attempt=True)
        case _:
            chunk = Chunk.model_validate(loads(body))
            return Change(seq=seq, turn=row["turn"], step=row["step"], attempt=row["attempt"], chunk=chunk)
