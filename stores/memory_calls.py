"""The open calls of a thread in memory, and what people are asked and shown."""

from dataclasses import dataclass, field

from perdure.errors import CallNotOpen, TooManyViews
from perdure.messages import ToolResultPart
from perdure.records import MAX_VIEWS, Choice, OpenCall, ThreadRecord, View
from stores.memory_records import kept


@dataclass
class MemoryCalls:
    """The thread's record, and all of it that answers later."""

    record: ThreadRecord
    calls: dict[str, tuple[int, OpenCall]] = field(default_factory=dict[str, tuple[int, OpenCall]])
    owners: dict[str, str | None] = field(default_factory=dict[str, str | None])
    choices: dict[str, Choice] = field(default_factory=dict[str, Choice])
    views: dict[str, View] = field(default_factory=dict[str, View])

    def next_seq(self) -> int:
        """Number one more change."""
        self.record = self.record.with_(seq=self.record.seq + 1)
        return self.record.seq

    # -- calls -------------------------------------------------------------------------------------------------

    def open_call(self, call_id: str) -> OpenCall:
        """Raises StoreError if the call is not open."""
        if call_id not in self.calls:
            raise CallNotOpen(call_id)
        return self.calls[call_id][1]

    def ordered_calls(self, message_id: str | None = None) -> tuple[OpenCall, ...]:
        """Open calls in call order, all or those of a message."""
        calls = (call for _, call in self.calls.values() if message_id in (None, call.message_id))
        return tuple(sorted(calls, key=lambda call: (call.turn, call.step, call.index)))

    def start_call(self, call_id: str, owner: str | None) -> OpenCall:
        """Count one more start, unless the call has its result or this owner has started it last."""
        call = self.open_call(call_id)
        if call.result is None and (owner is None or self.owners.get(call_id) != owner):
            call = self.change_call(call.with_(started=call.started + 1))
            self.owners[call_id] = owner
        return call

    def stage_result(self, result: ToolResultPart) -> ToolResultPart:
        """Keep the first result of an open call; returns it."""
        call = self.open_call(result.call_id)
        if call.result is not None:
            return call.result
        result = kept(result)
        self.change_call(call.with_(result=result))
        return result

    def answer_call(self, call: OpenCall, result: ToolResultPart, *, interim: bool) -> None:
        """Keep the first result of an open call, or of preliminary ones (`interim`) the last."""
        if interim:
            self.change_call(call.with_(interim=result))
        else:
            self.stage_result(result)

    def change_call(self, call: OpenCall) -> OpenCall:
        """Tell readers that an open call is like this now."""
        self.calls[call.call_id] = (self.next_seq(), call)
        return call

    def drop_calls(self, message_id: str) -> None:
        """The calls of a message are open no longer."""
        self.calls = {name: known for name, known in self.calls.items() if known[1].message_id != message_id}
        self.drop_choices()

    # -- what people are asked and shown -----------------------------------------------------------------------

    def put_choice(self, choice: Choice) -> None:
        """Ask, unless just this is asked already. Raises CallNotOpen, also for a call that has its result."""
        if self.open_call(choice.call_id).result is not None:
            raise CallNotOpen(choice.call_id)
        before = self.choices.get(choice.id)
        choice = kept(choice.with_(answered=False, seq=before.seq if before else 0))
        if choice != before:
            self.choices[choice.id] = choice.with_(seq=self.next_seq())

    def remove_choice(self, choice_id: str) -> None:
        """The question is answered; its words and links are gone."""
        choice = self.choices.get(choice_id)
        if choice and not choice.answered:
            self.choices[choice_id] = Choice(
                id=choice.id, call_id=choice.call_id, kind=choice.kind, answered=True, seq=self.next_seq()
            )

    def drop_choices(self) -> None:
        """Questions go with their calls."""
        self.choices = {name: choice for name, choice in self.choices.items() if choice.call_id in self.calls}

    def waiting_choices(self) -> tuple[Choice, ...]:
        """Questions of calls that have no result yet, oldest first."""
        waiting = [
            choice
            for choice in self.choices.values()
            if not choice.answered and self.open_call(choice.call_id).result is None
        ]
        return tuple(sorted(waiting, key=lambda choice: choice.seq))

    def put_view(self, view: View) -> None:
        """Show this from now on, unless it is shown already. Raises TooManyViews."""
        others = sum(not other.is_empty for other in self.views.values() if other.view_type != view.view_type)
        if not view.is_empty and others >= MAX_VIEWS:
            raise TooManyViews(MAX_VIEWS)
        before = self.views.get(view.view_type)
        if before is None or before.content != view.content:
            self.views[view.view_type] = kept(view.with_(seq=self.next_seq()))

    def shown_views(self) -> tuple[View, ...]:
        """Views with content, the one that changed last at the end."""
        shown = [view for view in self.views.values() if not view.is_empty]
        return tuple(sorted(shown, key=lambda view: view.seq))
