"""What tools ask people in the middle of a call, as lines of a terminal, and the answers that are typed."""

from perdure.cli.conversation import Conversation, Output
from perdure.cli.printable import one_line
from perdure.ports import Choice

_NUMBER_CHARS = 9


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
            "  Type a number; Enter or Escape alone takes the default.",
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
