"""What a compaction is to do with a path: where to cut it, and how long what it leaves may be. Pure."""

from dataclasses import dataclass, replace
from typing import Final

from perdure.compaction import Compaction
from perdure.contract import CompactRequest
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.path_size import chars_per_token, message_chars, path_chars
from perdure.records import Path, Summary
from perdure.summary_cut import Cut, choose, cut, opening, places, up_to, words_of
from perdure.summary_text import Facts, carried, clipped

MIN_SUMMARY_CHARS: Final = 2_000
"""A summary may be so long however short the conversation is, if the window has room for four of them."""

MIN_GAIN: Final = 0.05
"""What is left out has to be this share of the window, or it is not worth a request that no cache knows."""

OPENING_CHARS: Final = 1_000
WORDS_CHARS: Final = 4_000
TASK_CHARS: Final = 8_000


@dataclass(frozen=True)
class Plan:
    """What is left out, and how long what takes its place may be.

    Attributes:
        cut: where.
        chars_per_token: the estimate that lengths come from.
        limit: characters of a summary, or of the words that a trace keeps.
        facts: what is known exactly of what is left out.
    """

    cut: Cut
    chars_per_token: float
    limit: int
    facts: Facts


def plan(path: Path, request: CompactRequest, compaction: Compaction, window: int | None) -> Plan | None:
    """Where to cut; None if there is nothing that could be left out, or too little to be worth it.

    Shares of the window become characters by `chars_per_token`. Where nobody knows the window, the conversation is as
    long as it: a model that refuses a request has been asked for more. When it is forced, a conversation that is
    shorter than the window is cut by shares of what there is.

    Args:
        path: the path that ends with the message of the request.
        request: which says up to where.
        compaction: how.
        window: the tokens of the model's context window, None if nobody knows.
    """
    ratio = chars_per_token(path)
    given = up_to(path, request.message_id, request.parts)
    size = path_chars(given)
    known = size if window is None else int(window * ratio)
    full = min(known, size) if request.forced else known
    room = (compaction.at + compaction.keep) / 2 * full
    place = choose(places(given, request.thread_id), compaction.keep * full, room)
    if place is None:
        return None
    made = cut(given, place)
    if not request.forced and sum(map(message_chars, made.covered.messages)) < MIN_GAIN * full:
        return None
    # After this the conversation has taken `keep`, and half of what is between that and `at`: there is room to go on.
    limit = int((compaction.at - compaction.keep) / 2 * full)
    limit = max(limit, min(MIN_SUMMARY_CHARS, known // 4) if window is not None else MIN_SUMMARY_CHARS)
    quoted = max(limit, TASK_CHARS * 2 if window is None else known // 8)
    return Plan(made, ratio, limit, _facts(made, request.thread_id, quoted))


def _facts(made: Cut, thread_id: str, limit: int) -> Facts:
    """What is known exactly; what is quoted is cut off where the window is small, to about `limit` characters."""
    earlier = made.covered.summary
    known = Facts() if earlier is None else carried(earlier.text)
    covered = made.covered.messages
    calls = sum(isinstance(part, ToolCallPart) for message in covered for part in message.parts)
    task = _task(covered, thread_id) or _own_task(known, earlier, thread_id)
    return replace(
        known,
        messages=known.messages + made.messages,
        calls=known.calls + calls,
        opening=known.opening or clipped(opening(made.covered), min(OPENING_CHARS, limit // 4)),
        task=clipped(task, min(TASK_CHARS, limit // 2)),
        words=clipped(made.words, min(WORDS_CHARS, limit // 2)),
    )


def _task(covered: tuple[Message, ...], thread_id: str) -> str:
    """What a child thread was told when it was made: without it, it would take itself for its parent."""
    seed = next((one for one in covered if one.input_id == "seed" and one.thread_id == thread_id), None)
    if seed is None:
        return ""
    told = [part.content for part in seed.parts if isinstance(part, ToolResultPart)]
    return "\n\n".join(text for text in (*told, words_of(seed)) if text)


def _own_task(known: Facts, earlier: Summary | None, thread_id: str) -> str:
    """That of the summary before, unless it is of a thread above: that one's task is not this one's."""
    return known.task if earlier is not None and earlier.thread_id == thread_id else ""
