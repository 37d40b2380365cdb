"""What can be wrong with a conversation after a crash, found without knowing what was said in it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from perdure.builtins import SPAWN_THREAD
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.records import Path
from perdure.view import EVENT_TOOL, Call, ModelText, Request, Response, Result, UserText, view


def faults(messages: Sequence[Message]) -> list[str]:
    """One sentence for each fault of a settled conversation, its messages oldest first; empty if it is sound."""
    found = _repeated("message id", (message.id for message in messages))
    found += _repeated(
        "input", (f"{message.input_id} of {message.thread_id}" for message in messages if message.input_id)
    )
    found += [
        f"turn {message.turn} is still {message.status.state}"
        for message in messages
        if message.role == "assistant" and message.status.state not in ("complete", "incomplete")
    ]
    for message in messages:
        found += _call_faults(message)
    return found + _view_faults(messages)


def _repeated(what: str, values: Iterable[str]) -> list[str]:
    return [f"{what} {value} is there {count} times" for value, count in Counter(values).items() if count > 1]


def _call_faults(message: Message) -> list[str]:
    """Every call has one result, and the results of a step follow its calls in their order."""
    calls = [(part.step, part.call_id) for part in message.parts if isinstance(part, ToolCallPart)]
    results = [(part.step, part.call_id) for part in message.parts if isinstance(part, ToolResultPart)]
    return [] if calls == results else [f"turn {message.turn} has the calls {calls} and the results {results}"]


def _view_faults(messages: Sequence[Message]) -> list[str]:
    """What a provider would refuse: requests and responses take turns, and every call is answered at once."""
    found: list[str] = []
    shown = view(Path(messages=tuple(messages)))
    for before, item in zip((None, *shown), shown, strict=False):
        if type(before) is type(item) and not _is_told(item):
            found.append(f"two of {type(item).__name__} follow each other")
        texts = [part.text for part in item.items if isinstance(part, UserText | ModelText)]
        if any(not text.strip() for text in texts):
            found.append("a text of the view is blank")
        asked = (
            [part.call_id for part in before.items if isinstance(part, Call)] if isinstance(before, Response) else []
        )
        answered = (
            [part.call_id for part in item.items if isinstance(part, Result)] if isinstance(item, Request) else []
        )
        if isinstance(item, Request) and asked != answered:
            found.append(f"the view asks {asked} and answers {answered}")
    return found


def _is_told(item: Request | Response) -> bool:
    """Whether it is an event, or the call that spawned the thread: nobody said that, so it may follow an answer."""
    first = item.items[0] if item.items else None
    return isinstance(first, Call) and first.tool in (EVENT_TOOL, SPAWN_THREAD)
