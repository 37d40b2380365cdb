"""Agents for worker processes that are killed. Whatever must outlive a process is in files of `CHAOS_DIR`."""

import asyncio
import os
from pathlib import Path

from perdure.agent import Agent, Agents
from perdure.approval import ApprovalRequest
from perdure.builtins import Threads
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.chaos.model_agents import remembering
from tests.workflows.family import ROOT, Family, Me, Role, spawn

STREAMED = "Let me look into that, one moment please, it takes a while."
DONE = "It is all settled now, thank you for waiting."
RECITED = " ".join(f"verse{number}" for number in range(60))
COUNTED = " ".join(f"word{number}" for number in range(40))

FAMILY = "family"
ASKING = "asking"
TASKS = ("east", "west")


def _root(who: Me) -> Reply | str:
    return spawn(who, *TASKS) if who.answered == 0 else "noted"


_ROLES: dict[str, Role] = {ROOT: _root}
"""The root spawns two children; each of them reports at once, and ends with it."""


def runs(state_dir: Path, tool: str) -> int:
    """How often a tool has begun, over all processes."""
    log = state_dir / "runs.log"
    return log.read_text().split().count(tool) if log.exists() else 0


def agents() -> Agents:
    """One whose tools note every run and whose answers are slow enough to be interrupted.

    One that has children, one that may book only what somebody has approved, and one with context providers.
    """
    state_dir = Path(os.environ["CHAOS_DIR"])
    agent = Agent("chaos", model=ScriptedModel(_script))
    asking = Agent(ASKING, model=ScriptedModel(_asking_script))

    def note(tool: str) -> None:
        # One write in append mode is atomic, so runs of several processes are all counted.
        with (state_dir / "runs.log").open("a") as log:
            log.write(f"{tool}\n")

    @asking.tool(approval="always")
    @agent.tool
    async def book(table: int) -> str:
        """Book a table: done twice it would be booked twice."""
        note("book")
        await asyncio.sleep(0.3)
        return f"booked table {table}"

    asking.client_tool("wonder", description="Ask a person.", parameters={"type": "object", "properties": {}})

    @asking.tool(approval=lambda arguments: ApprovalRequest(expires_s=arguments["seconds"]))
    async def hurry(seconds: float) -> str:
        """Do something that has to be approved soon."""
        note("hurry")
        return f"hurried for {seconds} s"

    @agent.tool(retry_safe=True)
    async def look(city: str) -> str:
        """Look something up: done twice it does no harm."""
        note("look")
        await asyncio.sleep(0.3)
        return f"{city} is sunny"

    return Agents([agent, Agent(FAMILY, model=Family(_ROLES), toolsets=[Threads()]), asking, remembering(state_dir)])


def _script(asked: Asked) -> Reply:
    """`recite` takes some 5 s and `count` some 2 s; all other words bring a call of each tool, then an answer."""
    if asked.user_text.startswith("recite"):
        return Reply(RECITED, chunk_chars=4, delay_s=0.04)
    if asked.user_text.startswith("count"):
        return Reply(COUNTED, chunk_chars=6, delay_s=0.04)
    if asked.results:
        return Reply(DONE, chunk_chars=6, delay_s=0.03)
    calls = Call("book", {"table": 7}), Call("look", {"city": "Paris"})
    return Reply(STREAMED, *calls, chunk_chars=6, delay_s=0.03)


def _asking_script(asked: Asked) -> Reply:
    """Words that begin with a tool bring a call of it, which waits for people; all others an answer to them."""
    if asked.results:
        return Reply(DONE, chunk_chars=6, delay_s=0.03)
    match asked.user_text.split():
        case ["book", *_]:
            return Reply(Call("book", {"table": 7}))
        case ["wonder"]:
            return Reply(Call("wonder"))
        case ["hurry", seconds]:
            return Reply(Call("hurry", {"seconds": float(seconds)}))
        case _:
            pass
    return Reply(f"An answer to {asked.user_text}.", chunk_chars=6, delay_s=0.03)
