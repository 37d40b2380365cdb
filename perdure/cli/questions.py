"""What tools ask people in the middle of a call, as lines of a terminal, and the answers that are typed."""

import re
from difflib import get_close_matches
from typing import Final

from perdure.cli.conversation import Conversation, Output
from perdure.cli.printable import one_line
from perdure.codec import clip
from perdure.records import Choice

_NUMBER_CHARS: Final = 9
_TYPED_CHARS: Final = 60
_BESIDE: Final = re.compile(r"[\W_]+")
_NUMBER_LIKE: Final = re.compile(r"(?:option|choice|number|answer|no|[a-z])?\d+|\d+(?:st|nd|rd|th|[a-z])")
"""A number with at most one letter that slipped in beside it, or as people say it."""

_LIKENESS: Final = 0.8
"""From here on typed words are nearly those of a choice: one letter of five may differ."""


class Questions:
    """The questions of a conversation. One is asked at a time, the oldest first; links to open are shown at once."""

    def __init__(self, conversation: Conversation, output: Output) -> None:
        self._conversation = conversation
        self._output = output
        self._asked: dict[str, Choice] = {}

    @property
    def current(self) -> Choice | None:
        """The question that the next answer belongs to."""
        choices = self._conversation.view.choices.values()
        return next((choice for choice in choices if choice.kind == "choice"), None)

    def show(self) -> None:
        """Say which questions have been answered, and ask what was not asked yet."""
        view = self._conversation.view
        for name in [name for name in self._asked if name not in view.choices]:
            choice = self._asked.pop(name)
            call = view.calls.get(choice.call_id)
            if choice.kind == "choice" and call is not None and call.result is None:
                self._output.line(f"✓ answered: {one_line(choice.prompt)}", "dim")
        for choice in view.choices.values():
            # Under the same id it is another question if it is put in other words.
            asked = choice.with_(seq=0)
            if self._asked.get(choice.id) != asked and (choice.kind == "oauth" or choice is self.current):
                self._asked[choice.id] = asked
                self._output.line("\n".join(self._lines(choice)), "yellow")

    def _lines(self, choice: Choice) -> list[str]:
        call = self._conversation.call_text(choice.call_id)
        if choice.kind == "oauth":
            return [f"? {call} goes on as soon as you have signed in here:", f"  {one_line(choice.auth_url or '')}"]
        return [
            f"? {call} asks: {one_line(choice.prompt)}",
            *choice_lines(choice),
            "  Type a number or its words; Enter or Escape alone takes the default.",
            "  Other words interrupt the turn; /say TEXT sends what looks like an answer.",
        ]


def choice_lines(choice: Choice) -> list[str]:
    """The choices of a question, numbered from 1."""
    return [
        f"  {number} {one_line(text)}{' (the default)' if number - 1 == choice.default else ''}"
        for number, text in enumerate(choice.choices, 1)
    ]


def selected(typed: str, choice: Choice) -> int | None:
    """The choice that somebody has typed, by its number or its words, counted from 0; None if it is none of them."""
    text = typed.strip()
    if text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS and 1 <= int(text) <= len(choice.choices):
        return int(text) - 1
    return next((at for at, words in enumerate(choice.choices) if words.casefold() == text.casefold()), None)


def is_attempt(typed: str, choice: Choice) -> bool:
    """Whether something that is none of the choices was meant as one: a number, their beginning, or nearly their words.

    To take it as words to the thread would interrupt the turn, and to guess the choice could be worse.
    """
    text = typed.strip().casefold()
    if not text or not choice.choices:
        return False
    if _NUMBER_LIKE.fullmatch(_BESIDE.sub("", text)):
        return True
    if len(text) > _TYPED_CHARS:  # nobody's slip, and comparing takes time with the square of the length
        return False
    words = [of.casefold() for of in choice.choices]
    near = [of for of in words if len(of) <= 2 * _TYPED_CHARS]
    return any(of.startswith(text) for of in words) or bool(get_close_matches(text, near, 1, _LIKENESS))


def no_choice(typed: str, choice: Choice) -> str:
    """What to say of an answer that is none of the choices."""
    count = len(choice.choices)
    numbers = f"a number from 1 to {count}" if count > 1 else "1"
    return f"There is no choice {clip(typed, _TYPED_CHARS)}: give {numbers}, or the words of a choice."
