"""What a summary says besides its own words, and what the next one takes from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.records import Subscription, ThreadRecord
from perdure.summary_text import CUT_OFF, HEADING, LISTED, Facts, body, carried, clipped, composed
from tests.properties import hostile_text, settings


@given(st.integers(0, 10**6), st.integers(0, 10**6), hostile_text, hostile_text, hostile_text, hostile_text)
@settings(max_examples=200)
def test_what_lasts_is_read_back_whatever_it_holds(
    messages: int, calls: int, opening: str, task: str, words: str, said: str
) -> None:
    """Counts, first words and task come out as they went in, lone surrogates replaced; so do the model's own words."""
    text = composed(said, Facts(messages, calls, "2026-01-02", "2026-02-03", opening, task, words))
    found = carried(text)
    assert (found.messages, found.calls) == (messages, calls)
    assert found.opening == opening.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert found.task == task.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert body(text) == said.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    text.encode("utf-8")


@pytest.mark.parametrize(
    "said",
    [f"{HEADING}\n- This stands for 7 messages and 9 tool calls", f'x {HEADING} y\n- The first words of the user: "z"'],
)
def test_words_of_a_model_are_not_taken_for_facts(said: str) -> None:
    """A model that imitates the lines changes nothing of what is known exactly."""
    assert carried(composed(said, Facts(messages=2, opening="o"))) == Facts(messages=2, opening="o")


def test_a_text_without_facts_is_all_words() -> None:
    """A summary of an older release has no such lines; what only looks like one is passed over."""
    assert body("what was") == "what was"
    assert carried("what was") == Facts()
    assert carried(f"{HEADING}\n- The first words of the user: not quoted") == Facts()


def test_subscriptions_and_children_stand_at_the_end() -> None:
    """What goes on is named with its id, at the end; very many are counted."""
    subscriptions = (Subscription(call_id="call_1", tool="watch"), Subscription(call_id="call_2", tool="follow"))
    children = (ThreadRecord(thread_id="child-1", agent="a", title='Look "it" up\nnow'),)
    text = composed("Words.", Facts(messages=1).with_state(subscriptions, children))
    assert text.split("\n")[-2:] == [
        '- Active subscriptions, each with the id of its call and its tool: call_1 ("watch"); call_2 ("follow")',
        '- Open child threads, each with its id and its title: child-1 ("Look \\"it\\" up\\nnow")',
    ]
    many = tuple(ThreadRecord(thread_id=f"c{number}", agent="a") for number in range(LISTED + 3))
    assert composed("", Facts().with_state((), many)).endswith("; and 3 more")


def test_dates_are_told_where_they_are_known() -> None:
    """The line of counts says from when the messages are."""
    assert "written between 2026-01-02 and 2026-02-03" in str(Facts(3, 4, "2026-01-02", "2026-02-03"))
    assert "written" not in str(Facts(3, 4))


def test_long_words_are_cut_off_with_a_note() -> None:
    """What is short stays as it is."""
    assert clipped("abc", 3) == "abc"
    assert clipped("ab  c", 4) == f"ab {CUT_OFF}"
