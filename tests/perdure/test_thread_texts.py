"""What a model is told about threads: the promises that each text makes."""

from perdure.thread_texts import (
    child_dismissed,
    child_report,
    event_task,
    identity,
    parent_message,
    spawned,
    task,
    wrong_stack,
)

INSTRUCTIONS = '  Count the "apples".\n\n- all of them\n'


def test_a_root_is_told_who_it_is_always_in_the_same_words() -> None:
    """Its id and its stack, as it has to pass it; nothing that changes from turn to turn."""
    said = identity("r1")
    assert "r1" in said
    assert '["r1"]' in said
    assert identity("r1") == said
    assert "child thread" in said


def test_a_parent_is_told_the_child_and_that_it_need_not_wait() -> None:
    """The id, that reports come by themselves, and whose task it is."""
    said = spawned("c1")
    assert "c1" in said
    assert "by themselves" in said
    assert "do not do its task" in said


def test_a_child_is_told_who_it_is_and_what_to_do() -> None:
    """Its id, its stack as it has to pass it, the instructions to the letter, and how to end."""
    said = task("c1", ("r1", "p1", "c1"), INSTRUCTIONS)
    assert "child thread c1" in said
    assert '["r1", "p1", "c1"]' in said
    assert "parent thread p1" in said
    assert INSTRUCTIONS in said
    assert "user cannot see" in said
    assert 'close_thread with thread_id "c1"' in said
    assert "report_to_parent" in said


def test_a_thread_for_an_event_is_told_that_it_is_for_this_one_alone() -> None:
    """Its id, its stack, its parent, and how to end."""
    said = event_task("c1", ("r1", "c1"), closes=True)
    assert "child thread c1" in said
    assert '["r1", "c1"]' in said
    assert "parent thread r1" in said
    assert "single event" in said
    assert "user cannot see" in said
    assert 'close_thread with thread_id "c1"' in said


def test_a_thread_for_an_event_is_told_of_no_tool_that_it_lacks() -> None:
    """An agent may subscribe without `Threads()`: a call of close_thread would be one of a tool that is not there."""
    said = event_task("c1", ("r1", "c1"), closes=False)
    assert "single event" in said
    assert "user cannot see" in said
    assert "close_thread" not in said
    assert "report_to_parent" not in said


def test_a_wrong_stack_is_shown_beside_the_right_one() -> None:
    """Both stacks, the thread it really is, that nothing was started, and to stay on task."""
    said = wrong_stack(["r1"], ["r1", "c é"])
    assert "No thread was spawned" in said
    assert '["r1"]' in said
    assert '["r1", "c é"]' in said
    assert "in thread c é" in said
    assert "Stay on the task" in said
    assert "was []" in wrong_stack([], ["r1"])


def test_a_report_names_the_child_and_keeps_its_words() -> None:
    """With and without an end."""
    assert child_report("c1", INSTRUCTIONS, closed=False) == f"The child thread c1 reports:\n\n{INSTRUCTIONS}"
    assert child_report("c1", "all", closed=True) == "The child thread c1 reports and is closed:\n\nall"


def test_a_child_that_closes_without_a_word_is_told_of() -> None:
    """The parent must not wait for it for ever."""
    for nothing in (None, " "):
        assert child_report("c1", nothing, closed=True) == "The child thread c1 is closed; it has nothing to report."


def test_a_report_on_an_event_says_whether_more_will_come() -> None:
    """The subscription is named as active only where it is."""
    said = child_report("c1", "rain", closed=True, event=True, subscription_call_id="call_1")
    assert "which handled an event" in said
    assert "The subscription call_1 stays active" in said
    assert said.endswith("\n\nrain")
    assert "active" not in child_report("c1", "rain", closed=True, event=True)


def test_a_message_of_the_parent_says_whose_it_is() -> None:
    """The words stay as they are."""
    assert parent_message(INSTRUCTIONS) == f"A message from your parent thread:\n\n{INSTRUCTIONS}"


def test_a_parent_learns_that_a_person_has_closed_its_child() -> None:
    """It names the child, and that nothing more is to be waited for."""
    told = child_dismissed("c1")
    assert told == "The child thread c1 was closed by a person. It has ended, and reports nothing more."
