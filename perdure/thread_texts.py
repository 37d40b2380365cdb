"""What a model is told about threads: which one it is in, what became of a child, what others say to it."""

import json
from collections.abc import Sequence


def identity(root_thread_id: str) -> str:
    """A sentence for the instructions of a root thread and all threads below it; always the same, for prompt caches.

    A child thread has its parent's instructions, so it is told here that what is said later counts.
    """
    return (
        f"You are in the root thread {root_thread_id}, and your stack of threads is {_stack((root_thread_id,))}, "
        "unless a result of spawn_thread below tells you that you are in a child thread: then the last one that "
        "does counts."
    )


def ownership() -> str:
    """How a thread knows what it owns; the same in all threads and at all times, for prompt caches.

    A list would change with every child and every subscription, and all that follows the instructions would be billed
    again. So the list is the conversation itself, which only grows; where it is cut, the note in its place is one.
    """
    return (
        "The child threads and subscriptions that you have are those that results in this conversation told you of "
        "(in a child thread: after it told you that you are in it), each until it says that it is closed, final, "
        "paused or cancelled. Where an older part of the conversation was left out, the note in its place lists those "
        "that go on."
    )


def spawned(child_id: str) -> str:
    """The result of `spawn_thread` as the parent sees it."""
    return (
        f"The child thread {child_id} was started and works on the task now. You are still in your own thread. The "
        "child's reports come to you by themselves, as events; do not wait for them actively and do not do its task."
    )


def task(child_id: str, stack: Sequence[str], instructions: str) -> str:
    """The result of the same call as the child sees it: who it is and what to do.

    Args:
        child_id: the child.
        stack: the ids of all threads from the root to the child.
        instructions: the parent's, which stay as they are.
    """
    return (
        f"{_you_are(child_id, stack)} What is above is the conversation of your parent thread {_parent(stack)}, which "
        "goes on without you. "
        f"Your task is this alone:\n\n{instructions}\n\n"
        "The user cannot see what you write here. What your parent should know before you are done, tell it with "
        f'report_to_parent. When you are done, call close_thread with thread_id "{child_id}" and your report in '
        "report_to_parent; if the task cannot be done, do the same and say why."
    )


def event_task(child_id: str, stack: Sequence[str], *, closes: bool) -> str:
    """The same in a thread that was started for one event of a subscription.

    Args:
        child_id: the child.
        stack: the ids of all threads from the root to the child.
        closes: it has the tools by which threads report and close; not every agent that subscribes does.
    """
    parent = _parent(stack)
    end = (
        "If your parent should know something of it, put that in report_to_parent of close_thread. Then or otherwise, "
        f'call close_thread with thread_id "{child_id}" when you are done.'
        if closes
        else "Neither can your parent: what is to be done, do it with your tools. Then end with a word on what you did."
    )
    return (
        f"{_you_are(child_id, stack)} It was started for a single event of a subscription of your parent thread "
        f"{parent}, whose conversation is above. The event follows. Handle it as that conversation asks for; further "
        f"events are not for you.\n\nThe user cannot see what you write here. {end}"
    )


def wrong_stack(given: Sequence[str], real: Sequence[str]) -> str:
    """The error of `spawn_thread` when `child_of` is not the stack of the thread that called it."""
    return (
        f"No thread was spawned: `child_of` was {_stack(given)}, but you are in thread {real[-1]}, whose stack is "
        f"{_stack(real)}. Stay on the task of this thread. If that needs a child thread, call spawn_thread again with "
        "this stack."
    )


def child_report(
    child_id: str, report: str | None, *, closed: bool, event: bool = False, subscription_call_id: str | None = None
) -> str:
    """What the parent reads when a child reports, closes, or both.

    Args:
        child_id: the child.
        report: its words, which stay as they are; None if it closed without any.
        closed: the child has ended.
        event: the child was started for an event of a subscription.
        subscription_call_id: the call that subscribed, if the subscription goes on.
    """
    child = f"The thread {child_id}, which handled an event," if event else f"The child thread {child_id}"
    words = report is not None and report.strip()
    did = ("reports and is closed" if words else "is closed; it has nothing to report") if closed else "reports"
    if subscription_call_id is not None:
        did += f". The subscription {subscription_call_id} stays active"
    return f"{child} {did}:\n\n{report}" if words else f"{child} {did}."


def child_dismissed(child_id: str) -> str:
    """What the parent reads when a person has closed a child."""
    return f"The child thread {child_id} was closed by a person. It has ended, and reports nothing more."


def parent_message(text: str) -> str:
    """What a child reads when its parent sends a message; the words stay as they are."""
    return f"A message from your parent thread:\n\n{text}"


def _you_are(child_id: str, stack: Sequence[str]) -> str:
    return f"You are now in the child thread {child_id}, and your stack of threads is {_stack(stack)}."


def _parent(stack: Sequence[str]) -> str:
    return stack[-2]


def _stack(stack: Sequence[str]) -> str:
    """As the model has to write it."""
    return json.dumps(list(stack), ensure_ascii=False)
