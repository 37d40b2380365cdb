"""The rules V1 to V8 as a check over a view, independent of the code that builds it."""

from collections.abc import Iterator
from typing import cast

from perdure.codec import loads_object
from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserFile, UserText

View = tuple[Request | Response, ...]


def violations(view: View, thoughts: frozenset[tuple[str, str | None]] | None = None) -> list[str]:
    """What is wrong with the view, each beginning with the rule's name; `thoughts` are those that really occurred."""
    return [
        *_pairing(view),
        *_ids(view),
        *_texts(view),
        *_arguments(view),
        *_order(view),
        *_reasoning(view, thoughts),
        *_encodable(view),
    ]


def items(view: View) -> list[object]:
    """Every item in order: what prefix stability is about."""
    return [item for message in view for item in message.items]


def shown_files(view: View) -> list[UserFile]:
    """Every file that goes along, of the user's side and in results, in order."""
    files: list[UserFile] = []
    for item in items(view):
        if isinstance(item, UserFile):
            files.append(item)
        elif isinstance(item, Result):
            files.extend(item.files)
    return files


def _calls(message: Request | Response | None) -> list[Call]:
    return [item for item in message.items if isinstance(item, Call)] if isinstance(message, Response) else []


def _results(message: Request | Response | None) -> list[Result]:
    return [item for item in message.items if isinstance(item, Result)] if isinstance(message, Request) else []


def _pairing(view: View) -> Iterator[str]:
    for before, message in zip((None, *view), (*view, None), strict=True):
        asked = [call.call_id for call in _calls(before)]
        answered = [result.call_id for result in _results(message)]
        if set(asked) - set(answered) or [i for i in answered if i in asked] != asked:
            yield f"V1: calls {asked} are answered by {answered}"
        if set(answered) - set(asked):
            yield f"V2: results {answered} belong to calls {asked}"


def _ids(view: View) -> Iterator[str]:
    found = [call.call_id for message in view for call in _calls(message)]
    if len(set(found)) < len(found) or not all(found):
        yield f"V3: ids {found}"


def _texts(view: View) -> Iterator[str]:
    for item in items(view):
        if isinstance(item, UserText | ModelText | Result) and not item.text.strip():
            yield f"V4: blank {item}"
    if not all(message.items for message in view):
        yield "V4: an empty message"


def _arguments(view: View) -> Iterator[str]:
    for message in view:
        for call in _calls(message):
            try:
                loads_object(call.arguments)
            except ValueError:
                yield f"V5: {call}"


def _order(view: View) -> Iterator[str]:
    for message in view:
        kinds = [isinstance(item, Result) for item in message.items]
        if isinstance(message, Request) and kinds != sorted(kinds, reverse=True):
            yield f"V6: {message}"


def _reasoning(view: View, thoughts: frozenset[tuple[str, str | None]] | None) -> Iterator[str]:
    for message in view:
        if message.items and isinstance(message.items[-1], Reasoning):
            yield f"V7: ends on a thought: {message}"
        for item in message.items:
            if isinstance(item, Reasoning) and thoughts is not None and (item.text, item.signature) not in thoughts:
                yield f"V7: changed: {item}"


def _encodable(view: View) -> Iterator[str]:
    for item in items(view):
        match item:
            case UserText() | ModelText():
                strings = [item.text]
            case Result():
                strings = [item.call_id, item.tool, item.text, *(file.media_type for file in item.files)]
            case Call():
                strings = [item.call_id, item.tool, *_strings_of(item.arguments)]
            case Reasoning():
                strings = [item.text, item.signature or ""]
            case UserFile():
                strings = [item.name or ""]
            case _:
                strings = []
        for string in strings:
            try:
                string.encode("utf-8")
            except UnicodeEncodeError:
                yield f"V8: {item!r}"


def _strings_of(arguments: str) -> Iterator[str]:
    """The text itself, and every string in it, since half of a pair may stand there as an escape."""
    yield arguments
    try:
        waiting: list[object] = [loads_object(arguments)]
    except ValueError:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            mapping = cast("dict[str, object]", value)
            waiting.extend([*mapping, *mapping.values()])
        elif isinstance(value, list):
            waiting.extend(cast("list[object]", value))
