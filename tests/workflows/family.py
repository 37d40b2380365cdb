"""A model for a family of threads: what each of them says follows from the task that it was spawned with."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse, ToolReturnPart

from perdure import ids
from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.errors import ThreadNotFound
from perdure.messages import EventPart, ToolResultPart
from perdure.records import ThreadRecord
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.view import EVENT_TOOL
from tests.eventually import eventually
from tests.stack import Stack

ROOT = ""
"""The task of the root thread."""

NOTED = "noted"
"""What a thread says when its lines have come to an end, to an event for instance."""

_OF_THIS_REQUEST = frozenset({"timestamp", "run_id", "conversation_id"})

_STACK = re.compile(r"your stack of threads is (\[.*?\])[,.]")
_TASK = re.compile(r"Your task is this alone:\n\n(.*?)\n\nThe user cannot see", re.DOTALL)


@dataclass(frozen=True)
class Me:
    """Who is asked: the ids from the root to this thread, its task, and how often it has answered since it began."""

    stack: tuple[str, ...]
    task: str
    answered: int
    asked: Asked

    @property
    def id(self) -> str:
        """The thread's own id."""
        return self.stack[-1]

    @property
    def heard(self) -> str:
        """What the last event or the last result says; empty if words of the user came last."""
        return self.asked.results[-1] if self.asked.results else ""


Say = Callable[[Me], Reply | str]
Line = Reply | str | Say
Role = Sequence[Line] | Say
"""The lines of a thread in order, or what it says to anything."""


class Family(ScriptedModel):
    """Threads that follow their roles, by task; a child without a role closes with a report of its task's name."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        super().__init__(self._play)
        self.roles = dict(roles)

    def requests_of(self, thread_id: str) -> list[Asked]:
        """The requests that a thread has made, oldest first."""
        return [asked for asked in self.requests if me(asked).id == thread_id]

    def _play(self, asked: Asked) -> Reply | str:
        who = me(asked)
        role = self.roles.get(who.task, [closing(f"report of {who.task}")])
        if callable(role):
            return role(who)
        line = role[who.answered] if who.answered < len(role) else NOTED
        return line(who) if callable(line) else line


def me(asked: Asked) -> Me:
    """Who made a request."""
    began, told = 0, "".join(part.content for part in asked.parameters.instruction_parts or ())
    for position, message in enumerate(asked.messages):
        for text in _results(message):
            if _STACK.search(text) and "You are now in the child thread" in text:
                began, told = position, text
    stack = _STACK.search(told)
    task = _TASK.search(told)
    assert stack is not None, told
    answers = [message for message in asked.messages[began:] if _is_answer(message)]
    return Me(tuple(json.loads(stack[1])), task[1] if task else ROOT, len(answers), asked)


def _results(message: ModelMessage) -> list[str]:
    if not isinstance(message, ModelRequest):
        return []
    return [part.model_response_str(wrap_if_error=False) for part in message.parts if isinstance(part, ToolReturnPart)]


def _is_answer(message: ModelMessage) -> bool:
    injected = any(getattr(part, "tool_name", None) == EVENT_TOOL for part in message.parts)
    return isinstance(message, ModelResponse) and not injected


def shown(messages: Sequence[ModelMessage]) -> list[Any]:
    """Messages as they go to a provider, without the times at which they were built."""
    told: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return [_timeless(message) for message in told]


def _timeless(value: Any) -> Any:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: _timeless(field) for name, field in fields.items() if name not in _OF_THIS_REQUEST}
        case list():
            return [_timeless(item) for item in cast("list[object]", value)]
        case _:
            return value


# -- what threads do ---------------------------------------------------------------------------------------------


def spawn(who: Me, *tasks: str) -> Reply:
    """Spawn a child for each task, in one step."""
    return Reply(*(Call("spawn_thread", {"instructions": task, "child_of": list(who.stack)}) for task in tasks))


def spawning(*tasks: str) -> Say:
    """The line that does so."""
    return lambda who: spawn(who, *tasks)


def reporting(*reports: str) -> Reply:
    """Tell the parent things, in one step."""
    return Reply(*(Call("report_to_parent", {"report": report}) for report in reports))


def closing(report: str | None = None) -> Say:
    """Close the thread, with a report if one is given."""
    given = {} if report is None else {"report_to_parent": report}
    return lambda who: Reply(Call("close_thread", {"thread_id": who.id, **given}))


# -- what tests look at ------------------------------------------------------------------------------------------


def child_of(thread_id: str, *, turn: int = 1, step: int = 0, index: int = 0) -> str:
    """The id of the child that the call at this place makes."""
    return ids.child_thread_id(thread_id, ids.call_id(thread_id, turn, step, index))


async def made(stack: Stack, thread_id: str) -> ThreadRecord:
    """The record of a thread, once there is one."""

    async def known() -> ThreadRecord | None:
        try:
            return await stack.store.get_thread(thread_id)
        except ThreadNotFound:
            return None

    record = await eventually(known)
    assert record is not None
    return record


async def closed(stack: Stack, thread_id: str, timeout: float = 20) -> None:
    """Return when the thread is closed."""

    async def is_closed() -> bool:
        return (await stack.store.get_thread(thread_id)).closed_at is not None

    await made(stack, thread_id)
    await eventually(is_closed, timeout)


def family(model: Family, **options: Any) -> Agent:
    """An agent whose threads are this family."""
    return Agent("a", model=model, toolsets=[Threads(**options)])


def with_work(agent: Agent, may_end: asyncio.Event) -> Agent:
    """The agent with one more tool, `work`, which takes until it may end."""

    @agent.tool
    async def work() -> str:
        """Work."""
        await may_end.wait()
        return "worked"

    return agent


async def reports(stack: Stack, thread: str) -> list[str]:
    """The events that a thread was told, in order, each without the line that says who reports."""
    parts = [part for message in await stack.client.history(thread) for part in message.parts]
    return [part.content.partition("\n\n")[2] for part in parts if isinstance(part, EventPart)]


async def reported(stack: Stack, thread: str, *expected: str) -> None:
    """Return when these reports are in and answered; they are all, and in this order."""

    async def are_in() -> bool:
        return len(await reports(stack, thread)) >= len(expected) and await is_idle(stack, thread)

    await eventually(are_in, timeout=20)
    assert await reports(stack, thread) == list(expected)


async def is_idle(stack: Stack, thread: str) -> bool:
    """Whether the thread does nothing, and nothing waits for it."""
    status = await stack.client.status(thread)
    return status.state in ("idle", "closed") and status.deferred == 0


async def results(stack: Stack, thread: str) -> list[tuple[str, str]]:
    """Outcome and words of all tool results of a thread."""
    messages = await stack.client.history(thread)
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
    return [(part.outcome, part.content) for part in parts]
