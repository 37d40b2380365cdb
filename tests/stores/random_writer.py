"""A writer of random conversations: right often enough to go far, and wrong often enough to be refused."""

import random
from collections.abc import Awaitable, Callable
from typing import Literal

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    AppendParts,
    CloseThread,
    CommitResults,
    CommitStep,
    Decide,
    DeleteMessage,
    ImportedMessage,
    ImportMessages,
    Operation,
    RememberDecision,
    RemoveSubscription,
    ResetThread,
    SetDue,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
    SwitchBranch,
    SyncBatch,
    TrackSubscription,
)
from perdure.messages import (
    Message,
    Part,
    ReasoningPart,
    Role,
    Status,
    StatusState,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from perdure.ports import Store
from perdure.records import Choice, LoggedMessage, ProviderState, StepOutcome, Summary
from perdure.turn_buffer import Chunk
from perdure.turn_context import ProviderContext, TurnContext

Call = Callable[[Store], Awaitable[object]]
THREADS = ("t", "k")


class Writer:
    """Makes calls of a store that are right often enough to go far, and wrong often enough to be refused."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0
        self._version = {"t": 1, "k": 0}
        self._at = "t"
        self._parts_of: dict[str, dict[str, int]] = {"t": {}, "k": {}}
        self._calls: dict[str, list[str]] = {"t": [], "k": []}
        self._turns: dict[str, dict[str, int]] = {"t": {}, "k": {}}
        self._turn = {"t": 1, "k": 0}
        self._running: dict[str, str | None] = {"t": "a", "k": None}

    def call(self) -> Call:
        """One more call, and how it is told in a failure."""
        batches = [self._batch] * 11
        others = [self._chunks, self._chunks, self._begin, self._finish, self._start, self._stage, self._summary]
        others += [self._ask, self._ask, self._answer, self._view, self._context, self._hook, self._log, self._spend]
        make: Callable[[], Call] = self._random.choice([*batches, *others])
        return make()

    async def learn(self, store: Store) -> None:
        """What is true now, for the next call to be right about."""
        for thread_id in THREADS:
            thread = await store.get_thread(thread_id)
            self._version[thread_id], self._turn[thread_id] = thread.version, thread.turn
            tree = await store.load_tree(thread_id)
            self._parts_of[thread_id] = {stored.message.id: len(stored.message.parts) for stored in tree.messages}
            self._calls[thread_id] = [call.call_id for call in tree.calls]
            states = {stored.message.id: stored.message.status.state for stored in tree.messages}
            self._running[thread_id] = next((name for name, state in states.items() if state == "running"), None)
            self._turns[thread_id] = {
                stored.message.id: stored.message.turn for stored in tree.messages if stored.message.role == "assistant"
            }

    def _batch(self) -> Call:
        thread_id = self._thread()
        number = self._version[thread_id] + self._random.choice([0, 1, 1, 1, 1, 1, 2])
        operations = tuple(self._operation() for _ in range(self._random.choice([0, 1, 1, 1, 2, 3, 4])))
        if any(isinstance(operation, CloseThread) for operation in operations):
            # What rests on another branch is settled by that, and is not added to in the same batch.
            operations = (CloseThread(),)
        sync_id = f"s{number}-{self._random.randint(0, 1)}"
        batch = SyncBatch(thread_id=thread_id, number=number, sync_id=sync_id, operations=operations)
        return lambda store: store.append_messages(batch)

    def _operation(self) -> Operation:
        pick = self._random
        message_id = self._message_id()
        start = self._parts_of[self._at].get(message_id, 0) if pick.random() < 0.8 else pick.randint(0, 3)
        make: Callable[[], Operation] = pick.choice(
            [
                self._append_message,
                self._append_message,
                lambda: AppendParts(message_id=message_id, start=start, parts=self._parts()),
                self._commit_step,
                lambda: StageResult(result=self._result()),
                lambda: CommitResults(
                    message_id=message_id,
                    start=start,
                    call_ids=tuple(dict.fromkeys(self._call_id() for _ in range(2))),
                    results=tuple(self._result() for _ in range(pick.randint(0, 3))),
                ),
                lambda: SetStatus(message_id=message_id, status=self._status(message_id)),
                lambda: TrackSubscription(call_id=self._call_id(), tool="feed", received=pick.randint(0, 3)),
                lambda: SetDue(call_id=self._call_id(), due=pick.random()),
                CloseThread,
                lambda: RemoveSubscription(call_id=self._call_id()),
                self._about_calls,
                self._about_calls,
                *[self._about_tree] * 8,
            ]
        )
        return make()

    def _commit_step(self) -> Operation:
        """Of the turn that runs: others have no step under way."""
        pick, message_id = self._random, self._running[self._at] or ""
        right = pick.random() < 0.8
        return CommitStep(
            message_id=message_id,
            start=self._parts_of[self._at].get(message_id, 0) if right else pick.randint(0, 3),
            turn=self._turns[self._at].get(message_id, 0),
            step=pick.randint(0, 2),
            sealed=pick.random() < 0.2,
            trim_reasoning=pick.random() < 0.3,
            discard=pick.random() < 0.2,
            usage=Usage(requests=1, output_tokens=pick.randint(0, 2)),
        )

    def _about_calls(self) -> Operation:
        pick = self._random
        call_id, result = self._call_id(), self._result()
        decision = Decision(approved=pick.choice([True, False, None]), by="\ud800", at=pick.random())
        remembered = RememberedDecision(
            tool=pick.choice(["a", "b"]), arguments=pick.choice([None, "d"]), approved=pick.random() < 0.5
        )
        operations: list[Operation] = [
            Decide(call_id=call_id, decision=decision),
            RememberDecision(remembered=remembered),
            ShowInterim(result=result),
            StoreLateResult(message_id=self._message_id(), result=result),
            StoreLateResult(message_id=self._message_id(), result=result),
            StoreLateResult(
                result=result,
                named=pick.random() < 0.5,
                subscribes=pick.random() < 0.5,
                interim=pick.random() < 0.3,
            ),
        ]
        return pick.choice(operations)

    def _about_tree(self) -> Operation:
        pick = self._random
        self._names += 1
        message_id, input_id = self._message_id(), f"t{self._names if pick.random() < 0.9 else self._names - 5}"
        match pick.choice(["switch", "switch", "switch", "delete", "delete", "import", "import", "annotate", "reset"]):
            case "switch":
                return SwitchBranch(message_id=message_id, input_id=input_id, digest="d")
            case "delete":
                other = pick.choice([None, None, "root", self._message_id()])
                return DeleteMessage(message_id=message_id, replacement_id=other, input_id=input_id, digest="d")
            case "reset":
                below = message_id if pick.random() < 0.98 else None
                return ResetThread(message_id=below, input_id=input_id, digest="d")
            case "import":
                return self._import(input_id)
            case _:
                metadata = {pick.choice(["a", "b"]): pick.choice([None, 1, "\x00"])}
                return AnnotateMessage(message_id=message_id, metadata=metadata, input_id=input_id, digest="d")

    def _import(self, input_id: str) -> Operation:
        pick = self._random
        names = [
            *pick.sample(["g1", "g2", "g3", "g4", "g5"], pick.randint(1, 4)),
            *[self._message_id()] * (pick.random() < 0.3),
        ]
        messages: list[ImportedMessage] = []
        for place, name in enumerate(names):
            role: Role = "user" if name < "g3" else "assistant"
            message = Message(
                id=name,
                thread_id="",
                role=role,
                parent_id=pick.choice([None, *names[:place], self._message_id()]),
                status=Status(state=pick.choice(["requires_action", "complete"])) if role == "assistant" else Status(),
                parts=self._parts(),
                metadata=pick.choice([None, {"a": 2}]),
            )
            calls = [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
            messages.append(
                ImportedMessage(
                    message=message,
                    created_at=pick.choice([None, "2026-02-03T04:05:06Z"]),
                    interim=tuple(ToolResultPart(call_id=call_id, content="half") for call_id in calls),
                )
            )
        head = pick.choice([None, names[0], self._message_id()])
        return ImportMessages(blob="0" * 64, input_id=input_id, digest="d", messages=tuple(messages), head_id=head)

    def _append_message(self) -> Operation:
        pick = self._random
        self._names += 1
        known = pick.random() < 0.5
        role: Role = pick.choice(["user", "assistant", "event"])
        self._turn[self._at] += role == "assistant"
        message = Message(
            id=self._message_id() if pick.random() < 0.1 else f"m{self._names}",
            thread_id="t",
            role=role,
            parent_id=self._message_id() if pick.random() < 0.2 else None,
            parent_parts=pick.choice([None, None, 0, 1]),
            turn=self._turn[self._at] if role == "assistant" else 0,
            status=self._status(f"m{self._names}") if role == "assistant" else Status(),
            parts=self._parts(),
            input_id=f"i{pick.randint(0, 30)}" if known else None,
        )
        operation = AppendMessage(
            message=message,
            digest=pick.choice(["d1", "d2"]) if known else None,
            input_id=None if known else pick.choice([None, f"b{self._names}"]),
        )
        match pick.choice([*["head"] * 4, "beside", "answering", "root"]):
            case "beside":
                return operation.with_(beside=self._message_id())
            case "answering":
                return operation.with_(answering=self._message_id())
            case "root":
                return operation.with_(at_root=True)
            case _:
                return operation

    def _begin(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        return lambda store: store.begin_step(thread_id, turn, step, attempt)

    def _chunks(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        chunks = [Chunk(index=self._random.randint(0, 2), delta="x ") for _ in range(self._random.randint(0, 3))]
        chunks += [Chunk(index=3, part=part) for part in self._parts()]
        first = self._random.choice([None, None, 0, 1, 2])
        return lambda store: store.append_chunks(thread_id, turn, step, attempt, chunks, first)

    def _finish(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        parts, outcome = self._parts(), StepOutcome(finish="stop", detail="\x00")
        return lambda store: store.finish_step(thread_id, turn, step, attempt, parts, outcome, [Chunk(index=0)])

    def _start(self) -> Call:
        thread_id, call_id = self._thread(), self._call_id()
        return lambda store: store.start_call(thread_id, call_id)

    def _stage(self) -> Call:
        thread_id, result = self._thread(), self._result()
        return lambda store: store.stage_result(thread_id, result)

    def _ask(self) -> Call:
        thread_id, pick = self._thread(), self._random
        kind: Literal["choice", "oauth"] = pick.choice(["choice", "oauth"])
        choice = Choice(id=f"q{pick.randint(0, 5)}", call_id=self._call_id(), kind=kind, prompt=f"{self._names}?")
        return lambda store: store.put_choice(thread_id, choice)

    def _answer(self) -> Call:
        thread_id, choice_id = self._thread(), f"q{self._random.randint(0, 5)}"
        return lambda store: store.remove_choice(thread_id, choice_id)

    def _view(self) -> Call:
        thread_id, view_type, content = self._thread(), *self._random.choices(["{}", "null", "1", "2"], k=2)
        return lambda store: store.put_view(thread_id, view_type, content)

    def _summary(self) -> Call:
        name, parts = f"summary{self._random.randint(0, 5)}", self._random.randint(0, 2)
        summary = Summary(
            id=name,
            thread_id=self._thread(),
            message_id=self._message_id(),
            parts=parts,
            text="so far",
            kind=self._random.choice(["summary", "trace"]),
            covered=self._random.randint(0, 1),
            shape=self._random.choice([None, None, None, 0, 7]),
            usage=self._usage(),
        )
        return lambda store: store.add_summary(summary)

    def _context(self) -> Call:
        thread_id, turn, step, _ = self._step()
        context = TurnContext(providers=(ProviderContext(source="p", instructions=f"\x00 {self._names}"),))
        if self._random.random() < 0.3:
            return lambda store: store.drop_turn_contexts(thread_id, turn)
        return lambda store: store.put_turn_context(thread_id, turn, step, context)

    def _hook(self) -> Call:
        thread_id, turn, _, version = self._step()
        state = self._random.choice([None, ProviderState(values={"n": self._names}, version=version - 1)])
        return lambda store: store.finish_hook(thread_id, turn, "p", state)

    def _log(self) -> Call:
        thread_id, turn, _, _ = self._step()
        said = LoggedMessage(id=self._message_id(), role="user", text=f"\ud800 {self._names}", turn=turn)
        context = LoggedMessage(id=f"{turn}:p:0", role="user", text="context", turn=turn, source="p")
        return lambda store: store.append_log(thread_id, "log", (said, context))

    def _spend(self) -> Call:
        (thread_id, turn, step, attempt), usage = self._step(), self._usage()
        model = self._random.choice([None, "\x00 model"])
        if self._random.random() < 0.2:
            return lambda store: store.set_model(thread_id, model)
        return lambda store: store.add_usage(thread_id, turn, step, attempt, usage)

    def _usage(self) -> Usage:
        return self._random.choice([Usage(), Usage(requests=1, nano_usd=2**40), Usage(output_tokens=3, unpriced=1)])

    def _step(self) -> tuple[str, int, int, int]:
        pick = self._random
        thread_id = self._thread()
        turn = pick.choice([*self._turns[thread_id].values(), self._turn[thread_id], self._turn[thread_id]])
        return thread_id, turn, pick.randint(0, 2), pick.randint(1, 3)

    def _parts(self) -> tuple[Part, ...]:
        self._names += 1
        pick = self._random
        choices: list[Part] = [
            TextPart(text=f"text {self._names} \ud800", step=pick.randint(0, 1)),
            ReasoningPart(text="hm", signature=pick.choice([None, "s"])),
            ToolCallPart(
                call_id=f"c{self._names}",
                tool="search",
                error=pick.choice([None, None, "no"]),
                approval=pick.choice([None, ApprovalRequest(prompt="\x00")]),
            ),
            ToolResultPart(call_id=self._call_id(), outcome=pick.choice(["ok", "cancelled", "expired"])),
        ]
        return tuple(pick.sample(choices, pick.randint(0, 4)))

    def _result(self) -> ToolResultPart:
        self._names += 1
        return ToolResultPart(call_id=self._call_id(), content=f"result {self._names}")

    def _status(self, message_id: str) -> Status:
        """At most one turn of a thread runs."""
        state: StatusState = self._random.choice(["running", "running", "requires_action", "complete"])
        if state == "running" and self._running[self._at] not in (None, message_id):
            state = "requires_action"
        if state == "running":
            self._running[self._at] = message_id
        return Status(state=state)

    def _thread(self) -> str:
        self._at = self._random.choice(["t", "t", "t", "k"])
        return self._at

    def _message_id(self) -> str:
        if self._parts_of[self._at] and self._random.random() < 0.9:
            return self._random.choice(list(self._parts_of[self._at]))
        return f"m{self._random.randint(max(0, self._names - 12), self._names)}"

    def _call_id(self) -> str:
        if self._calls[self._at] and self._random.random() < 0.8:
            return self._random.choice(self._calls[self._at])
        return f"c{self._random.randint(max(0, self._names - 12), self._names)}"
