"""Ids as people type and read them: a beginning is enough where no other has it."""

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Final

from perdure.cli.printable import one_line
from perdure.client import PerdureClient
from perdure.codec import clip
from perdure.errors import UsageError

SHORT_CHARS: Final = 8
"""Ids are shown no shorter: what is unique today is then still so tomorrow, most likely."""

_NAMED: Final = 5
_TYPED_CHARS: Final = 60


def named(typed: str, known: Collection[str], what: str) -> str:
    """The id that was typed, whole or by its beginning.

    Raises:
        UsageError: if none begins like this, or several do.
    """
    if typed in known:
        return typed
    # Nothing is the beginning of every id: an empty variable of a script must not delete the only message.
    found = sorted(id for id in set(known) if typed and id.startswith(typed))
    if len(found) == 1:
        return found[0]
    shown = clip(typed, _TYPED_CHARS)
    if not found:
        raise UsageError(f"No {what} of this thread has the id {shown!r}, or one that begins so.")
    several = ", ".join(map(one_line, found[:_NAMED])) + (" and others" if len(found) > _NAMED else "")
    raise UsageError(f"{len(found)} {what}s begin with {shown!r}: {several}. Give more of the id.")


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """The beginning of each id that no other has, at least `SHORT_CHARS` of it."""
    ordered = sorted(set(ids))
    # Of all ids the neighbours in this order have most in common with one.
    common = [0, *(_common(one, other) for one, other in pairwise(ordered)), 0]
    return {
        id: id[: max(SHORT_CHARS, before + 1, after + 1)]
        for id, before, after in zip(ordered, common, common[1:], strict=False)
    }


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def message_named(client: PerdureClient, thread_id: str, typed: str) -> str:
    """The message of a thread, on whatever branch, whose id begins as it was typed. Raises as `named` does."""
    tree = await client.store.load_tree(thread_id, parts=False)
    return named(typed, [one.message.id for one in tree.messages], "message")
