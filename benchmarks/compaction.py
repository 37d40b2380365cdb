"""Latency of turns with and without a compaction beside them, and whether it loses or doubles a word.

Several conversations have turns in a closed loop, first undisturbed, then while a compaction runs in each of them; this
comes in rounds, so that whatever else the machine does touches both alike.
"""

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.agents import COMPACTION_S, QUESTION
from benchmarks.conversation import PATIENCE_S, Conversation
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure.messages import TextPart
from perdure.watch import answer_text

SHARE = 0.75
"""Of the time that a compaction takes: so long turns are begun beside it, all of which it is to outlast."""

POLL_S = 0.02


@dataclass
class Talk:
    """A conversation, and what it has measured."""

    conversation: Conversation
    said: list[str] = field(default_factory=list[str])
    alone: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    compactions: int = 0


async def measure(arguments: argparse.Namespace) -> Figures:
    """Run the rounds, and then read all that was said."""
    async with stage("compacting") as running:
        talks = [Talk(Conversation(running.client, f"t{number}")) for number in range(arguments.conversations)]
        for talk in talks:
            await _turn(talk)
        for _ in range(arguments.rounds):
            await asyncio.gather(*(_turns(talk, talk.alone) for talk in talks))
            before = [await _summary(running, talk) for talk in talks]
            await asyncio.gather(*(running.client.compact(talk.conversation.thread_id) for talk in talks))
            await asyncio.gather(*(_turns(talk, talk.beside) for talk in talks))
            # Not while the others are measured: it reads the store again and again.
            await asyncio.gather(*(_landed(running, talk, was) for talk, was in zip(talks, before, strict=True)))
        for talk in talks:
            await talk.conversation.close()
        lost, doubled = await _lost_and_doubled(running, talks)
    alone = [latency for talk in talks for latency in talk.alone]
    beside = [latency for talk in talks for latency in talk.beside]
    return {
        "conversations": arguments.conversations,
        "compactions": sum(talk.compactions for talk in talks),
        "turns": len(alone) + len(beside),
        "p50_ms": rounded(quantile(alone, 0.5) * 1000),
        "p95_ms": rounded(quantile(alone, 0.95) * 1000),
        "beside_p50_ms": rounded(quantile(beside, 0.5) * 1000),
        "beside_p95_ms": rounded(quantile(beside, 0.95) * 1000),
        "p95_ratio": rounded(quantile(beside, 0.95) / quantile(alone, 0.95)),
        "lost": lost,
        "doubled": doubled,
    }


async def _landed(running: Stage, talk: Talk, before: str | None) -> None:
    """Wait until the compaction is over; readers are told nothing of it."""
    async with asyncio.timeout(PATIENCE_S):
        while (after := await _summary(running, talk)) == before:  # noqa: ASYNC110 - see above
            await asyncio.sleep(POLL_S)
    talk.compactions += after is not None


async def _summary(running: Stage, talk: Talk) -> str | None:
    path = await running.client.store.load_history_with_ancestors(talk.conversation.thread_id)
    return path.summary.id if path.summary else None


async def _turns(talk: Talk, latencies: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + COMPACTION_S * SHARE
    while clock() < end:
        latencies.append(await _turn(talk))


async def _turn(talk: Talk) -> float:
    talk.said.append(f"{len(talk.said)} {QUESTION}")
    return await talk.conversation.turn(talk.said[-1])


async def _lost_and_doubled(running: Stage, talks: list[Talk]) -> tuple[int, int]:
    """Words and answers that are not there any more, and those that are there more than once."""
    lost = doubled = 0
    for talk in talks:
        history = await running.client.history(talk.conversation.thread_id)
        answered = {message.parent_id for message in history if message.role == "assistant" and answer_text(message)}
        words = [message for message in history if message.role == "user"]
        texts = Counter("".join(part.text for part in one.parts if isinstance(part, TextPart)) for one in words)
        lost += sum(text not in texts for text in talk.said)
        lost += sum(message.id not in answered for message in words)
        doubled += sum(count - 1 for count in texts.values())
        doubled += max(len(history) - 2 * len(talk.said), 0)
    return lost, doubled


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4, help="of turns without and with a compaction")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _arguments()
    run(lambda: measure(arguments))
