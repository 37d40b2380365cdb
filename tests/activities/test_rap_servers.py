"""Fakes of real RAP servers, called as a worker calls them: what they post is read as the gateway reads it."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from activities.tool_output import Pending
from perdure.codec import dumps
from perdure.rap.callback import (
    Callback,
    ChoiceCallback,
    EventCallback,
    Image,
    OAuthCallback,
    ResultCallback,
    ViewCallback,
    read_callback,
)
from perdure.rap.display import shown
from perdure.rap.token import CALLBACK_KEY, verify
from tests.activities.rap_calls import RapCaller, calling
from tests.eventually import eventually
from tests.fakes import rap_tools
from tests.fakes.http_wire import Received
from tests.fakes.rap_http import Answer, ScriptedHttpServer
from tests.fakes.rap_server import CANCEL, Dialect, FakeRapServer, FakeTool, Invocation


class Receiver(ScriptedHttpServer):
    """What a gateway is to a tool server: it takes everything, unless it is told to answer otherwise.

    Attributes:
        status: of its next answers.
    """

    status = 200

    async def respond(self, request: Received) -> Answer:
        """See the base class."""
        return Answer(status=self.status)

    async def callbacks(self, number: int) -> list[Callback]:
        """So many callbacks, as soon as they have come."""
        await eventually(lambda: len(self.requests) >= number)
        return [read_callback(request.body) for request in self.requests]


class Talk:
    """A server, who calls it, and where its callbacks go."""

    def __init__(self, server: FakeRapServer, caller: RapCaller, receiver: Receiver) -> None:
        self.server = server
        self.caller = caller
        self.receiver = receiver

    async def call(self, arguments: Mapping[str, object] | None = None) -> Invocation:
        """Call the server's tool; the call is acknowledged."""
        assert await self.caller.call(self.caller.tool(), dumps(arguments or {})) == Pending()
        return await self.server.invoked()


@asynccontextmanager
async def talking(tool: FakeTool, dialect: Dialect = "js") -> AsyncGenerator[Talk]:
    """A server with this tool, in one way of writing callbacks."""
    server, receiver = FakeRapServer(tool, dialect=dialect), Receiver()
    async with receiver, server, calling(server, gateway_url=receiver.origin) as caller:
        yield Talk(server, caller, receiver)


@pytest.mark.parametrize(
    ("zone", "text", "outcome"),
    [
        ("Europe/London", f"Current time in Europe/London: {rap_tools.NOON}", "ok"),
        ("Mars/Phobos", "Error: Invalid time zone specified: Mars/Phobos", "error"),
    ],
)
@pytest.mark.parametrize("dialect", ["js", "rust"])
async def test_the_time(zone: str, text: str, outcome: str, dialect: Dialect) -> None:
    """A result comes to the URL that only this call was given, and names it; an error is a text like any other."""
    async with talking(rap_tools.get_time(), dialect) as talk:
        await talk.call({"timezone": zone})
        (callback,) = await talk.receiver.callbacks(1)
        assert isinstance(callback, ResultCallback)
        assert (callback.words, callback.outcome) == (text, outcome)
        assert callback.is_about("root", "call_1")
        request = talk.receiver.requests[0]
        assert ("call_id" in request.json) is (dialect == "js")
        _, thread_id, call_id, token = request.path.removeprefix("/").split("/")
        assert verify(await talk.caller.store.get_key(CALLBACK_KEY), thread_id, call_id, token)


@pytest.mark.parametrize("dialect", ["js", "rust"])
async def test_prices(dialect: Dialect) -> None:
    """The result opens a subscription; events follow until the final one, or until it is cancelled."""
    async with talking(rap_tools.subscribe(), dialect) as talk:
        invocation = await talk.call({"symbol": "ACME"})
        (confirmed,) = await talk.receiver.callbacks(1)
        assert isinstance(confirmed, ResultCallback)
        assert confirmed.opens_subscription
        await talk.server.event(invocation, "1", associative=True)
        await talk.server.event(invocation, "2", final=True)
        _, first, last = await talk.receiver.callbacks(3)
        assert first == EventCallback(group_id="root", tool_call_id="call_1", text="1", associative=True)
        assert last == EventCallback(group_id="root", tool_call_id="call_1", text="2", final=True)
        assert talk.server.subscriptions
        await talk.caller.client.cancel("root", "call_1")
        assert talk.server.received(CANCEL)
        assert not talk.server.subscriptions


async def test_prices_of_nothing() -> None:
    """An error result says that it opens a subscription, as a real server's does; it does not."""
    async with talking(rap_tools.subscribe()) as talk:
        await talk.call()
        (callback,) = await talk.receiver.callbacks(1)
        assert isinstance(callback, ResultCallback)
        assert callback.subscription
        assert not callback.opens_subscription


async def test_prices_that_come_before_their_confirmation() -> None:
    """The first event overtakes the result."""
    async with talking(rap_tools.subscribe(event_first=True)) as talk:
        await talk.call({"symbol": "ACME"})
        assert [callback.type for callback in await talk.receiver.callbacks(2)] == ["subscription_event", "tool_result"]


async def test_a_webhook() -> None:
    """Its events say neither `associative` nor `final`: each is handled on its own, and more may follow."""
    async with talking(rap_tools.watch_repository()) as talk:
        invocation = await talk.call({"owner": "acme", "repo": "site"})
        await talk.server.event(invocation, rap_tools.webhook_text("push", {"ref": "main"}))
        _, event = await talk.receiver.callbacks(2)
        assert isinstance(event, EventCallback)
        assert (event.associative, event.final) == (False, False)
        assert '"event_type": "push"' in event.text


async def test_an_image() -> None:
    """Content without a text; a terminal shows the words that describe it."""
    async with talking(rap_tools.read_image(), "rust") as talk:
        await talk.call()
        (callback,) = await talk.receiver.callbacks(1)
        assert isinstance(callback, ResultCallback)
        assert callback.words == "An image of one pixel."
        assert callback.images == (Image("image/png", rap_tools.PIXEL),)
        assert shown(callback.display, callback.words) == "An image of one pixel."


async def test_an_edit() -> None:
    """A view comes before the result; people see the diff, the model reads the words."""
    async with talking(rap_tools.edit_file()) as talk:
        await talk.call()
        view, result = await talk.receiver.callbacks(2)
        assert isinstance(view, ViewCallback)
        assert view.view_type == "diff"
        assert isinstance(result, ResultCallback)
        assert result.words == "Edited a.txt"
        assert shown(result.display, result.words).startswith("a.txt\n--- a.txt")


async def test_a_display_of_tomorrow() -> None:
    """An unknown type is skipped and does not cost the result."""
    async with talking(rap_tools.unknown_display()) as talk:
        await talk.call()
        (result,) = await talk.receiver.callbacks(1)
        assert isinstance(result, ResultCallback)
        assert (result.words, shown(result.display, result.words)) == ("said", "seen")


async def test_a_login() -> None:
    """The link comes first, the result some day."""
    async with talking(rap_tools.list_mail()) as talk:
        invocation = await talk.call()
        await talk.receiver.callbacks(1)
        await talk.server.result(invocation, "2 mails")
        link, result = await talk.receiver.callbacks(2)
        assert isinstance(link, OAuthCallback)
        assert link.auth_url == "https://login.example/authorize?state=s1"
        assert isinstance(result, ResultCallback)


async def test_a_grant() -> None:
    """Somebody chooses among what the server offers; the answer goes where it says."""
    async with talking(rap_tools.open_sandbox(), "rust") as talk:
        await talk.call()
        (choice,) = await talk.receiver.callbacks(1)
        assert isinstance(choice, ChoiceCallback)
        assert (choice.choices, choice.default) == (("Always here", "Once", "No"), 2)
        await talk.caller.client.choose(talk.caller.tool(), choice.response_url, choice.id, 1)
        assert talk.server.requests[-1].json == {"id": "call_1", "selected": 1}


async def test_a_second_result_after_a_callback_that_was_not_accepted() -> None:
    """Real servers send an error in its place, under the same id; whoever recorded the first must have said so."""
    async with talking(rap_tools.get_time()) as talk:
        talk.server.second_result = True
        talk.receiver.status = 503
        await talk.call()
        first, second = await talk.receiver.callbacks(2)
        assert isinstance(first, ResultCallback)
        assert isinstance(second, ResultCallback)
        assert (first.outcome, second.outcome) == ("ok", "error")
        assert second.is_about("root", "call_1")


async def test_a_fake_whose_work_fails_fails_its_test() -> None:
    """A control: a fake that cannot fail would let every test pass."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        raise ZeroDivisionError

    async def call() -> None:
        async with talking(FakeTool("broken", work)) as talk:
            await talk.call()

    with pytest.raises(ZeroDivisionError):
        await call()
