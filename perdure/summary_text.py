"""What a summary says besides the words of whoever made it: what is known exactly, in a form that the next one reads.

A summary is made on top of an earlier one, and then the text of that is all there is of it: nothing that it covers is
read again. So what must last through any number of compactions stands at the end of the text in lines of a fixed form,
and the next summary takes it from there. The model's own words never look like these lines.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.records import Subscription, ThreadRecord
from perdure.view import clean

HEADING: Final = "Known exactly:"
OPENING: Final = "- The first words of the user: "
TASK: Final = "- What this thread is and does: "
WORDS: Final = "- Words that are still to be answered: "
SUBSCRIPTIONS: Final = "- Active subscriptions, each with the id of its call and its tool: "
CHILDREN: Final = "- Open child threads, each with its id and its title: "
CUT_OFF: Final = "[cut off here]"
LISTED: Final = 200
"""Subscriptions and child threads that are named; more are only counted."""

_counts = re.compile(r"^- This stands for (\d+) messages and (\d+) tool calls", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """What is known exactly of what was left out, by all compactions so far.

    Attributes:
        messages: how many messages were left out.
        calls: how many tool calls were in them.
        since: the day on which the conversation began.
        until: the day on which the newest of them was left out.
        opening: the first words of the user.
        task: what a child thread was told about itself.
        words: those that are left out though their answer is not over.
        subscriptions: that go on, by the ids of their calls, with their tools.
        children: child threads that are not closed, by their ids, with their titles.
    """

    messages: int = 0
    calls: int = 0
    since: str = ""
    until: str = ""
    opening: str = ""
    task: str = ""
    words: str = ""
    subscriptions: tuple[tuple[str, str], ...] = ()
    children: tuple[tuple[str, str], ...] = ()

    def with_state(self, subscriptions: tuple[Subscription, ...], children: tuple[ThreadRecord, ...]) -> "Facts":
        """The same with what goes on in the thread now."""
        return replace(
            self,
            subscriptions=tuple((one.call_id, one.tool) for one in subscriptions),
            children=tuple((one.thread_id, one.title or "") for one in children),
        )

    def __str__(self) -> str:
        """As they stand at the end of a summary."""
        dates = f", written between {self.since} and {self.until}" if self.since else ""
        lines = [
            HEADING,
            f"- This stands for {self.messages} messages and {self.calls} tool calls{dates}. All of it is still "
            "stored, where people can read it.",
        ]
        quoted = ((OPENING, self.opening), (TASK, self.task), (WORDS, self.words))
        lines += [prefix + _quote(text) for prefix, text in quoted if text]
        listed = ((SUBSCRIPTIONS, self.subscriptions), (CHILDREN, self.children))
        lines += [prefix + _listed(pairs) for prefix, pairs in listed if pairs]
        return "\n".join(lines)


def carried(text: str) -> Facts:
    """What lasts of an earlier summary's facts: how much it covers, how it all began, and which thread this is."""
    facts = text[_start(text) :]
    counts = _counts.search(facts)
    return Facts(
        messages=int(counts[1]) if counts else 0,
        calls=int(counts[2]) if counts else 0,
        opening=_quoted(facts, OPENING),
        task=_quoted(facts, TASK),
    )


def body(text: str) -> str:
    """A summary's own words, without the facts."""
    return text[: _start(text)].strip()


def composed(words: str, facts: Facts) -> str:
    """The text of a summary."""
    words = clean(words).strip().replace(HEADING, HEADING[:-1])
    return f"{words}\n\n{facts}" if words else str(facts)


def clipped(text: str, limit: int) -> str:
    """A text of at most about so many characters. Unlike for a preview, its lines stay."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()} {CUT_OFF}"


def _start(text: str) -> int:
    """Where the facts begin: no words before them hold their heading."""
    at = text.find(HEADING)
    return len(text) if at < 0 else at


def _quote(text: str) -> str:
    # One line, whatever is in it, that gives back what was put in.
    return json.dumps(clean(text), ensure_ascii=False)


def _quoted(facts: str, prefix: str) -> str:
    line = next((line for line in facts.split("\n") if line.startswith(prefix)), None)
    if line is None:
        return ""
    try:
        value: Any = json.loads(line.removeprefix(prefix))
    except ValueError:
        # No text of ours: the model of an older release wrote such a line.
        return ""
    return str(value)


def _listed(pairs: tuple[tuple[str, str], ...]) -> str:
    named = [f"{name} ({_quote(title)})" if title else name for name, title in pairs[:LISTED]]
    more = len(pairs) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
