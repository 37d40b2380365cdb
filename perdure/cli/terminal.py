"""Where a chat is written and typed: a terminal with an input line at its foot, or plain streams.

The terminal's foot (what is being sent, and the line that is typed) is redrawn below the text after each change, so
an answer may stream while a person types. Only the last row of the text belongs to what is redrawn: rows that are
full are final and become the terminal's own scrollback.
"""

import asyncio
import os
import sys
import termios
import threading
import tty
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perdure.cli.conversation import Output
from perdure.cli.line_editor import PASTE_OFF, PASTE_ON, Dismissed, EndOfInput, LineEditor, Submitted
from perdure.cli.printable import one_line

_PROMPT: Final = "› "
_READ_BYTES: Final = 65_536
_TYPED_CHARS: Final = 200

Lines = asyncio.Queue[str | None]
"""What was typed, line by line; empty for Enter or Escape without any text, None at the end of the input."""


class Terminal(Output, Protocol):
    """Both kinds: text goes out by `write` and `line`, lines come in by `lines` while `open` is entered."""

    lines: Lines

    @property
    def interactive(self) -> bool:
        """Whether a person types while the answer streams; else each line waits for the answer to the one before."""
        ...

    def open(self) -> AbstractContextManager[None]:
        """Take the terminal, and give it back as it was."""
        ...

    def resume(self) -> None:
        """Take the terminal again after the process was suspended."""
        ...

    def show_sending(self, texts: list[str]) -> None:
        """Show what is on its way."""
        ...


class PlainTerminal:
    """Streams: no foot, no keys. Lines are read by a thread, since files and pipes cannot all be polled."""

    interactive = False

    def __init__(self, console: Console | None = None) -> None:
        self.lines: Lines = asyncio.Queue()
        self._console = console or Console(highlight=False)
        self._at_start = True

    @contextmanager
    def open(self) -> Generator[None]:
        """Read lines while entered."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(self.lines.put_nowait, line.rstrip("\n"))
            loop.call_soon_threadsafe(self.lines.put_nowait, None)

        # A daemon, because nothing can wake a thread that reads: the process must be able to end without it.
        threading.Thread(target=read, name="stdin", daemon=True).start()
        yield

    def write(self, text: str, style: str = "") -> None:
        """Go on writing where the last text ended."""
        self._console.print(Text(text, style=style, end=""), end="", soft_wrap=True)
        self._console.file.flush()
        self._at_start = text.endswith("\n") if text else self._at_start

    def fresh(self) -> None:
        """Go to the start of a line, unless the output is at one."""
        if not self._at_start:
            self.write("\n")

    def line(self, text: str, style: str = "") -> None:
        """Write a line of its own."""
        self.fresh()
        self.write(text + "\n", style)

    def resume(self) -> None:
        """Nothing was taken."""

    def show_sending(self, texts: list[str]) -> None:
        """There is no place that could be changed later."""


class ScreenTerminal:
    """A person's terminal."""

    interactive = True

    def __init__(self, console: Console | None = None, fd: int | None = None) -> None:
        self.lines: Lines = asyncio.Queue()
        self._console = console or Console(highlight=False)
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._row = Text(end="")
        self._sending: list[str] = []
        self._editor = LineEditor()

    @contextmanager
    def open(self) -> Generator[None]:
        """Take keys one by one and draw the foot, until left."""
        loop = asyncio.get_running_loop()
        before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        loop.add_reader(self._fd, self._read)
        self._console.file.write(PASTE_ON)
        try:
            with self._live:
                self._draw()
                yield
        finally:
            loop.remove_reader(self._fd)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
            self._console.file.write(PASTE_OFF)
            if self._row.plain:
                self._console.print(self._row)
            self._console.file.flush()

    def resume(self) -> None:
        """Take the terminal again after the process was suspended."""
        tty.setcbreak(self._fd)
        self._console.file.write(PASTE_ON)
        self._draw()

    def write(self, text: str, style: str = "") -> None:
        """Go on writing where the last text ended."""
        *finished, rest = text.split("\n")
        for line in finished:
            self._row.append(line, style)
            self._finish_row()
        self._row.append(rest, style)
        for row in self._full_rows():
            self._console.print(row)
        self._draw()

    def fresh(self) -> None:
        """Go to the start of a line, unless the output is at one."""
        if self._row.plain:
            self.write("\n")

    def line(self, text: str, style: str = "") -> None:
        """Write a line of its own."""
        self.fresh()
        self.write(text + "\n", style)

    def show_sending(self, texts: list[str]) -> None:
        """Show what is on its way, above the line that is typed."""
        self._sending = texts
        self._draw()

    def _finish_row(self) -> None:
        for row in self._full_rows():
            self._console.print(row)
        self._console.print(self._row)
        self._row = Text()

    def _full_rows(self) -> Generator[Text]:
        width = self._console.width
        while cell_len(self._row.plain) > width:
            row, self._row = split_row(self._row, width)
            yield row

    def _draw(self) -> None:
        sending = [
            Text(f"… {one_line(text)}", style="dim", overflow="ellipsis", no_wrap=True) for text in self._sending
        ]
        row = [self._row] if self._row.plain else []
        self._live.update(Group(*row, *sending, self._typed()), refresh=True)

    def _typed(self) -> Text:
        # Of a long text only what is around the cursor: the foot has to fit onto the screen.
        start = max(self._editor.cursor - _TYPED_CHARS, 0)
        text, cursor = self._editor.text[start:][: 2 * _TYPED_CHARS], self._editor.cursor - start
        shown = Text("… " if start else _PROMPT, style="bold")
        shown.append(one_line(text[:cursor]), "not bold")
        shown.append(one_line(text[cursor : cursor + 1]) or " ", "reverse not bold")
        shown.append(one_line(text[cursor + 1 :]), "not bold")
        return shown

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
            self.lines.put_nowait(None)
            return
        for event in self._editor.feed(data):
            match event:
                case Submitted(text):
                    self.lines.put_nowait(text)
                case Dismissed():
                    self.lines.put_nowait("")
                case EndOfInput():
                    self.lines.put_nowait(None)
        self._draw()


def split_row(text: Text, width: int) -> tuple[Text, Text]:
    """What fits into a row, cut between words if there are any, and the rest."""
    plain = text.plain
    # One at least: a wide letter in a window of one column is cut by the terminal, and the rest goes on.
    fits = next((n for n in range(len(plain), 0, -1) if cell_len(plain[:n]) <= width), 1)
    space = plain.rfind(" ", 0, fits + 1)
    cut = space if space > 0 else fits
    row, rest = text.divide([cut])
    return row, rest[1:] if rest.plain.startswith(" ") else rest


def open_terminal() -> ScreenTerminal | PlainTerminal:
    """The terminal of this process, with a foot if both its ends are a person's."""
    if sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal:
        return ScreenTerminal()
    return PlainTerminal()
