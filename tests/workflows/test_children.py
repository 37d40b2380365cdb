"""Child threads: what they inherit, what goes between them and their parents, and how they end."""

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


def parent_and_child(thread: str) -> ScriptedModel:
    """The parent spawns one child, which reports and closes."""

    def script(asked: Asked) -> Reply:
        last = asked.results[-1] if asked.results else ""
        if "Your task is this alone" in last:
            child = last.split("child thread ")[1].split(",")[0]
            return Reply(Call("close_thread", {"thread_id": child, "report_to_parent": "the moon is far"}))
        if "was started" in last:
            return Reply("I wait for it")
        if "the moon is far" in last:
            return Reply("it says that the moon is far")
        return Reply("let me ask", Call("spawn_thread", {"instructions": "How far is the moon?", "child_of": [thread]}))

    return ScriptedModel(script)


async def test_a_child_reports_to_its_parent(start_stack: StackFactory, thread: str) -> None:
    """It inherits the conversation, gets its task, and its report starts a turn of the parent."""
    model = parent_and_child(thread)
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    assert await stack.client.ask(thread, "the moon?", id="m1") == "I wait for it"

    async def has_the_report() -> bool:
        return answer_text((await stack.client.history(thread))[-1]) == "it says that the moon is far"

    await eventually(has_the_report)
    await eventually(lambda: _no_children(stack, thread))


async def _no_children(stack: Stack, thread: str) -> bool:
    return await stack.store.get_children(thread) == ()
