"""An agent with context providers whose conversation outgrows its model, for worker processes that are killed."""

import os
import signal
from pathlib import Path

from perdure.agent import Agent
from perdure.compaction import Compaction
from perdure.context import Context, ProviderRun, RunOutcome
from perdure.testing import Asked, Failure, Reply, ScriptedModel

REMEMBERING = "remembering"
SUMMARY = "They have met."
LONG = "too much for the model"
FITS = "now it fits"


def die_at(point: str) -> None:
    """The process ends here and now, if it is doomed to."""
    if os.environ.get("CHAOS_DOOM") == point:
        os.kill(os.getpid(), signal.SIGKILL)


class Memory:
    """Says what it remembers, and counts turns; it notes each time that it is asked or told."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self.name = name
        self._state_dir = state_dir

    async def before_run(self, run: ProviderRun) -> Context:
        """Something to read."""
        self._note(f"asked-{self.name}-{run.turn}")
        die_at("in hook before")
        return Context(messages=[f"{self.name} remembers {run.state.get('turns', 0)} turns"])

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """One more."""
        run.state["turns"] = run.state.get("turns", 0) + 1
        self._note(f"told-{self.name}-{run.turn}-{outcome.result}")
        die_at(f"in hook after of {self.name}")

    def _note(self, what: str) -> None:
        with (self._state_dir / "runs.log").open("a") as log:
            log.write(f"{what}\n")


def remembering(state_dir: Path) -> Agent:
    """Its model refuses the words LONG as long as the conversation begins with anything but the summary."""
    compaction = Compaction(keep=0.0, model=ScriptedModel(_sum_up))
    providers = [Memory(state_dir, "first"), Memory(state_dir, "second")]
    return Agent(REMEMBERING, model=ScriptedModel(_answer), context=providers, compaction=compaction)


def _sum_up(_: Asked) -> Reply:
    die_at("in summary")
    return Reply(SUMMARY, chunk_chars=4, delay_s=0.01)


def _answer(asked: Asked) -> Reply:
    if not asked.user_text.startswith(LONG):
        return Reply(f"you said {asked.user_text}")
    is_short = any(SUMMARY in str(message) for message in asked.messages)
    return Reply(FITS) if is_short else Reply("never", failures=[Failure(status=413)])
