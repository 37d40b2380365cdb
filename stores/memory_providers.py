"""What context providers keep of a thread in memory, and what model calls cost that brought nothing."""

from collections.abc import Collection
from dataclasses import dataclass, field

from perdure.batch import CommitStep
from perdure.messages import Usage
from perdure.records import LoggedMessage, ProviderState
from perdure.turn_context import TurnContext
from stores.memory_calls import MemoryCalls
from stores.memory_records import StoredStep, kept


@dataclass
class MemoryProviders(MemoryCalls):
    """Turn contexts by turn and step, states by their providers, logs by provider and id in the order of writing.

    `finished` are the hooks that have run, as (turn, provider); `given_up` calls as (turn, step, attempt).
    """

    contexts: dict[tuple[int, int], TurnContext] = field(default_factory=dict[tuple[int, int], TurnContext])
    states: dict[str, ProviderState] = field(default_factory=dict[str, ProviderState])
    finished: dict[tuple[int, str], None] = field(default_factory=dict[tuple[int, str], None])
    logs: dict[tuple[str, str], LoggedMessage] = field(default_factory=dict[tuple[str, str], LoggedMessage])
    given_up: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])

    def usage_of(self, operation: CommitStep, step: StoredStep | None) -> Usage:
        """What a step has taken. Who stops it does not know of an answer that was stored by then, which counts once."""
        is_stopped = (operation.sealed or operation.discard) and operation.usage == Usage()
        if step is None or step.outcome is None or not is_stopped:
            return operation.usage
        is_new = self.count_call(operation.turn, operation.step, step.attempt)
        return step.outcome.usage if is_new else Usage()

    def count_call(self, turn: int, step: int, attempt: int) -> bool:
        """Whether a call is counted now and was not before. The set is made anew: a batch may be a draft's."""
        call = turn, step, attempt
        if call in self.given_up:
            return False
        self.given_up = self.given_up | {call}
        return True

    def finish_hook(self, turn: int, source: str, state: ProviderState | None) -> bool:
        """A hook has run; False if its state was written by somebody else since it was read."""
        if (turn, source) in self.finished:
            return True
        if state is not None:
            before = self.states.get(source, ProviderState())
            if before.version != state.version:
                return False
            self.states[source] = kept(state.with_(version=state.version + 1))
        self.finished[turn, source] = None
        return True

    def drop_contexts(self, turns: Collection[int]) -> None:
        """Forget what providers said in these turns."""
        self.contexts = {at: context for at, context in self.contexts.items() if at[0] not in turns}

    def forget_providers(self, message_id: str, turn: int) -> None:
        """Of a message that goes: what was said in its turn, for it may repeat its words, and what is logged of it."""
        turns = {turn} - {0}
        self.drop_contexts(turns)
        self.logs = {
            at: logged
            for at, logged in self.logs.items()
            if not (logged.turn in turns if logged.source is not None else logged.id == message_id)
        }
