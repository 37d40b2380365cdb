"""A terminal without a window: what a person would see of a program that runs in it, and hands to type with."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import Mapping
from typing import Self

from rich.cells import cell_len

from tests.eventually import eventually

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """Rows of cells and a cursor; obeys the few sequences that our programs write and fails on any other.

    It never scrolls: rows that leave a window at its top are still what a person can scroll back to.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without blank lines and trailing blanks."""
        rows = ("".join(row).rstrip() for row in self._rows)
        return [row for row in rows if row]

    def feed(self, text: str) -> str:
        """Show output; returns the end of it that is not whole yet."""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    assert len(text) - at < 16, f"no sequence that we write: {text[at : at + 16]!r}"
                    return text[at:]
                self._obey(found.group(1), found.group(2))
                at = found.end()
            else:
                self._put(text[at])
                at += 1
        return ""

    def _obey(self, parameters: str, command: str) -> None:
        match command:
            case "A":
                self._row -= int(parameters or 1)
            case "K":
                assert parameters == "2"
                self._rows[self._row] = []
            case "m" | "h" | "l":
                pass  # colours, the cursor's visibility, marked pastes
            case _:
                raise AssertionError(f"no sequence that we write: {parameters}{command}")

    def _put(self, character: str) -> None:
        match character:
            case "\r":
                self._column = 0
            case "\n":
                self._down()
            case _:
                assert character >= " ", f"a control character: {character!r}"
                width = cell_len(character)
                if self._column + width > self._width:
                    self._down()
                    self._column = 0
                row = self._rows[self._row]
                row.extend(" " * (self._column + width - len(row)))
                row[self._column : self._column + width] = [character, *[""] * (width - 1)]
                self._column += width

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])


class TerminalProgram:
    r"""A program that runs in a terminal of its own, as a person starts it.

    Example:
        >>> async with TerminalProgram("-m", "perdure", "chat", "t1", env=env) as program:
        ...     await program.sees("›")
        ...     program.types("hi\r")
    """

    def __init__(self, *arguments: str, env: Mapping[str, str], width: int = 80) -> None:
        self.screen = Screen(width)
        self._arguments = arguments
        self._env = {**os.environ, "TERM": "xterm-256color", **env}
        self._width = width
        self._output = ""

    async def __aenter__(self) -> Self:
        self._terminal, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self._width, 0, 0))
        self.process: Process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            env=self._env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.attributes = termios.tcgetattr(slave)
        self._slave = slave
        asyncio.get_running_loop().add_reader(self._terminal, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.close(self._slave)
        os.close(self._terminal)

    def types(self, text: str) -> None:
        r"""Press keys; "\x03" is Ctrl-C."""
        os.write(self._terminal, text.encode())

    async def sees(self, text: str, timeout: float = 20.0) -> None:
        """Wait until a line with this text is on the screen."""
        try:
            await eventually(lambda: any(text in line for line in self.screen.lines), timeout)
        except AssertionError as error:
            raise AssertionError(f"{text!r} is not on the screen:\n" + "\n".join(self.screen.lines)) from error

    async def ends(self, timeout: float = 20.0) -> int:
        """Wait until the program has ended; returns its exit code."""
        return await asyncio.wait_for(self.process.wait(), timeout)

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as the program found it."""
        return termios.tcgetattr(self._slave) == self.attributes

    def _read(self) -> None:
        self._output = self.screen.feed(self._output + os.read(self._terminal, 65_536).decode())
