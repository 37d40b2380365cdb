"""B39: request n is the beginning of request n+1, byte for byte, so that providers' prompt caches serve it."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.activities.long_talk import SUMMARY_AFTER, TOOLS, TURNS, requests

_MESSAGES: Final = '"messages":'


def split(body: bytes) -> tuple[str, str]:
    """The messages of a request as they are in its bytes, without the closing bracket; and all the rest."""
    text = body.decode("utf-8")
    start = text.index(_MESSAGES) + len(_MESSAGES)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start : end - 1], text[:start] + text[end:]


async def test_b39_each_request_is_the_beginning_of_the_next_except_at_the_summary() -> None:
    """B39: with tools, large results, stored context, a summary in the middle, and a new process after it."""
    sent = [split(body) for body in await requests()]
    assert len(sent) == 2 * TURNS
    broken = [number for number, (a, b) in enumerate(pairwise(sent)) if not b[0].startswith(a[0])]
    # The first request after the summary is the first one of the next turn.
    assert broken == [2 * SUMMARY_AFTER + 1]
    assert len({rest for _, rest in sent}) == 1
    names = [tool["function"]["name"] for tool in json.loads(sent[0][1].replace(_MESSAGES, _MESSAGES + "0"))["tools"]]
    assert names == [*TOOLS, "read_result"]
    last = sent[-1][0]
    assert last.count("They spoke of the weather.") == 1
    assert [f"It is turn {turn}." in last for turn in range(1, TURNS + 1)] == [turn > 3 for turn in range(1, TURNS + 1)]


@pytest.mark.slow
async def test_b39_the_bytes_are_the_same_in_every_process() -> None:
    """B39: whatever the hash seed; the control is that a seed changes the order of a set of the same names."""
    expected = [hashlib.sha256(body).hexdigest() for body in await requests()]
    for seed in ("1", "2"):
        assert json.loads(_printed(seed, "-m", "tests.activities.long_talk")) == expected
    assert len({_printed(seed, "-c", f"print(list(set({TOOLS!r})))") for seed in ("1", "2", "3")}) > 1


def _printed(seed: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout
