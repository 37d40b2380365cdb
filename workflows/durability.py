"""What makes a thread durable: inputs are synced before anything acts on them, failures lead back to the store."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import dumps
    from perdure.contract import LOAD, CompleteResult, LoadRequest, LoadResult, ThreadStart
    from perdure.errors import UsageError
    from perdure.history import HistoryManager
    from perdure.history_state import OpenTurn, SubscriptionLimits
    from perdure.inputs import AnyInput, Control, Disposition, Identified, Interrupt, ToolResult, TreeChange
    from perdure.records import Tail
    from workflows.answers import Answer
    from workflows.dispatch import ThreadDispatch
    from workflows.failure import sentence
    from workflows.stored import stored

BATCH_INPUTS = 500
"""Inputs that one sync takes: a storm becomes a few transactions of a bounded size."""

PAYLOAD_BYTES = 1_000_000
"""Inputs that go into one payload: a batch, should the store be away, and what waits when a run ends. Temporal refuses
payloads above 2 MB and tries such a task for ever."""

RECOVERY_WAIT_S = 3600.0
"""The longest wait between tries to go on after failures in a row."""

_DELETING = ("delete", "reset", "import")
"""Changes after which words are gone: an import replaces those of messages that it knows."""

RECOVERIES = 3
"""Failures in a row after which what caused them is given up, so that the thread does not go round for ever."""


class ThreadDurability(ThreadDispatch):
    """Loads a thread, takes inputs in, and goes back to what is stored after a failure."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: list[tuple[AnyInput, Disposition]] = []
        self._model_call: workflow.ActivityHandle[CompleteResult] | None = None
        self._failures = 0
        self._active_at = workflow.now()

    async def _load(self, start: ThreadStart, running: tuple[str, ...] = ()) -> None:
        """Read the thread from the store; calls that are `running` here are not dispatched again."""
        request = LoadRequest(thread_id=self._thread_id, start=start)
        loaded = await stored(LOAD, request, LoadResult, "load the thread")
        calls = tuple(call.with_(started=0) if call.call_id in running else call for call in loaded.tail.calls)
        self._agent = loaded.tail.thread.agent
        limits = SubscriptionLimits(
            active=loaded.subscriptions,
            events_per_minute=loaded.events_per_minute,
            events=loaded.events_per_subscription,
        )
        self._history = HistoryManager.from_tail(
            loaded.tail.with_(calls=calls),
            limits,
            pauses=loaded.revision > 1,
            hooks=loaded.hooks,
            resumes=loaded.revision > 4,
            dropped=self._history.state.dropped,
        )
        if loaded.revision > 4:
            # What was open here may rest now, while one that has rested goes on.
            self._calls.stop_settled(self._history.open_turn)
        self._wait_for_dispatched()
        self._children.any = loaded.tail.children > 0
        self._children.start_unstarted(loaded.tail.unstarted)
        # The rest of the tail is the history's from now on.
        self._loaded = loaded.with_(tail=Tail(thread=loaded.tail.thread))

    async def _accept(self) -> None:
        """Take a batch of what may be taken now, and make it durable.

        What it interrupts is stopped after that, never before: the store may know an input already.
        """
        turn = self._history.open_turn
        size = 0
        while len(self._batch) < BATCH_INPUTS and size < PAYLOAD_BYTES:
            content = self._mailbox.inbox.take(self._history.phase)
            if content is None:
                break
            size += len(dumps(content))
            self._take(content)
            if self._history.changes_tree:
                # What comes next is for the branch that is shown after this.
                break
        self._length.add(0, size)
        await self._sync()
        if turn is not None and self._is_closed(turn) and not turn.paused:
            self._board.line("Assistant", "(stopped)")
        self._tell_batch()
        interrupts = [content for content, _ in self._batch if isinstance(content, Interrupt)]
        if interrupts:
            # Once, however often it was asked for: each child passes on what it gets.
            self._children.stop(interrupts[-1].reason or "The parent thread was stopped.")
        if any(isinstance(content, Control) and content.action == "compact" for content, _ in self._batch):
            self._compact(forced=True)
        self._batch = []
        self._history.take_interrupted_tool_calls()
        self._calls.stop_settled(self._history.open_turn)
        self._follow_up()
        self._active_at = workflow.now()

    def _compact(self, *, forced: bool) -> None:
        """Have the conversation made shorter for the model, up to where it stands now, beside what goes on here."""
        if not self._history.state.closed:
            point = self._history.safe_spawn_point()
            self._compactions.begin(self._agent, point, self._history.state.turn, forced=forced)

    def _take(self, content: AnyInput) -> None:
        try:
            self._batch.append((content, self._history.handle_content(content)))
        except UsageError as error:
            self._mailbox.tell(content, Answer("refused", str(error)))

    def _tell_batch(self) -> None:
        """Say what became of the inputs of a batch that is durable."""
        dispositions = self._history.take_dispositions()
        for content, disposition in self._batch:
            what, detail = disposition, None
            if isinstance(content, Identified):
                detail = self._refusals.get((content.id, None))
                # A conflict is one with another input under the same id, which may be in this very batch.
                what = disposition if disposition == "conflict" else dispositions.get(content.id, disposition)
            elif isinstance(content, ToolResult):
                unnamed = content.preliminary or content.message_id is None
                detail = self._refusals.get((content.call_id, "" if unnamed else content.message_id))
                what = disposition if detail is None else "dropped" if unnamed else "refused"
                detail = None if unnamed else detail
            self._mailbox.tell(content, Answer(what, detail, self._history.state.head_id))
            if isinstance(content, TreeChange) and content.action in _DELETING and what == "changed":
                self._board.forget()
        self._refusals.clear()

    async def _recover(self, error: Exception) -> None:
        """The store refused a batch for good (another writer has changed the thread), or there is a bug.

        Go back to what is durable, with the inputs of the batch to be handled again. After a few failures in a row
        the batch is given up, and the open turn with it, so that the thread stays usable. If that fails as well, time
        passes between the tries: inputs go on being taken into the inbox, and nothing that waits there is lost.
        """
        self._failures += 1
        why = sentence(error, "The thread went back to what is stored")
        self._board.problem(why)
        if self._failures > RECOVERIES:
            wait_s = min(2.0 ** (self._failures - RECOVERIES), RECOVERY_WAIT_S)
            await workflow.sleep(wait_s, summary="after a failure")
        if self._model_call is not None:
            self._model_call.cancel()
        await self._reload()
        again, self._batch = tuple(content for content, _ in self._batch), []
        if self._failures < RECOVERIES:
            self._mailbox.put_first(again)
            return
        for content in again:
            self._mailbox.tell(content, Answer("dropped"))
        if self._history.open_turn is not None:
            self._history.fail_turn(why)

    async def _reload(self) -> None:
        """Go back to what is stored. Calls that run and are still open there go on: they are cut off by nothing."""
        running, before = self._calls.running_ids, self._history
        if self._loaded.revision == 1:
            self._calls.stop_all()
            await self._load(ThreadStart(), running)
            return
        await self._load(ThreadStart())
        for ended in self._history.ended_since(before):
            # A sync was through, its worker died, and more had come when it was to be sent again.
            self._hooks.begin(self._agent, ended)
        for call_id in running:
            self._history.mark_dispatched(call_id)
        self._calls.stop_settled(self._history.open_turn)

    def _is_closed(self, turn: OpenTurn) -> bool:
        return self._history.open_turn is None or self._history.open_turn.turn != turn.turn
