"""What a compaction is to do: what it says of what is left out, and when it is worth it."""

import pytest

from perdure.compaction import Compaction
from perdure.contract import CompactRequest
from perdure.messages import Part, Role
from perdure.records import Path
from perdure.summary_plan import Plan, plan
from perdure.summary_text import Facts, composed
from tests.perdure.view_paths import call, path, result, user

LONG = "word " * 2_000


def talk(turns: int = 4, summary: str | None = None) -> Path:
    """Turns with one call each, behind a summary."""
    messages: list[tuple[Role, list[Part]]] = []
    for number in range(turns):
        called: list[Part] = [call(f"c{number}"), result(f"c{number}", LONG)]
        messages.append(user(f"{number} {LONG}"))
        messages.append(("assistant", called))
    return path(*messages, summary=summary)


def planned(given: Path, *, forced: bool = True, window: int | None = None) -> Plan | None:
    """A compaction of all of it."""
    request = CompactRequest(thread_id="t", agent="a", message_id=given.messages[-1].id, forced=forced)
    return plan(given, request, Compaction(keep=0.2), window)


def test_counts_go_on_from_the_summary_before() -> None:
    """Messages and calls that it stands for are left out still, and so are those that are cut off now."""
    first = planned(talk())
    earlier = Facts(messages=7, calls=5, opening="hello", task="count")
    second = planned(talk(summary=composed("They spoke.", earlier)))
    assert first is not None
    assert second is not None
    assert (first.facts.messages, first.facts.calls) == (7, 3), "all but the newest step"
    assert (second.facts.messages, second.facts.calls) == (14, 8)
    assert (second.facts.opening, second.facts.task) == ("hello", "count"), "how it all began is said once"


@pytest.mark.parametrize(("window", "is_worth_it"), [(1_000_000, False), (10_000, True)])
def test_what_is_small_beside_the_window_is_left_alone(window: int, is_worth_it: bool) -> None:
    """Unless somebody asks for it."""
    assert (planned(talk(), forced=False, window=window) is not None) == is_worth_it
    assert planned(talk(), forced=True, window=window) is not None
