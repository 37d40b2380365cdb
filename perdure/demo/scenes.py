"""The demo itself: one conversation, in which things go wrong on purpose.

A scene waits for what it needs (words that stream, tools that run) in the thread's own changes and in the record of
the tools, never for a time; so what is interrupted and killed was really under way.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from perdure.cli.conversation import Conversation
from perdure.client import PerdureClient
from perdure.demo.evidence import Notes
from perdure.demo.report import Report
from perdure.demo.tool_runs import ToolRuns
from perdure.dev.worker_process import WorkerProcess
from perdure.errors import PerdureError
from perdure.messages import Message, TextPart, ToolCallPart, ToolResultPart
from perdure.watch import View, is_settled

_POLL_S: Final = 0.02
_STREAMED_CHARS: Final = 60
"""So much of an answer is shown before it is interrupted or its worker killed."""


class DemoFailed(PerdureError):
    """Something that the demo waited for did not come."""


@dataclass(frozen=True)
class Stage:
    """What the scenes play with; `patience_s` is how long they wait for one thing."""

    client: PerdureClient
    worker: WorkerProcess
    runs: ToolRuns
    thread_id: str
    ui_url: str | None
    patience_s: float


class Scenes:
    """Plays the conversation and notes what only a witness can know."""

    def __init__(self, stage: Stage, report: Report) -> None:
        self.notes = Notes()
        self._stage = stage
        self._report = report
        self._conversation = Conversation(report.terminal)
        self._watching: asyncio.Task[None] | None = None

    async def play(self) -> None:
        """All scenes, one after the other.

        Raises:
            DemoFailed: if one cannot go on.
        """
        self._watching = asyncio.create_task(self._watch())
        try:
            await self._first_words()
            await self._two_tools()
            await self._interrupted()
            await self._killed_in_an_answer()
            await self._killed_in_tools()
        finally:
            self._watching.cancel()
            with suppress(asyncio.CancelledError, PerdureError):
                await self._watching

    # -- scenes ------------------------------------------------------------------------------------------------

    async def _first_words(self) -> None:
        self._report.title("A first message, delivered twice")
        await self._say("m1", "Hello, who are you?")
        again = await self._stage.client.send(self._stage.thread_id, "Hello, who are you?", id="m1")
        self.notes.repeated.append("m1")
        await self._settled("m1")
        self._tell(f"The second delivery was a {again.disposition}: it cost no model call.")

    async def _two_tools(self) -> None:
        self._report.title("Two tool calls at once")
        await self._say("m2", "How is the weather in Paris and in Oslo?")
        await self._settled("m2")

    async def _interrupted(self) -> None:
        self._report.title("Interrupted in the middle of an answer")
        await self._say("m3", "Tell me a story.")
        await self._streaming("m3")
        clock = asyncio.get_running_loop().time
        began = clock()
        await self._say("m4", "Never mind. How is the weather in Cairo?")
        await self._settled("m3")
        self.notes.stop_s = clock() - began
        await self._settled("m4")
        self._tell("What had been said stays; what was not said yet never comes.")

    async def _killed_in_an_answer(self) -> None:
        self._report.title("kill -9 in the middle of an answer")
        await self._say("m5", "What happens when the worker that answers me dies?")
        await self._streaming("m5")
        await self._kill()
        live = self._view.live
        words = "".join(part.text for part in live.parts if isinstance(part, TextPart)) if live else ""
        if words:
            self.notes.killed_words.append(words)
        await self._resumed("m5")

    async def _killed_in_tools(self) -> None:
        self._report.title("kill -9 in the middle of two tool calls")
        await self._say("m6", "Book a table for 4, please, and tell me the weather in Berlin.")
        await self._until("A tool", lambda: self._all_calls_run("m6") or self._is_settled("m6"))
        await self._kill()
        self._tell("get_weather is declared retry_safe and runs again. book_table is not: nobody may run it twice.")
        await self._resumed("m6")
        await self._say("m7", "Thank you!")
        await self._settled("m7")

    # -- doing -------------------------------------------------------------------------------------------------

    async def _say(self, input_id: str, text: str) -> None:
        self.notes.inputs[input_id] = text
        await self._stage.client.send(self._stage.thread_id, text, id=input_id)

    async def _kill(self) -> None:
        worker = self._stage.worker
        self.notes.killed_pids.append(worker.pid)
        await worker.kill()
        self._tell(f"kill -9 {worker.pid}: the worker is gone.", "bold red")
        await worker.start()
        self._tell(
            f"Worker {worker.pid} starts. The old one's heart beat twice a second; after 5 s without, it is dead."
        )

    async def _resumed(self, input_id: str) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await self._settled(input_id)
        self.notes.resume_s.append(clock() - began)
        self._tell(f"Finished {self.notes.resume_s[-1]:.1f} s after the kill.")

    # -- waiting -----------------------------------------------------------------------------------------------

    async def _settled(self, input_id: str) -> None:
        await self._until("The answer", lambda: self._is_settled(input_id))

    async def _streaming(self, input_id: str) -> None:
        """Until a good piece of the answer was seen; or all of it, if the model was quicker."""
        await self._until("The answer", lambda: self._streamed() >= _STREAMED_CHARS or self._is_settled(input_id))

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._stage.patience_s):
                while not condition():
                    if self._watching and self._watching.done():
                        self._watching.result()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise DemoFailed(f"{what} did not come within {self._stage.patience_s:g} s.") from error

    def _is_settled(self, input_id: str) -> bool:
        answer = self._answer(input_id)
        return answer is not None and is_settled(answer)

    def _answer(self, input_id: str) -> Message | None:
        message = next((message for message in self._view.messages if message.input_id == input_id), None)
        return self._view.answer(message.id) if message else None

    def _streamed(self) -> int:
        live = self._view.live
        return sum(len(part.text) for part in live.parts if isinstance(part, TextPart)) if live else 0

    def _all_calls_run(self, input_id: str) -> bool:
        """Whether every open call of the answer is being run at this moment."""
        answer = self._answer(input_id)
        parts = answer.parts if answer else ()
        calls = sum(isinstance(part, ToolCallPart) for part in parts)
        returned = sum(isinstance(part, ToolResultPart) for part in parts)
        pid = self._stage.worker.pid
        running = sum(run.pid == pid and not run.returned for run in self._stage.runs.read())
        return 0 < calls - returned <= running

    @property
    def _view(self) -> View:
        return self._conversation.view

    async def _watch(self) -> None:
        async with aclosing(self._stage.client.watch(self._stage.thread_id)) as events:
            async for event in events:
                self._conversation.show(event)

    def _tell(self, text: str, style: str = "magenta") -> None:
        self._report.say(f"▸ {text}", style)
