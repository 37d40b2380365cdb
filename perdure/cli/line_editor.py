"""The line that a person is typing: bytes of a terminal in, finished lines out. Pure.

The terminal is in cbreak mode without echo, because a streaming answer and the kernel's echo would be written into
each other. So the few keys that everybody's fingers know are handled here.
"""

import codecs
import re
from dataclasses import dataclass
from typing import Final

PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"
"""What makes a terminal mark pasted text, so that a line end in it does not send half of it."""

_PASTE_END: Final = "\x1b[201~"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[([0-9;?]*)([@-~])|O(.)|([^\[O]))", re.DOTALL)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-9;?]*|O)?\Z")
_KEYS: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
_TILDE_KEYS: Final = {"1": "home", "7": "home", "3": "delete", "4": "end", "8": "end", "200": "paste"}
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x02": "left",
    "\x04": "end_of_input",
    "\x05": "end",
    "\x06": "right",
    "\x0b": "kill_right",
    "\x0e": "down",
    "\x10": "up",
    "\x15": "kill_left",
    "\x17": "kill_word",
}


@dataclass(frozen=True)
class Submitted:
    """A line that was finished with Enter; pasted text may hold several."""

    text: str


@dataclass(frozen=True)
class EndOfInput:
    """Ctrl-D on an empty line."""


@dataclass(frozen=True)
class Dismissed:
    """Enter or Escape on an empty line."""


Typed = Submitted | Dismissed | EndOfInput


class LineEditor:
    """One line with a cursor, and the lines before it.

    Attributes:
        text: what is typed so far.
        cursor: position in it, 0 before its first character.
    """

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unread = ""
        self._pasting = False
        self._earlier: list[str] = []
        self._recalled = 0

    def feed(self, data: bytes) -> list[Typed]:
        """Take what was read from the terminal, cut anywhere; returns what is finished by it."""
        text = self._unread + self._decoder.decode(data)
        self._unread = ""
        events: list[Typed] = []
        at = 0
        while at < len(text):
            if self._pasting:
                at = self._take_pasted(text, at)
            elif text[at:] == "\x1b":
                # Nothing follows, so it is the key itself and not the beginning of another key's sequence.
                at += 1
                if not self.text:
                    events.append(Dismissed())
            elif text[at] == "\x1b":
                at = self._take_sequence(text, at)
            else:
                event = self._press(_CONTROLS.get(text[at], text[at]))
                at += 1
                if event:
                    events.append(event)
        return events

    def _take_pasted(self, text: str, at: int) -> int:
        end = text.find(_PASTE_END, at)
        if end >= 0:
            self._insert(text[at:end])
            self._pasting = False
            return end + len(_PASTE_END)
        # The end mark itself may be cut: what could be its beginning waits for the next bytes.
        tail = next((n for n in range(len(_PASTE_END) - 1, 0, -1) if text.endswith(_PASTE_END[:n])), 0)
        self._insert(text[at : len(text) - tail])
        self._unread = text[len(text) - tail :]
        return len(text)

    def _take_sequence(self, text: str, at: int) -> int:
        found = _SEQUENCE.match(text, at)
        if found is None:
            # A sequence that was cut goes on with the next bytes.
            if _UNFINISHED.match(text, at):
                self._unread = text[at:]
                return len(text)
            return at + 2
        parameters, final, keypad, _ = found.groups()
        key = _TILDE_KEYS.get(parameters) if final == "~" else _KEYS.get(final or keypad)
        if key:
            self._press(key)
        return found.end()

    def _press(self, key: str) -> Typed | None:
        match key:
            case "enter":
                return self._submit()
            case "end_of_input":
                if not self.text:
                    return EndOfInput()
                self._delete(self.cursor, self.cursor + 1)
            case "paste":
                self._pasting = True
            case "backspace":
                self._delete(self.cursor - 1, self.cursor)
            case "delete":
                self._delete(self.cursor, self.cursor + 1)
            case "kill_left":
                self._delete(0, self.cursor)
            case "kill_right":
                self._delete(self.cursor, len(self.text))
            case "kill_word":
                self._delete(len(re.sub(r"\S+\s*\Z", "", self.text[: self.cursor])), self.cursor)
            case "left" | "right" | "home" | "end":
                self._move(key)
            case "up" | "down":
                self._recall(-1 if key == "up" else 1)
            case _ if key >= " ":
                self._insert(key)
            case _:
                pass  # a control character that means nothing here
        return None

    def _submit(self) -> Submitted | Dismissed | None:
        text = self.text
        self._replace("")
        if not text.strip():
            return None if text else Dismissed()
        if not self._earlier or self._earlier[-1] != text:
            self._earlier.append(text)
        self._recalled = len(self._earlier)
        return Submitted(text)

    def _insert(self, text: str) -> None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _delete(self, start: int, end: int) -> None:
        if start >= 0:
            self.text = self.text[:start] + self.text[end:]
            self.cursor = start

    def _move(self, key: str) -> None:
        places = {"left": max(self.cursor - 1, 0), "right": min(self.cursor + 1, len(self.text)), "home": 0}
        self.cursor = places.get(key, len(self.text))

    def _recall(self, step: int) -> None:
        self._recalled = min(max(self._recalled + step, 0), len(self._earlier))
        self._replace(self._earlier[self._recalled] if self._recalled < len(self._earlier) else "")

    def _replace(self, text: str) -> None:
        self.text = text
        self.cursor = len(text)
