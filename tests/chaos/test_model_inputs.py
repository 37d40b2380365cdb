"""Words and context providers that are nonsense: one turn says so or goes on without it, and the thread lives."""

import asyncio
from typing import Any

from perdure.agent import Agent
from perdure.context import Context, ProviderRun, RunOutcome
from perdure.testing import Asked, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model that is none": ({"model": "nonsense"}, "Unknown model 'nonsense'"),
    "a provider that is none": ({"model": "nobody:gpt-9"}, "Unknown model 'nobody:gpt-9'"),
    "a model of odd characters": ({"model": "a\ud800:\0"}, "Unknown model"),
    "a setting that is none": ({"settings": {"colour": "red"}}, "cannot set colour"),
    "a setting of the wrong type": ({"settings": {"temperature": ["hot"]}}, "temperature"),
    "a nested setting": ({"settings": {"thinking": {"a" * 1000: {"b": []}}}}, "thinking"),
    "no model": ({"model": ""}, "options.model"),
    "options that are none": ({"colour": "red"}, "colour"),
}
"""Options, and what people are told of them."""

FILES = (
    {"media_type": "image/png", "blob": "0" * 64, "size_bytes": 5},
    {"media_type": "", "blob": "", "size_bytes": -1},
    {"media_type": "a\0/\ud800", "blob": "\0\ud800", "size_bytes": 10**30},
)


def echo(asked: Asked) -> Reply:
    """Say what was said."""
    return Reply(f"you said {asked.user_text[:40]}")


async def test_options_that_are_nonsense_are_told_of_in_a_sentence(start_stack: StackFactory, thread: str) -> None:
    """The turn fails at once, or the signal is refused; the next words are answered, by the same agent."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    for number, (what, (options, sentence)) in enumerate(WRONG.items()):
        words = {"id": f"m{number}", "text": what, "options": options}
        await stack.client.ask(thread, "hello")
        await stack.handle(thread).signal("user_message", words)
        await until_told(stack, thread, sentence)
    assert await asyncio.wait_for(stack.client.ask(thread, "bye"), 10) == "you said bye"
    assert faults(await stack.client.history(thread)) == []


async def until_told(stack: Stack, thread: str, sentence: str) -> None:
    """Wait until a turn or the thread's problems say this."""

    async def is_told() -> bool:
        problems = (await stack.client.status(thread)).problems
        details = [message.status.detail for message in await stack.client.history(thread)]
        return any(sentence in told for told in (*problems, *details) if told)

    await eventually(is_told, timeout=5)


async def test_files_that_are_not_there_are_shown_as_such(start_stack: StackFactory, thread: str) -> None:
    """The model is told that there was one, and answers."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    for number, file in enumerate(FILES):
        await stack.client.ask(thread, "hello")
        await stack.handle(thread).signal("user_message", {"id": f"m{number}", "text": "look", "files": [file]})
        await until_settled(stack, thread, count=4 * (number + 1))
    messages = await stack.client.history(thread)
    assert [message.status.state for message in messages if message.role == "assistant"] == ["complete"] * 6
    assert faults(messages) == []


async def until_settled(stack: Stack, thread: str, count: int) -> None:
    """Wait until there are so many messages, the last one an answer that is over."""

    async def is_settled() -> bool:
        messages = await stack.client.history(thread)
        return len(messages) == count and messages[-1].status.state in ("complete", "incomplete")

    await eventually(is_settled)


class Odd:
    """An optional provider that returns whatever a test wants."""

    required = False
    write_only = True

    def __init__(self, name: str, answer: object) -> None:
        self.name = name
        self._answer = answer

    async def before_run(self, run: ProviderRun) -> Any:
        """What a type checker would refuse, or what no model has room for."""
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """Leave something that is no JSON."""
        run.state["odd"] = self._answer
        if isinstance(self._answer, BaseException):
            raise self._answer


ODD: tuple[object, ...] = (
    "text",
    Context(instructions=5, messages=[object()]),  # type: ignore[arg-type,list-item]  # pyright: ignore  # a mistake
    Context(messages=None),  # type: ignore[arg-type]  # pyright: ignore  # a mistake
    Context(tools=[5]),  # type: ignore[list-item]  # pyright: ignore  # a mistake
    Context(instructions="a\0b\ud800", messages=["\0\udfff"]),
    Context(messages=["x" * 5_000_000]),
    asyncio.CancelledError(),
)


async def test_providers_that_are_odd_harm_no_turn(start_stack: StackFactory, thread: str) -> None:
    """Optional ones are left out and told of; what the last one says, five megabytes or odd characters, is read."""
    model = ScriptedModel(echo)
    providers = [Odd(f"odd{number}", answer) for number, answer in enumerate(ODD)]
    stack = await start_stack(Agent("a", model=model, context=providers))
    for _ in range(2):
        assert await asyncio.wait_for(stack.client.ask(thread, "hello"), 30) == "you said hello"
    await eventually(lambda: hooks_over(stack, thread, 2))
    problems = (await stack.client.status(thread)).problems
    assert [any(f"'odd{number}' failed:" in told for told in problems) for number in range(len(ODD))] == [
        True,
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert any("x" * 5_000_000 in str(message.parts) for message in model.requests[-1].messages)
    assert list(await stack.store.get_provider_states(thread)) == ["odd0"], "a text is JSON, all else is not"
    assert faults(await stack.client.history(thread)) == []


async def hooks_over(stack: Stack, thread: str, turns: int) -> bool:
    """Whether the hooks of so many turns are over."""
    finished = [await stack.store.finished_hooks(thread, turn + 1) for turn in range(turns)]
    return all(len(names) == len(ODD) for names in finished)
