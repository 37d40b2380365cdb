"""People's choices on their way to the tool server that asked."""

from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.rap_choose import ChooseActivities
from activities.rap_client import RapClient
from perdure.batch import AppendMessage, AppendParts, CommitResults, SyncBatch
from perdure.contract import ChooseRequest
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.rap.manifest import RapTool
from perdure.records import Choice
from tests.activities.rap_calls import RapCaller, calling
from tests.fakes.rap_server import CHOICE, Answer, FakeRapServer, FakeTool
from tests.fakes.rap_tools import open_sandbox

SECRET = {"Authorization": "Bearer s3cret"}


class Asked:
    """A call of a server that has asked a person for a choice.

    Attributes:
        activities: what is tested.
        tool: the tool that was called; None once the agent has it no more.
    """

    def __init__(self, caller: RapCaller, tool: RapTool) -> None:
        self.tool: RapTool | None = tool
        self._caller = caller
        self._store = caller.store
        self.activities = ChooseActivities(caller.store, self._find)

    async def _find(self, thread_id: str, tool: str) -> tuple[RapClient, RapTool] | None:
        assert (thread_id, tool) == ("root", "open_sandbox_direct")
        return None if self.tool is None else (self._caller.client, self.tool)

    @classmethod
    async def by(cls, server: FakeRapServer, caller: RapCaller, **fields: Any) -> "Asked":
        """Make the call and keep its question, as the gateway does."""
        asked = cls(caller, caller.tool())
        message = Message(id="m", thread_id="root", role="assistant", turn=1, status=Status(state="running"))
        call = ToolCallPart(call_id="call_1", tool="open_sandbox_direct")
        operations = (AppendMessage(message=message), AppendParts(message_id="m", start=0, parts=(call,)))
        await caller.store.append_messages(SyncBatch(thread_id="root", number=1, sync_id="s1", operations=operations))
        choice = Choice(
            id="q",
            call_id="call_1",
            prompt="Allow?",
            choices=("Always", "Once", "No"),
            default=2,
            response_url=server.url + CHOICE,
        )
        await caller.store.put_choice("root", choice.with_(**fields))
        return asked

    async def choose(self, selected: int | None = None, choice_id: str = "q") -> None:
        """Answer, or dismiss it."""
        await self.activities.choose(ChooseRequest(thread_id="root", choice_id=choice_id, selected=selected))

    async def waiting(self) -> list[str]:
        """Questions that nobody has answered."""
        return [choice.id for choice in await self._store.get_choices("root") if not choice.answered]

    async def settle(self) -> None:
        """Close the call."""
        result = ToolResultPart(call_id="call_1", outcome="interrupted")
        operations = (CommitResults(message_id="m", start=1, call_ids=("call_1",), results=(result,)),)
        await self._store.append_messages(SyncBatch(thread_id="root", number=2, sync_id="s2", operations=operations))


@pytest.mark.parametrize(("selected", "sent"), [(0, 0), (1, 1), (None, 2)])
async def test_a_choice_goes_to_the_server_that_asked(selected: int | None, sent: int) -> None:
    """Under the call's id, zero-based; dismissed is the default. The question is gone then."""
    async with FakeRapServer(open_sandbox()) as server, calling(server, headers=SECRET) as caller:
        asked = await Asked.by(server, caller)
        await asked.choose(selected)
        (request,) = server.received(CHOICE)
        assert request.json == {"id": "call_1", "selected": sent}
        assert request.headers["authorization"] == SECRET["Authorization"]
        assert await asked.waiting() == []


async def test_answering_twice_is_harmless() -> None:
    """The second answer comes to a question that is gone; so does one to a question that never was."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        await asked.choose(1)
        await asked.choose(0)
        await asked.choose(0, choice_id="never")
        assert [request.json["selected"] for request in server.received(CHOICE)] == [1]


@pytest.mark.parametrize("selected", [3, -1, 10**30])
async def test_what_is_no_choice_is_refused(selected: int) -> None:
    """The question stays for another try."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        with pytest.raises(ApplicationError, match="numbered from 0 to 2") as refusal:
            await asked.choose(selected)
        assert refusal.value.non_retryable
        assert server.received(CHOICE) == []
        assert await asked.waiting() == ["q"]


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(reset="before"), Answer(reset="after")])
async def test_a_server_that_stumbles_is_told_again(answer: Answer) -> None:
    """It takes the first answer, so telling it twice does no harm."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        server.script(CHOICE, answer)
        await asked.choose(1)
        assert len(server.received(CHOICE)) == 2
        assert await asked.waiting() == []


async def test_a_server_that_is_away_leaves_the_question() -> None:
    """Another try may help, now or later."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        await server.stop()
        with pytest.raises(ApplicationError, match="does not take the answer now") as failure:
            await asked.choose(1)
        assert not failure.value.non_retryable
        assert await asked.waiting() == ["q"]


async def test_a_server_that_refuses_the_answer_is_not_asked_again() -> None:
    """It may have waited for too long; whoever chose is told."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        server.script(CHOICE, Answer(status=410))
        with pytest.raises(ApplicationError, match="HTTP status 410; it may be too late") as refusal:
            await asked.choose(1)
        assert refusal.value.non_retryable
        assert len(server.received(CHOICE)) == 1


async def test_an_answer_goes_to_no_other_host() -> None:
    """A server could have us post anything anywhere in the runtime's network; trusted hosts are the exception."""
    async with FakeRapServer(open_sandbox()) as server, FakeRapServer(FakeTool("x")) as other:
        async with calling(server, headers=SECRET) as caller:
            asked = await Asked.by(server, caller, response_url=other.url + CHOICE)
            with pytest.raises(ApplicationError, match="add it to the toolset's `trusted_hosts`") as refusal:
                await asked.choose(1)
            assert refusal.value.non_retryable
            assert other.requests == []
        trusted = [other.origin.removeprefix("http://")]
        async with calling(server, trusted_hosts=trusted) as caller:
            await (await Asked.by(server, caller, response_url=other.url + CHOICE)).choose(1)
            assert len(other.requests) == 1


async def test_an_answer_may_go_to_the_host_of_the_endpoint() -> None:
    """That is where the call went; the toolset's credentials do not."""
    async with FakeRapServer(open_sandbox()) as server, FakeRapServer(FakeTool("x")) as other:
        server.manifest["endpoint"] = other.endpoint
        async with calling(server, headers=SECRET) as caller:
            await (await Asked.by(server, caller, response_url=other.url + CHOICE)).choose(1)
            (request,) = other.requests
            assert request.json["selected"] == 1
            assert "authorization" not in request.headers


async def test_a_link_is_dismissed_and_not_chosen_from() -> None:
    """Nobody is told: the server waits for the login itself."""
    link = {"kind": "oauth", "auth_url": "https://login.example/", "response_url": None, "choices": ()}
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller, **link)
        with pytest.raises(ApplicationError, match="open it, or dismiss it"):
            await asked.choose(0)
        await asked.choose(None)
        assert await asked.waiting() == []
        assert server.received(CHOICE) == []


async def test_a_question_of_a_settled_call_is_not_answered() -> None:
    """Its server was told that nobody waits any more."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        await asked.settle()
        await asked.choose(1)
        assert server.received(CHOICE) == []


async def test_a_tool_that_is_gone_cannot_be_told() -> None:
    """A deploy has taken its toolset away; the sentence says what is left to do."""
    async with FakeRapServer(open_sandbox()) as server, calling(server) as caller:
        asked = await Asked.by(server, caller)
        asked.tool = None
        with pytest.raises(ApplicationError, match="Stop the call instead"):
            await asked.choose(1)
