"""kill -9 of the worker while answers stream and while tools run: how soon they are finished, and whether all is right.

Threads are killed in their second turn. While no worker runs, each gets one more message to answer later, and the
message of its turn a second time. A worker is started again at once.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from benchmarks.agents import ANSWER, PHASE_S, RUNS
from benchmarks.conversation import Conversation
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure.messages import Message
from perdure.watch import View, answer_text, is_settled

Kind = Literal["stream", "tool"]

MODEL_S: Final[dict[Kind, float]] = {"stream": PHASE_S, "tool": 0.0}
"""The model's own time after the kill: a stream starts over; after a tool the answer comes at once."""

GREETING, LATER = "hello", "later"


async def measure(threads: int) -> Figures:
    """Kill the worker twice, once for each kind of work."""
    with TemporaryDirectory(prefix="perdure-benchmark-runs-") as runs:
        async with stage("crash", {RUNS: runs}) as running:
            resumed = {kind: await _crash(running, kind, threads) for kind in MODEL_S}
            lost = doubled = 0
            for kind in MODEL_S:
                for number in range(threads):
                    history = await running.client.history(f"{kind}-{number}")
                    words = [GREETING, f"{kind} {kind}-{number}", LATER]
                    lost += _lost(history, words)
                    doubled += _doubled(history, words)
        counts = _runs(Path(runs))
    if len(counts) != 2 * threads:
        raise RuntimeError(f"of {2 * threads} tool calls only these ran: {sorted(counts)}")
    return {
        "threads": threads,
        "resume_s": rounded(max(max(took) for took in resumed.values())),
        "lost": lost,
        "doubled": doubled,
        "tools_run_twice": sum(count > 1 for count in counts.values()),
        **{f"mid_{kind}": _spread(took) for kind, took in resumed.items()},
    }


async def _crash(running: Stage, kind: Kind, threads: int) -> list[float]:
    """Seconds from the kill to the finished answer, for each thread, without the model's own time."""
    clock = asyncio.get_running_loop().time
    conversations = [Conversation(running.client, f"{kind}-{number}") for number in range(threads)]
    await asyncio.gather(*(conversation.turn(GREETING) for conversation in conversations))
    message_ids = await asyncio.gather(*(_begin(kind, conversation) for conversation in conversations))
    await asyncio.sleep(random.uniform(0, PHASE_S / 2))
    killed = clock()
    await running.worker.kill()
    await running.worker.start()
    for conversation in conversations:
        await conversation.post(LATER, mode="queue")
        await _begin(kind, conversation, wait=False)

    async def resumed(conversation: Conversation, message_id: str) -> float:
        await conversation.settled(message_id)
        return clock() - killed - MODEL_S[kind]

    took = await asyncio.gather(*map(resumed, conversations, message_ids))
    for conversation in conversations:
        await conversation.until(lambda view: _has_answered(view, LATER))
        await conversation.close()
    return list(took)


async def _begin(kind: Kind, conversation: Conversation, *, wait: bool = True) -> str:
    """Post the words of the turn, always under the same id, and wait until its work is under way."""
    words = f"{kind} {conversation.thread_id}"
    message_id = await conversation.post(words, id=f"{conversation.thread_id}-words")
    if wait:
        await conversation.until(_streams if kind == "stream" else _runs_slow_tool)
    return message_id


def _streams(view: View) -> bool:
    return view.live is not None and bool(view.live.parts)


def _runs_slow_tool(view: View) -> bool:
    """The slow tool runs, and the quick one, whose result must not be lost, is done."""
    calls = list(view.calls.values())
    return len(calls) == 2 and sum(call.result is not None for call in calls) == 1


def _has_answered(view: View, words: str) -> bool:
    asked = next((message for message in view.messages if answer_text(message) == words), None)
    answer = view.answer(asked.id) if asked else None
    return answer is not None and is_settled(answer)


def _lost(history: Sequence[Message], words: list[str]) -> int:
    """Words that are not there, or that no complete answer follows."""
    answered = {
        answer_text(asked)
        for asked, answer in pairwise(history)
        if asked.role == "user" and answer.role == "assistant" and answer.status.state == "complete"
        if answer_text(answer).startswith(ANSWER)
    }
    return sum(text not in answered for text in words)


def _doubled(history: Sequence[Message], words: list[str]) -> int:
    """Messages too many, and answers that say more than the model said."""
    longer = sum(len(answer_text(message)) > len(ANSWER) for message in history if message.role == "assistant")
    return max(len(history) - 2 * len(words), 0) + longer


def _runs(folder: Path) -> dict[str, int]:
    """How often each tool call ran."""
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def _spread(took: list[float]) -> Figures:
    return {"p50_s": rounded(quantile(took, 0.5)), "max_s": rounded(max(took))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=5, help="threads at each kill")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.threads))
