"""`perdure chat`: talk with a thread in the terminal."""

import asyncio
import signal
import uuid
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Final

import typer

from perdure.cli.answers import Answers
from perdure.cli.conversation import Conversation
from perdure.cli.printable import one_line
from perdure.cli.questions import Questions, is_attempt, no_choice, selected
from perdure.cli.terminal import Terminal, open_terminal
from perdure.cli.threads import connect, id_typed, status_lines, stop_thread
from perdure.client import PerdureClient
from perdure.errors import NotTaken, PerdureError, ViewOutdated
from perdure.inputs import Mode
from perdure.ports import Choice

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
    "A question of a tool is answered by a number or its words; Enter or Escape alone takes the default.\n"
    "/say TEXT    say to the thread what looks like such an answer\n"
    "Ctrl-C interrupts the turn; a second time, or when nothing runs, it leaves."
)
_MODES: Final[dict[str, Mode]] = {"/say": "interrupt", "/queue": "queue", "/steer": "steer"}


def chat(
    thread: Annotated[
        str, typer.Argument(help="The thread's id; a new one begins, an old one goes on.", callback=id_typed)
    ],
    agent: Annotated[str | None, typer.Option(help="The agent of a new thread; left out: the worker's first.")] = None,
) -> None:
    """Talk with a thread: its history, then the answer as it streams. Ctrl-C interrupts, twice leaves."""
    asyncio.run(_chat(thread, agent))


async def _chat(thread_id: str, agent: str | None) -> None:
    async with await connect() as client:
        await client.start(thread_id, agent=agent)
        await Chat(client, thread_id, open_terminal()).run()


class Chat:
    """One person's conversation with one thread.

    What was said is shown when it comes back from the thread, so it stands where the thread has it; until then it is
    shown as being sent. Messages are delivered one after the other, so they arrive in the order of typing.
    """

    def __init__(self, client: PerdureClient, thread_id: str, terminal: Terminal) -> None:
        self._client = client
        self._thread_id = thread_id
        self._terminal = terminal
        self._conversation = Conversation(terminal)
        self._questions = Questions(self._conversation, terminal)
        self._answers = Answers(self._conversation, terminal, lambda: client.status(thread_id))
        self._watching = asyncio.Event()
        self._changed = asyncio.Event()
        self._outbox: asyncio.Queue[tuple[str, str, Mode]] = asyncio.Queue()
        self._sending: dict[str, str] = {}
        self._leave = asyncio.Event()
        self._interrupted_at = float("-inf")
        self._answered: set[str] = set()
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
        return self._conversation.view.running or bool(self._sending)

    @property
    def _needs_person(self) -> bool:
        """Whether the thread waits for an answer of this person that was not given yet."""
        question = self._questions.current
        asked = {question.id} if question else set[str]()
        return bool((asked | set(self._answers.waiting)) - self._answered)

    # -- reading -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(self._client.watch(self._thread_id)) as events:
                    async for event in events:
                        self._conversation.show(event)
                        self._questions.show()
                        if self._answers.unknown and not self._looking:
                            self._looking = True
                            self._start(self._look())
                        for input_id in self._arrived():
                            self._sent(input_id)
                        self._watching.set()
                        self._changed.set()
            except ViewOutdated:
                self._terminal.line("The conversation was changed further up. It now reads:", "dim")

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
        while self._busy and not self._needs_person:
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
        command, _, text = line.strip().partition(" ")
        question = self._questions.current
        if not line.strip():
            if question and not line:
                await self._say(self._choose(question, None))
        elif question and (choice := selected(line, question)) is not None:
            await self._say(self._choose(question, choice))
        elif question and not line.startswith("/") and is_attempt(line, question):
            self._terminal.line(f"{no_choice(line, question)} /say TEXT says it to the thread.", "red")
        elif not line.startswith("/") or line.startswith("//"):
            self._send(line.removeprefix("/"), "interrupt")
        elif command in _MODES and text.strip():
            self._send(text, _MODES[command])
        elif command == "/help":
            self._terminal.line(HELP, "dim")
        elif command == "/status":
            await self._say(self._status())
        elif command == "/stop":
            await self._say(self._stop())
        elif command == "/result" and text.strip():
            await self._say(self._give_result(text))
        else:
            self._terminal.line(
                f"{one_line(command)} is not known, or lacks its text: /help shows what there is.", "red"
            )

    def _send(self, text: str, mode: Mode) -> None:
        input_id = uuid.uuid4().hex
        self._sending[input_id] = text
        self._terminal.show_sending(list(self._sending.values()))
        self._outbox.put_nowait((input_id, text, mode))

    def _sent(self, input_id: str) -> None:
        self._sending.pop(input_id, None)
        self._terminal.show_sending(list(self._sending.values()))
        self._changed.set()

    async def _deliver(self) -> None:
        while True:
            input_id, text, mode = await self._outbox.get()
            try:
                accepted = await self._client.send(self._thread_id, text, id=input_id, mode=mode)
            except PerdureError as error:
                self._terminal.line(f"✗ Not sent: {one_line(str(error))}", "red")
                self._sent(input_id)
                continue
            if refused := NotTaken.of(accepted.disposition, accepted.detail):
                self._terminal.line(f"✗ {one_line(str(refused))} It was: {one_line(text)}", "red")
                self._sent(input_id)

    async def _status(self) -> str:
        return "\n".join(status_lines(await self._client.status(self._thread_id)))

    async def _stop(self) -> str:
        return await stop_thread(self._client, self._thread_id)

    async def _choose(self, question: Choice, choice: int | None) -> None:
        words = "(the default)" if choice is None else question.choices[choice]
        self._terminal.line(f"› {one_line(words)}", "bold")
        await self._client.choose(self._thread_id, question.id, choice)
        self._answered.add(question.id)

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
