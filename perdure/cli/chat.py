"""`perdure chat`: talk with a thread in the terminal."""

import asyncio
import signal
import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.cli.answers import Answers
from perdure.cli.chat_branches import ChatBranches
from perdure.cli.conversation import Conversation
from perdure.cli.decisions import Decisions
from perdure.cli.model_names import Unchecked, model_typed
from perdure.cli.printable import one_line
from perdure.cli.questions import Questions, is_attempt, no_choice, selected
from perdure.cli.terminal import Terminal, open_terminal
from perdure.cli.threads import connect, id_typed, show_status, stop_thread, user_name
from perdure.cli.words import Files, Model, Thinking, answered_by, files_typed
from perdure.client import PerdureClient
from perdure.errors import NotTaken, PerdureError, UsageError, ViewOutdated
from perdure.inputs import Accepted, Mode
from perdure.records import Choice, Snapshot
from perdure.waiting import PendingApproval

SECOND_S: Final = 2.0
"""Ctrl-C twice within this time leaves, whatever the thread does."""

START_S: Final = 0.3
"""A call that nothing has started after this may wait for the person: the thread is asked."""

HELP: Final = (
    "Type and press Enter; while an answer streams that interrupts it.\n"
    "/queue TEXT  wait for the end of the turn        /status  what the thread is doing\n"
    "/steer TEXT  join before the next model call     /stop    stop the turn and wait for it\n"
    "/quit        leave; the thread goes on           //TEXT   say something that begins with /\n"
    "/result TEXT answer a call that waits for you; several: /result CALL_ID TEXT\n"
    "/edit TEXT   say something else in place of your last words; of others: /edit #N TEXT\n"
    "/regenerate  answer the last message once more; another one: /regenerate N\n"
    "/branches    list the messages of all branches    /switch N  show the branch of one\n"
    "/file PATH   goes along with your next words      /compact   make it shorter for the model\n"
    "A question of a tool is answered by a number or its words; Enter or Escape alone takes the default.\n"
    "A call that needs approval is answered by y or n, a number, or words where it asks for them.\n"
    "/say TEXT    say to the thread what looks like such an answer\n"
    "Ctrl-C interrupts the turn; a second time, or when nothing runs, it leaves."
)
_MODES: Final[dict[str, Mode]] = {"/say": "interrupt", "/queue": "queue", "/steer": "steer"}


def chat(
    thread: Annotated[
        str, typer.Argument(help="The thread's id; a new one begins, an old one goes on.", callback=id_typed)
    ],
    agent: Annotated[str | None, typer.Option(help="The agent of a new thread; left out: the worker's first.")] = None,
    file: Files = None,
    model: Model = None,
    unchecked: Unchecked = False,
    thinking: Thinking = None,
) -> None:
    """Talk with a thread: its history, then the answer as it streams. Ctrl-C interrupts, twice leaves.

    What is said in this chat is answered as --model and --thinking say; files go along with the first words.
    """
    how = answered_by(model_typed(model, unchecked=unchecked), thinking)
    asyncio.run(_chat(thread, agent, files_typed(*(file or ())), how))


async def _chat(thread_id: str, agent: str | None, files: tuple[Path, ...], how: Mapping[str, Any]) -> None:
    async with await connect() as client:
        await client.start(thread_id, agent=agent)
        await Chat(client, thread_id, open_terminal(), files, how).run()


@dataclass(frozen=True)
class _Outgoing:
    """Words on their way; `source_id` is the message that they replace."""

    text: str
    mode: Mode = "interrupt"
    source_id: str | None = None
    files: tuple[Path, ...] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Chat:
    """One person's conversation with one thread.

    What was said is shown when it comes back from the thread, so it stands where the thread has it; until then it is
    shown as being sent. Messages are delivered one after the other, so they arrive in the order of typing.

    Args:
        client: the way to the thread.
        thread_id: the thread.
        terminal: where the person is.
        files: what goes along with the first words.
        how: the `model` and `settings` by which what is said here is answered.
    """

    def __init__(
        self,
        client: PerdureClient,
        thread_id: str,
        terminal: Terminal,
        files: tuple[Path, ...] = (),
        how: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._thread_id = thread_id
        self._terminal = terminal
        self._files = files
        self._how = dict(how or {})
        self._conversation = Conversation(terminal)
        self._questions = Questions(self._conversation, terminal)
        self._answers = Answers(self._conversation, terminal, lambda: client.status(thread_id))
        self._decisions = Decisions(self._conversation, terminal)
        self._branches = ChatBranches(client, thread_id, self._conversation, terminal)
        self._watching = asyncio.Event()
        self._changed = asyncio.Event()
        self._outbox: asyncio.Queue[_Outgoing] = asyncio.Queue()
        self._sending: dict[str, str] = {}
        self._leave = asyncio.Event()
        self._interrupted_at = float("-inf")
        self._answered: set[str] = set()
        self._regenerated: str | None = None
        self._looking = False
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Talk until the person leaves or the input ends.

        Raises:
            PerdureError: if the conversation cannot be read.
        """
        with self._terminal.open(), _signals(self._on_interrupt, self._leave.set, self._terminal.resume):
            parts = [self._watch(), self._talk(), self._deliver(), self._left()]
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await _cancel([*tasks, *self._background])
            if self._busy:
                self._terminal.line(f"The turn goes on; `perdure chat {one_line(self._thread_id)}` comes back.", "dim")

    @property
    def _busy(self) -> bool:
        taken = self._awaited & self._answered
        return self._conversation.view.running or bool(self._sending or taken or self._regenerated)

    @property
    def _awaited(self) -> set[str]:
        """What the thread waits for, as far as is known here: answers of people."""
        question, approval = self._questions.current, self._decisions.current
        asked = {one for one in (question and question.id, approval and approval.call_id) if one}
        return asked | set(self._answers.waiting)

    @property
    def _needs_person(self) -> bool:
        """Whether the thread waits for an answer of this person that was not given yet."""
        return bool(self._awaited - self._answered)

    # -- reading -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(self._client.watch(self._thread_id)) as events:
                    async for event in events:
                        if isinstance(event, Snapshot):
                            await self._branches.find_places()
                            self._regenerated = None
                        self._conversation.show(event)
                        self._questions.show()
                        self._decisions.show()
                        if self._answers.unknown and not self._looking:
                            self._looking = True
                            self._start(self._look())
                        for input_id in self._arrived():
                            self._sent(input_id)
                        self._watching.set()
                        self._changed.set()
            except ViewOutdated:
                continue  # the next snapshot shows what has changed

    def _arrived(self) -> list[str]:
        if not self._sending:
            return []
        known = {message.input_id for message in self._conversation.view.messages}
        return [input_id for input_id in self._sending if input_id in known]

    async def _look(self) -> None:
        try:
            while self._answers.unknown:
                await asyncio.sleep(START_S)
                if self._answers.unknown:
                    await self._answers.look()
        except PerdureError as error:
            self._terminal.line(f"✗ What the thread waits for is not known: {one_line(str(error))}", "red")
        finally:
            self._looking = False
            self._changed.set()

    async def _settled(self) -> None:
        while (self._busy or self._looking) and not self._needs_person:
            self._changed.clear()
            await self._changed.wait()

    # -- talking -----------------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        await self._watching.wait()
        if self._terminal.interactive and not self._conversation.view.messages:
            self._terminal.line("A new thread. Type and press Enter; /help shows what else there is.", "dim")
        while (line := await self._terminal.lines.get()) is not None:
            if line.strip() == "/quit":
                return
            await self._handle(line)
            if not self._terminal.interactive:
                await self._settled()

    async def _handle(self, line: str) -> None:
        question, approval = self._questions.current, self._decisions.current
        is_command = line.strip().startswith("/")
        if question and (not line or selected(line, question) is not None):
            await self._say(self._choose(question, selected(line, question) if line else None))
        elif question and not is_command and is_attempt(line, question):
            self._terminal.line(f"{no_choice(line, question)} /say TEXT says it to the thread.", "red")
        elif approval and not question and not is_command and (line.strip() or approval.request.dismissible):
            await self._say(self._decide(approval, line))
        elif is_command and not line.startswith("//"):
            command, _, text = line.strip().partition(" ")
            await self._command(command, text.strip())
        elif line.strip():
            self._send(_Outgoing(line.removeprefix("/")))

    async def _command(self, command: str, text: str) -> None:
        match command, text:
            case (("/say" | "/queue" | "/steer"), _) if text:
                self._send(_Outgoing(text, _MODES[command]))
            case "/help", _:
                self._terminal.line(HELP, "dim")
            case "/status", _:
                await self._say(show_status(self._client, self._thread_id))
            case "/stop", _:
                await self._say(stop_thread(self._client, self._thread_id))
            case "/branches", _:
                await self._say(self._branches.show())
            case "/regenerate", _:
                await self._say(self._regenerate(text))
            case "/switch", _ if text:
                await self._say(self._branches.switch(text))
            case "/edit", _ if text:
                await self._say(self._edit(text))
            case "/file", _ if text:
                await self._say(self._attach(text))
            case "/compact", _:
                await self._say(self._compact())
            case "/result", _ if text:
                await self._say(self._give_result(text))
            case _:
                known = f"{one_line(command)} is not known, or lacks its text: /help shows what there is."
                self._terminal.line(known, "red")

    async def _edit(self, typed: str) -> None:
        source_id, text = self._branches.to_edit(typed)
        self._send(_Outgoing(text, source_id=source_id))

    async def _attach(self, typed: str) -> str:
        self._files += files_typed(typed)
        return f"▤ With your next words: {', '.join(one_line(file.name) for file in self._files)}"

    async def _compact(self) -> str:
        if not self._conversation.view.messages:
            raise UsageError("Nothing was said yet, so there is nothing to make shorter.")
        await self._client.compact(self._thread_id)
        return "≡ It is being made shorter for the model, beside what else goes on; what was said stays."

    async def _regenerate(self, typed: str) -> None:
        answer_id = await self._branches.regenerate(typed)
        if not self._conversation.view.message(answer_id):
            self._regenerated = answer_id

    def _send(self, words: _Outgoing) -> None:
        words, self._files = replace(words, files=self._files), ()
        self._sending[words.id] = words.text
        self._terminal.show_sending(list(self._sending.values()))
        self._outbox.put_nowait(words)

    def _sent(self, input_id: str) -> None:
        self._sending.pop(input_id, None)
        self._terminal.show_sending(list(self._sending.values()))
        self._changed.set()

    async def _deliver(self) -> None:
        while True:
            words = await self._outbox.get()
            try:
                accepted = await self._deliver_one(words)
            except PerdureError as error:
                self._terminal.line(f"✗ Not sent: {one_line(str(error))}", "red")
                self._sent(words.id)
                continue
            if refused := NotTaken.of(accepted.disposition, accepted.detail):
                self._terminal.line(f"✗ {one_line(str(refused))} It was: {one_line(words.text)}", "red")
                self._sent(words.id)

    async def _deliver_one(self, words: _Outgoing) -> Accepted:
        along: dict[str, Any] = {"id": words.id, "files": words.files, **self._how}
        if words.source_id is None:
            return await self._client.send(self._thread_id, words.text, mode=words.mode, **along)
        return await self._client.edit(self._thread_id, words.source_id, words.text, **along)

    async def _choose(self, question: Choice, choice: int | None) -> None:
        words = "(the default)" if choice is None else question.choices[choice]
        self._terminal.line(f"› {one_line(words)}", "bold")
        await self._client.choose(self._thread_id, question.id, choice)
        self._answered.add(question.id)

    async def _decide(self, approval: PendingApproval, typed: str) -> None:
        said = self._decisions.read(typed)
        if said is not None:
            await self._client.decide(self._thread_id, approval.call_id, **said.fields, by=user_name())
            self._answered.add(approval.call_id)

    async def _give_result(self, typed: str) -> None:
        call_id, text = self._answers.read(typed)
        await self._client.tool_result(self._thread_id, call_id, text)
        self._answered.add(call_id)

    async def _say(self, answer: Coroutine[Any, Any, str | None]) -> None:
        """Do what was typed and show what came of it."""
        try:
            if (words := await answer) is not None:
                self._terminal.line(words, "dim")
        except PerdureError as error:
            self._terminal.line(f"✗ {one_line(str(error))}", "red")

    # -- leaving -----------------------------------------------------------------------------------------------

    async def _left(self) -> None:
        await self._leave.wait()

    def _on_interrupt(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._busy or now - self._interrupted_at < SECOND_S:
            self._leave.set()
            return
        self._interrupted_at = now
        self._terminal.line("Interrupting; Ctrl-C again leaves.", "dim")
        self._start(self._interrupt())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _interrupt(self) -> None:
        try:
            await self._client.interrupt(self._thread_id)
        except PerdureError as error:
            self._terminal.line(f"✗ Not interrupted: {one_line(str(error))}", "red")


@contextmanager
def _signals(interrupt: Callable[[], None], leave: Callable[[], None], resume: Callable[[], None]) -> Generator[None]:
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: leave, signal.SIGHUP: leave, signal.SIGCONT: resume}
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
