"""The problems of a thread: what has happened, counted where it happens again, and what is wrong with its tools now."""

from collections.abc import Iterable
from typing import Final

from perdure.codec import Text, Wire, clip

KEPT: Final = 10
SENTENCE_CHARS: Final = 500


class Problem(Wire):
    """Something that went wrong, `count` times. Those with the same `about`, or else the same sentence, are one."""

    sentence: Text
    about: Text = ""
    count: int = 1

    @property
    def key(self) -> str:
        """What makes another problem the same."""
        return self.about or self.sentence

    @property
    def told(self) -> str:
        """The sentence of the last one, and how many there were."""
        return self.sentence if self.count == 1 else f"{self.sentence} ({self.count:,} like this so far.)"


class Problems(Wire):
    """All of them, bounded: the one that has not happened for the longest time goes first.

    `happened` are oldest first; they are over when what they are about works again. `tools` are what is wrong with the
    tools that a model was offered last; they are over when they are not said again.
    """

    happened: tuple[Problem, ...] = ()
    tools: tuple[Text, ...] = ()

    @property
    def told(self) -> tuple[Text, ...]:
        """The sentences, the newest last."""
        return (*self.tools, *(problem.told for problem in self.happened))

    def adding(self, problem: Problem) -> "Problems":
        """With one more. Of a stream of the same only the last one is kept, so that it hides no other problem."""
        problem = problem.with_(sentence=clip(problem.sentence, SENTENCE_CHARS))
        count = problem.count + sum(known.count for known in self.happened if known.key == problem.key)
        others = (known for known in self.happened if known.key != problem.key)
        return self.with_(happened=(*others, problem.with_(count=count))[-KEPT:])

    def without(self, about: str) -> "Problems":
        """Without what was wrong with this: it works again."""
        return self.with_(happened=tuple(known for known in self.happened if known.about != about))

    def offering(self, tools: Iterable[str]) -> "Problems":
        """With this wrong with the tools, and nothing else."""
        return self.with_(tools=tuple(clip(sentence, SENTENCE_CHARS) for sentence in tools)[:KEPT])

    def before(self, newer: "Problems") -> "Problems":
        """With what has happened since."""
        problems = self
        for problem in newer.happened:
            problems = problems.adding(problem)
        return problems.offering(newer.tools or self.tools)
