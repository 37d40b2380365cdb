"""What the demo shows beside the conversation itself: where everything is, the transcript, the checks, the verdict."""

from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure.cli.conversation import Conversation
from perdure.cli.printable import one_line
from perdure.cli.terminal import PlainTerminal
from perdure.demo.checks import Check
from perdure.records import Snapshot

WIDTH: Final = 110
_MARKS: Final = {"ok": "[green]✓[/]", "failed": "[red]✗[/]", "not seen": "[yellow]?[/]"}


def demo_console() -> Console:
    """The console of this process; where there is no terminal, as in a CI log, lines are of a fixed width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


class Report:
    """Writes to one console, between the lines of the conversation."""

    def __init__(self, console: Console) -> None:
        self.terminal = PlainTerminal(console)
        self._console = console

    def say(self, text: str, style: str = "") -> None:
        """A line of its own."""
        self.terminal.line(one_line(text), style)

    def title(self, text: str) -> None:
        """What comes next."""
        self.terminal.line("")
        self.terminal.line(f"── {text} ".ljust(WIDTH - 10, "─"), "bold blue")

    def addresses(self, rows: dict[str, str]) -> None:
        """Where everything is."""
        names = max(map(len, rows))
        for name, value in rows.items():
            self.say(f"{name.ljust(names)}  {value}")

    def transcript(self, snapshot: Snapshot) -> None:
        """The whole conversation, as `perdure history` shows it."""
        self.title("The transcript, read back from PostgreSQL")
        Conversation(self.terminal, limit=None).show(snapshot)

    def checks(self, checks: list[Check]) -> None:
        """A row for each."""
        self.title("What was checked")
        table = Table(show_header=False)
        for item in checks:
            table.add_row(_MARKS[item.verdict], escape(item.promise), escape(one_line(item.detail)))
        self._console.print(table)

    def verdict(self, checks: list[Check], *, scripted: bool, took_s: float) -> bool:
        """The last word; returns whether the demo has passed.

        The script makes everything happen that is checked. A real model may do without a tool, or be too quick to be
        interrupted, which is said and breaks nothing.
        """
        unseen = [item for item in checks if item.verdict == "not seen"]
        broken = [item for item in checks if item.verdict == "failed" or (item.verdict == "not seen" and scripted)]
        for item in broken:
            self.say(f"✗ Not kept: “{item.promise}”: {item.detail}", "bold red")
        if broken:
            self.say(f"{len(broken)} of {len(checks)} promises were not kept ({took_s:.0f} s).", "bold red")
            return False
        if unseen:
            self.say(f"✓ Kept as far as the model let it happen; {len(unseen)} not seen ({took_s:.0f} s).", "yellow")
        else:
            self.say(f"✓ All {len(checks)} promises were kept ({took_s:.0f} s).", "bold green")
        return True
