"""The agents of the recorded threads: what they say follows from what they are told."""

import asyncio
import re
from datetime import timedelta
from typing import Any

from perdure.agent import Agent
from perdure.approval import ApprovalRequest
from perdure.builtins import Threads, Timers
from perdure.compaction import Compaction
from perdure.context import ProviderRun, RunOutcome
from perdure.limits import Limits
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel, Think
from perdure.tools import Toolset

SUMMARISER = ScriptedModel(["hello was said once", "hello was said twice"])
STORY = " ".join(f"word{number}" for number in range(30))
_TASK = re.compile(r"now in the child thread (?P<child>\S+),.*this alone:\n\n(?P<words>.*?)\n\n", re.DOTALL)


def script(asked: Asked) -> Reply:
    """What the model answers follows from the last words of the user, or from the task of a child thread."""
    if asked.results and (task := _TASK.search(asked.results[-1])):
        return _child(task["child"], task["words"])
    match asked.user_text.split():
        case ["think", *_]:
            return Reply(Think("let me see", "signed"), "thought")
        case ["story", *_]:
            return Reply(STORY, chunk_chars=6, delay_s=0.05)
        case ["look", *_] if not asked.results:
            cities = Call("look", {"city": "Paris"}), Call("look", {"city": "Rome"})
            return Reply("looking", *cities, Call("no_such_tool"))
        case ["hang", *_] if not asked.results:
            return Reply(Call("look", {"city": "Oslo"}), Call("hang"))
        case ["confirm", *_] if not asked.results:
            return Reply(Call("confirm", {"question": "Really?"}))
        case ["pay", *amounts] if not asked.results:
            return Reply(*(Call("pay", {"amount": int(amount)}) for amount in amounts))
        case ["hurry", *_] if not asked.results:
            return Reply(Call("hurry"))
        case ["loop", *_]:
            return Reply(Call("look", {"city": "Bonn"}))
        case ["retry", *_]:
            return Reply("at last", failures=[Failure(503), Failure(None, after_chunks=1)], chunk_chars=4)
        case ["fail", *_]:
            return Reply("never", failures=[Failure(401)] * 9)
        case ["too", "much"] if "said twice" not in str(asked.messages[0]):
            return Reply("never", failures=[Failure(413)])
        case ["sleep", seconds] if not asked.results:
            return Reply(Call("sleep", {"seconds": float(seconds)}))
        case ["wait"] if not asked.results:
            return Reply(Call("sleep_until_event_or_input"))
        case ["yesterday"] if not asked.results:
            return Reply(Call("sleep_until", {"date": "2001-02-03", "time": "04:05"}))
        case ["spawn", parent, *tasks] if not asked.results:
            return Reply(*(Call("spawn_thread", {"instructions": task, "child_of": [parent]}) for task in tasks))
        case ["tell", child] if not asked.results:
            return Reply(Call("send_message_to_child", {"thread_id": child, "message": "hello"}))
        case ["close", thread_id] if not asked.results:
            return _closing(thread_id)
        case _:
            return Reply(f"you said {asked.user_text}")


def _child(thread_id: str, task: str) -> Reply:
    return Reply("on and on", hang=True) if task == "toil" else _closing(thread_id)


def _closing(thread_id: str) -> Reply:
    report = Call("report_to_parent", {"report": "nearly done"})
    return Reply(report, Call("close_thread", {"thread_id": thread_id, "report_to_parent": "done"}))


def agents() -> list[Agent]:
    """One agent for most paths, and those that need limits of their own, named after their path."""
    return [
        _agent("plain", Limits()),
        _agent("limit", Limits(steps=2)),
        _agent("continue_as_new", Limits(history_events=30)),
        _agent("store_slow", Limits(history_events=30)),
        _agent("hibernation", Limits(idle=timedelta(seconds=1))),
        _agent("pauses", Limits(history_events=60)),
        _agent("sleep", Limits(), Timers()),
        _agent("sleep_on", Limits(history_events=10), Timers()),
        _agent("children", Limits(), Threads()),
        _agent("stop_children", Limits(), Threads()),
        _agent("subscription", Limits(history_events=80, subscriptions=1, events_per_subscription=4)),
        _agent("hooks", Limits(), context=[Diary()]),
        _agent("shortened", Limits(), compaction=Compaction(context_window=1_000, keep=0.0, model=SUMMARISER)),
    ]


class Diary:
    """Counts the turns that it was told of; of the first that it is told of as `fail` it fails once."""

    name = "diary"

    def __init__(self) -> None:
        self._is_to_fail = True

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """Count it."""
        if outcome.result == "failure" and self._is_to_fail:
            self._is_to_fail = False
            raise ConnectionError("the diary is locked away")
        run.state["turns"] = run.state.get("turns", 0) + 1


def _agent(name: str, limits: Limits, *toolsets: Toolset, **options: Any) -> Agent:
    agent = Agent(name, model=ScriptedModel(script), limits=limits, toolsets=toolsets, **options)

    @agent.tool(retry_safe=True)
    async def look(city: str) -> str:
        """Look out of the window."""
        return f"{city} is sunny"

    @agent.tool
    async def hang() -> str:
        """Never return."""
        await asyncio.Event().wait()
        return "never"

    @agent.tool(approval="always")
    async def pay(amount: int) -> str:
        """Pay, if somebody approves it."""
        return f"paid {amount}"

    @agent.tool(approval=lambda arguments: ApprovalRequest(expires_s=0.5))
    async def hurry() -> str:
        """Nobody approves this in time."""
        return "hurried"

    @agent.tool(kind="client")
    async def confirm(question: str) -> str:
        """Ask the user."""
        return question

    return agent
