"""What a person reads and does in the Temporal UI, on its pages as a browser renders them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from urllib.parse import quote

import pytest

from perdure import ids
from perdure.agent import Agent
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.stack import Stack
from tests.ui.chromium import Chromium, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

THREAD, OTHER = "trip-to-paris", "another-thread"
TITLE = "Trip to Paris, in May"
ODD = "<b>bold?</b> &lt; **stars** _lines_ # `code` [link](x) a|b ~~gone~~ 1 \\* 2"


def script(asked: Asked) -> Reply:
    """Weather is looked up, a table is booked, a question about the key fails; all else is repeated."""
    words = asked.user_text
    if asked.results:
        return Reply("The weather: " + " ".join(asked.results))
    if "weather" in words:
        return Reply("I look.", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Oslo"}))
    if "table" in words:
        return Reply("I book it.", Call("book_table", {"place": "Chez Marie", "people": 4}))
    if "key" in words:
        return Reply("never", failures=[Failure(401)] * 20)
    return Reply(f"You said: {words}")


def concierge() -> Agent:
    """An agent whose booking takes for ever."""
    agent = Agent("concierge", model=ScriptedModel(script))

    @agent.tool
    async def get_weather(city: str) -> str:
        return f"{city}: snow."

    @agent.tool
    async def book_table(place: str, people: int) -> str:
        await asyncio.Event().wait()
        return f"{place} {people}"

    return agent


@pytest.fixture(scope="module")
async def stack(ui_server: TemporalServer) -> AsyncGenerator[Stack]:
    """A thread with a past that waits for its tool, and another one, on a server with its UI."""
    async with AsyncExitStack() as stacks:
        temporal = await connect_temporal({"target_host": ui_server.address})
        stack = await stacks.enter_async_context(
            Stack(temporal, MemoryStore(), [concierge(), Agent("parrot", model=ScriptedModel(script))])
        )
        client = stack.client
        await client.start(THREAD, agent="concierge", title=TITLE)
        await client.ask(THREAD, ODD)
        await client.ask(THREAD, "How is the weather?")
        failed = await client.send(THREAD, "Is the key right?")
        await client.wait_settled(THREAD, failed.message_id)
        await client.start(OTHER, agent="parrot")
        await client.ask(OTHER, "hello")
        await client.post(THREAD, "A table, please.", id="m-table")
        await eventually(lambda: _books(stack))
        yield stack
        await client.stop(THREAD)  # a tool that runs for ever would hold up the worker's end


async def _books(stack: Stack) -> bool:
    return any(call.state == "running" for call in (await stack.client.status(THREAD)).open_calls)


@pytest.fixture(scope="module")
async def page(ui_server: TemporalServer, chromium: Chromium, stack: Stack) -> Page:
    """The thread's page, whose tabs the tests open."""
    assert await stack.client.history(THREAD)
    page = await chromium.open(f"{ui_server.ui_url}/namespaces/default/workflows/{quote(ids.workflow_id(THREAD))}")
    await page.wait_for(ids.workflow_id(THREAD), "Event History")
    return page


async def test_threads_are_found_by_their_search_attributes(
    ui_server: TemporalServer, chromium: Chromium, stack: Stack
) -> None:
    """The list, asked for an agent and a state, shows that thread and not the other."""
    found = quote("PerdureAgent='concierge' AND PerdureState='running'")
    page = await chromium.open(f"{ui_server.ui_url}/namespaces/default/workflows?query={found}")
    assert ids.workflow_id(OTHER) not in await page.wait_for(ids.workflow_id(THREAD), "ThreadWorkflow")
    await page.goto(f"{ui_server.ui_url}/namespaces/default/workflows")
    await page.wait_for(ids.workflow_id(THREAD), ids.workflow_id(OTHER))


async def test_current_details_say_how_the_thread_stands(page: Page) -> None:
    """State, who waits for what, totals, and the last messages, whose words never act as markup."""
    await page.follow("/user-metadata")
    shown = await page.wait_for("Running: turn 4, step 1, waits for 1 tool call", "Last messages")
    for words in (
        TITLE,
        "Agent concierge · turn 4 · 4 model calls",
        'book_table(place="Chez Marie", people=4) running · call_',
        f"User: {ODD}",
        f"Assistant: You said: {ODD[:40]}",
        "Tool get_weather: Paris: snow.",
        "Tool get_weather: Oslo: snow.",
        "Assistant: The weather: Paris: snow. Oslo: snow.",
        "User: Is the key right?",
        "Assistant: (The model call failed: scripted: the key was refused. Check it and what it may be used for.)",
        "User: A table, please.",
        "Assistant: I book it.",
    ):
        assert words in " ".join(shown.split()), shown


async def test_title_and_attributes_have_their_tabs(page: Page) -> None:
    """The memo holds the title; the search attributes tell agent, tenant, state, root and kind."""
    await page.follow("/memo")
    await page.wait_for(f'"title": "{TITLE}"')
    await page.follow("/search-attributes")
    await page.wait_for(
        '"PerdureAgent": "concierge"',
        '"PerdureKind": "root"',
        f'"PerdureRoot": "{THREAD}"',
        '"PerdureState": "running"',
        '"PerdureTenant": "default"',
    )


async def test_every_event_of_the_history_has_a_summary(page: Page) -> None:
    """Model calls, tool calls, local activities and the timer say what they are for; failures say what to do."""
    await page.follow("/history")
    shown = await page.wait_for("Workflow Execution Started")
    for words in (
        "load the thread",
        "sync 1",
        "until hibernation",
        "turn 1 · step 1 · scripted",
        "turn 2 · step 2 · scripted",
        'get_weather(city="Paris")',
        'get_weather(city="Oslo")',
        'book_table(place="Chez Marie", people=4)',
        "scripted: the key was refused. Check it and what it may be used for.",
        "Signal Name user_message",
        "Name send",
    ):
        assert words in " ".join(shown.split()), words


async def test_the_timeline_reads_like_the_conversation(page: Page) -> None:
    """Its bars carry the summaries of model calls and tool calls."""
    await page.follow("/timeline")
    await page.wait_for('dispatch • get_weather(city="Paris")', "complete • turn 2 · step 1 · scripted")


async def test_queries_answer_in_the_ui(page: Page) -> None:
    """Transcript, state and open calls, for one click each."""
    await page.follow("/query")
    await page.wait_for("Query Type")
    for query, words in (
        ("transcript", "Tool get_weather: Oslo: snow."),
        ("status", f'"thread_id": "{THREAD}"'),
        ("open_calls", '"tool": "book_table"'),
    ):
        await page.choose("main", query)
        await page.click("button", "Run Query", "Refresh Query")
        await page.wait_for(words)


async def test_a_signal_shows_the_users_words(page: Page) -> None:
    """The event of a message, opened, has what the user said."""
    await page.follow("/history")
    await page.wait_for("Workflow Execution Signaled")
    await page.click("td", "Workflow Execution Signaled")
    await page.wait_for('"id": "m-table"', '"text": "A table, please."')


async def test_a_message_is_sent_from_the_ui(ui_server: TemporalServer, chromium: Chromium, stack: Stack) -> None:
    """The update `send`, typed into the UI's form as plain JSON, is answered by the thread."""
    workflow = quote(ids.workflow_id(OTHER))
    page = await chromium.open(f"{ui_server.ui_url}/namespaces/default/workflows/{workflow}")
    await page.wait_for("Event History", "until hibernation")
    await page.click("button", "More Actions")
    await page.click("[role=menuitem]", "Send an Update")
    await page.choose("dialog[open]", "send")
    await page.type_into("dialog[open] .cm-content", '{"id":"ui-1","text":"from the UI"}')
    await page.click("dialog[open] button", "Submit")
    answer = await stack.client.wait_settled(OTHER, ids.input_message_id(OTHER, "ui-1"))
    assert answer_text(answer) == "You said: from the UI"


async def test_a_wrong_start_says_what_to_do(ui_server: TemporalServer, chromium: Chromium, stack: Stack) -> None:
    """A thread that was started with an unknown agent fails, and its page names the agents that there are."""
    temporal = stack.temporal
    await temporal.start_workflow(
        "ThreadWorkflow", {"agent": "nobody"}, id="thread:wrong", task_queue=stack.settings.task_queue
    )
    page = await chromium.open(f"{ui_server.ui_url}/namespaces/default/workflows/thread:wrong")
    await page.wait_for("FAILED", "There is no agent 'nobody' on this worker; it serves concierge, parrot.")
