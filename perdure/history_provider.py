"""The conversation as a context provider: what of it the model reads, and what of it is kept where.

The thread's own conversation is in the store in any case, since that is what survives a crash; the provider named
`history` says how it is read. One of another name keeps a log of its own beside it, an audit trail for one, and gives
the model nothing.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, Literal

import structlog

from perdure.context import BeforeRun, Context, ProviderRun, RunOutcome
from perdure.errors import ConfigurationError
from perdure.messages import EventPart, FilePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.records import LoggedMessage
from perdure.session import Session
from perdure.turn_context import ContextMessage

HISTORY: Final = "history"
"""The name of the thread's own conversation."""


class HistoryProvider:
    """The thread's conversation (`history`), or a log beside it (any other name).

    Of a log each message is one row under its id, so that a turn that is told twice is in it once; it is written when
    a turn is over. Read it with `store.read_log(thread_id, name)`.

    Args:
        name: see above.
        load_messages: whether the model reads the conversation; without it, it reads this turn only, and all is stored
            as ever. A log is not read: say False.
        store_inputs: whether a log holds the words and events that turns answer.
        store_outputs: whether it holds the answers, with their calls and results.
        store_context: whether what other providers said is kept, in the log or, as `ContextPart`s of its turn, in the
            conversation, where later turns go on reading it.
        store_context_from: only of the providers with these names.

    Raises:
        ConfigurationError: if what it says cannot be.
    """

    def __init__(
        self,
        name: str = HISTORY,
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_outputs: bool = True,
        store_context: bool = False,
        store_context_from: Collection[str] | None = None,
    ) -> None:
        self.name = name
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_outputs = store_outputs
        self.store_context = store_context or store_context_from is not None
        self.store_context_from = None if store_context_from is None else frozenset(store_context_from)
        if isinstance(store_context_from, str):
            raise ConfigurationError(f"HistoryProvider({name!r}): give store_context_from as a list of names.")
        if self.is_log and load_messages:
            raise ConfigurationError(
                f"HistoryProvider({name!r}) is a log beside the conversation, which no model reads: "
                f"give it load_messages=False, or leave its name out."
            )
        if not self.is_log and not (store_inputs and store_outputs):
            raise ConfigurationError(
                "HistoryProvider() is the thread's own conversation, which is what survives a crash, so its inputs and "
                "outputs are stored in any case. Give a log beside it another name, and choose there."
            )

    @property
    def is_log(self) -> bool:
        """Whether it is a log beside the conversation."""
        return self.name != HISTORY

    @property
    def before_run(self) -> BeforeRun | None:
        """Asked only if the model is not to read the conversation."""
        return None if self.is_log or self.load_messages else _only_this_turn

    def keeps(self, source: str) -> bool:
        """Whether what this provider said is kept."""
        return self.store_context and (self.store_context_from is None or source in self.store_context_from)

    def logged(self, run: ProviderRun, outcome: RunOutcome) -> tuple[LoggedMessage, ...]:
        """What a turn adds to the log, in the order in which the model read and wrote it."""
        logged: list[LoggedMessage] = []
        for source, messages in outcome.context.items():
            if self.keeps(source):
                logged += [
                    LoggedMessage(
                        id=f"{outcome.message.id}:{source}:{index}",
                        role=message.role,
                        text=message.text,
                        turn=run.turn,
                        source=source,
                    )
                    for index, message in enumerate(messages)
                ]
        if self.store_inputs:
            logged += [_logged(message, run.turn) for message in run.input]
        if self.store_outputs and outcome.message.parts:
            logged.append(_logged(outcome.message, run.turn))
        return tuple(logged)


class InMemoryHistoryProvider:
    """The conversation in sessions in memory, for stateless use and for tests.

    In an agent it takes the place of the thread's own conversation: the model reads what its session holds, as text,
    and then this turn. The thread is stored as ever. By itself it works on the session that it is given:

        context = await provider.on_invoking(session)
        ...  # ask a model: context.messages, and then the new words
        await provider.on_invoked(session, [question, answer])

    A turn's messages are added in one batch and are known by their ids, so that one that is told twice, resent, or
    mixed with others' words is in the session once. A write that fails is warned about and is not the turn's trouble.

    Args:
        load_messages: whether the model reads what the session holds.
        name: tells it from other providers.
        max_sessions: how many threads' sessions are kept; the one that was not used for the longest time goes first.
    """

    write_only = True

    def __init__(self, *, load_messages: bool = True, name: str = "memory", max_sessions: int = 1000) -> None:
        self.name = name
        self.load_messages = load_messages
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def session(self, thread_id: str, tenant: str = "default") -> Session:
        """The session of a thread, a new one if there is none."""
        session = self._sessions.setdefault((tenant, thread_id), Session(thread_id, tenant=tenant))
        self._sessions.move_to_end((tenant, thread_id))
        while len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
        return session

    async def on_invoking(self, of: ProviderRun | Session) -> Context:
        """What the model is to read of the session. For a session by itself it is in `messages`.

        A session that cannot be read raises: a model must not answer as if nothing had been said.
        """
        if not self.load_messages:
            return Context(replace=() if isinstance(of, ProviderRun) else None)
        history = tuple(map(_as_context, await self._session(of).get_messages()))
        return Context(replace=history) if isinstance(of, ProviderRun) else Context(messages=history)

    async def on_invoked(self, of: ProviderRun | Session, outcome: RunOutcome | Sequence[Message]) -> None:
        """Add what a turn brought: its words and its answer, or the messages that are given."""
        if isinstance(of, ProviderRun) and isinstance(outcome, RunOutcome):
            messages: Sequence[Message] = (*of.input, *([outcome.message] if outcome.message.parts else []))
        else:
            messages = () if isinstance(outcome, RunOutcome) else outcome
        session = self._session(of)
        try:
            await session.add_messages_batch(messages)
        except Exception as error:  # of a session of one's own too, over whatever it writes to
            log = structlog.get_logger("perdure.context")
            log.warning("a session was not written", session=session.id, count=len(messages), reason=str(error))

    def _session(self, of: ProviderRun | Session) -> Session:
        return of if isinstance(of, Session) else self.session(of.thread_id, of.tenant)


def _as_context(message: Message) -> ContextMessage:
    role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
    return ContextMessage(text=words(message), role=role)


async def _only_this_turn(_: ProviderRun) -> Context:
    return Context(replace=())


def _logged(message: Message, turn: int) -> LoggedMessage:
    return LoggedMessage(id=message.id, role=message.role, text=words(message), turn=turn)


def words(message: Message) -> str:
    """A message as text, whole: one line or more for each part, thoughts left out."""
    return "\n".join(line for part in message.parts for line in _lines(part))


def _lines(part: Part) -> list[str]:
    match part:
        case TextPart():
            return [part.text]
        case EventPart() | ToolResultPart():
            return [part.content]
        case ToolCallPart():
            return [f"{part.tool}({part.arguments})"]
        case FilePart():
            return [f"[{part.name or 'file'}, {part.media_type}]"]
        case _:
            return []
