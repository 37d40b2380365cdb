"""The details: what a person reads of a thread in the Temporal UI."""

from typing import Any

from hypothesis import given

from perdure.contract import CallStatus, SubscriptionStatus, ThreadStatus
from perdure.details import (
    LINE_CHARS,
    RECENT_LINES,
    SHOWN_CALLS,
    SHOWN_SUBSCRIPTIONS,
    Line,
    details,
    remember,
    transcript,
)
from perdure.messages import Status, Usage
from tests.perdure.wire_values import values_of
from tests.properties import hostile_text

IDLE = ThreadStatus(thread_id="t", agent="weather", state="idle")


def test_a_fresh_thread_waits_for_words() -> None:
    """Nothing has been said, and the page says so."""
    assert details(IDLE, ()).splitlines() == [
        "**Idle: waiting for the first message**",
        "",
        "Agent `weather` · turn 0 · 0 model calls · 0 tokens in, 0 out",
        "",
        "### Last messages",
        "",
        "Nothing has been said yet.",
    ]


def test_a_running_turn_shows_its_calls_and_who_waits() -> None:
    """State, open calls with their ids, and what is queued behind them."""
    calls = (
        CallStatus(call_id="call_1", tool="get_weather", preview='{"city":"Paris"}', state="running"),
        CallStatus(call_id="call_2", tool="ask", kind="client"),
    )
    usage = Usage(requests=3, input_tokens=12345, output_tokens=67)
    running = IDLE.with_(state="running", turn=4, step=1, open_calls=calls, queued=2, deferred=1, usage=usage)
    page = details(running, ())
    assert "**Running: turn 4, step 2, waits for 2 tool calls**" in page
    assert "3 model calls · 12,345 tokens in, 67 out" in page
    assert '- `get_weather({"city":"Paris"})` running · `call_1`' in page
    assert "- `ask()` waiting for the user's side · `call_2`" in page
    assert "2 messages queued, 1 event deferred." in page


def test_money_is_told_beside_the_tokens() -> None:
    """With the number of calls that it is not exact of. The control: where none is known, none is told."""
    usage = Usage(requests=2, input_tokens=1000, cached_tokens=900, output_tokens=5, nano_usd=12_300_000, unpriced=1)
    page = details(IDLE.with_(usage=usage), ())
    assert "2 model calls · 1,000 tokens in (900 cached), 5 out, $0.0123, 1 call without an exact price" in page
    assert "$" not in details(IDLE.with_(usage=Usage(requests=2)), ())


def test_a_turn_that_waits_for_the_user_s_side_says_for_how_many_results() -> None:
    """Whoever looks knows that no worker is at fault."""
    waiting = IDLE.with_(state="waiting", turn=1, open_calls=(CallStatus(call_id="c", tool="ask", kind="client"),))
    assert "**Waiting: turn 1 needs 1 result from outside**" in details(waiting, ())


def test_a_sleeper_says_when_it_wakes() -> None:
    """The headline has the first time, the list that of each call; without a time it is an event that wakes it."""
    nap, doze = (CallStatus(call_id=f"c{n}", tool="sleep", kind="workflow", due=1e9 + n * 60) for n in range(2))
    page = details(IDLE.with_(state="waiting", turn=2, open_calls=(doze, nap)), ())
    assert "**Waiting: turn 2 sleeps until 2001-09-09 01:46:40 UTC**" in page
    assert "- `sleep()` sleeping until 2001-09-09 01:47:40 UTC · `c1`" in page
    endless = CallStatus(call_id="c", tool="sleep_until_event_or_input", kind="workflow")
    page = details(IDLE.with_(state="waiting", turn=2, open_calls=(endless,)), ())
    assert "**Waiting: turn 2 sleeps until something happens**" in page
    remote = CallStatus(call_id="r", tool="deploy", kind="rap", due=1e9)
    page = details(IDLE.with_(state="waiting", turn=2, open_calls=(endless, remote)), ())
    assert "**Waiting: turn 2 needs 1 result from outside**" in page
    assert "- `deploy()` waiting for its tool server until 2001-09-09 01:46:40 UTC · `r`" in page


def test_subscriptions_are_listed_with_their_counts_and_pauses() -> None:
    """Whoever wonders why nothing comes any more reads the reason, and the id by which to resume it."""
    paused = SubscriptionStatus(call_id="call_2", tool="prices", received=600, paused="600 events *came* in a minute")
    known = (SubscriptionStatus(call_id="call_1", tool="mail", received=3), paused)
    page = details(IDLE.with_(subscriptions=known, dropped=7), ())
    assert "### Subscriptions\n\n- `mail` 3 events · `call_1`\n" in page
    assert "- `prices` 600 events, **paused**: 600 events \\*came\\* in a minute · `call_2`" in page
    assert "Events or results dropped, since nothing waited for them: 7." in page
    assert "dropped" not in details(IDLE, ())
    page = details(IDLE.with_(subscriptions=known * SHOWN_SUBSCRIPTIONS), ())
    assert f"- and {SHOWN_SUBSCRIPTIONS} more" in page


def test_a_paused_turn_says_whom_it_waits_for() -> None:
    """How many approvals and results are lacking, and which calls wait until when."""
    calls = (
        CallStatus(call_id="call_1", tool="send", preview='{"to":"all"}', state="approval", due=1_796_115_600.0),
        CallStatus(call_id="call_2", tool="pick", kind="client"),
        CallStatus(call_id="call_3", tool="read", state="settled"),
    )
    paused = IDLE.with_(state="waiting", turn=3, open_calls=calls)
    page = details(paused, ())
    assert "**Waiting: turn 3 needs 1 approval and 1 result from outside**" in page
    assert '- `send({"to":"all"})` waiting for approval until 2026-12-01 09:00 UTC · `call_1`' in page
    assert "turn 3 needs 1 approval**" in details(paused.with_(open_calls=calls[:1]), ())
    assert "turn 3 needs 1 result from outside**" in details(paused.with_(open_calls=calls[1:]), ())


def test_child_threads_are_said_with_the_command_that_lists_them() -> None:
    """The control: a thread without any says nothing of them."""
    assert "It has child threads: `perdure children t`." in details(IDLE.with_(children=True), ())
    assert "child" not in details(IDLE, ())


def test_how_the_last_turn_ended_is_said_with_its_reason() -> None:
    """An early end names its reason and the detail; a complete one says what is next."""
    failed = Status(state="incomplete", reason="error", detail="The key is wrong.")
    assert "the last turn ended early: error (The key is wrong.)" in details(IDLE.with_(last=failed), ())
    assert "the last turn is complete" in details(IDLE.with_(last=Status()), ())
    assert "**Closed**" in details(IDLE.with_(state="closed"), ())


def test_problems_are_shown() -> None:
    """A signal has no one to answer to, so its mistake stands here."""
    page = details(IDLE.with_(problems=("The event was refused: there is no field `txet`.",)), ())
    assert "### Problems" in page
    assert "txet" in page


def test_the_last_lines_stay_and_the_oldest_go() -> None:
    """A page has a bounded number of lines of a bounded length."""
    lines: tuple[Line, ...] = ()
    for number in range(RECENT_LINES + 5):
        lines = remember(lines, "User", f"number {number} " + "x" * 1000)
    assert len(lines) == RECENT_LINES
    assert lines[0].text.startswith("number 5 ")
    assert all(len(line.text) <= LINE_CHARS for line in lines)


def test_a_running_model_call_says_so() -> None:
    """Without open calls it is the model that is waited for."""
    assert "**Running: turn 1, step 1, the model is answering**" in details(IDLE.with_(state="running", turn=1), ())


def test_a_title_stands_first() -> None:
    """A thread is recognised by its title, if it has one."""
    assert details(IDLE, (), "Paris *trip*").startswith("## Paris \\*trip\\*\n\n**Idle")


def test_words_do_not_act_as_markup() -> None:
    """A message that looks like Markdown or HTML is shown, not obeyed."""
    page = details(IDLE, remember((), "User", "# Title <b>x</b> [a](http://b) `code` **bold** \\*"))
    assert "- **User:** \\# Title \\<b\\>x\\</b\\> \\[a\\](http://b) \\`code\\` \\*\\*bold\\*\\* \\\\\\*" in page
    hostile = CallStatus(call_id="c", tool="a`b", preview="`); # x\n# y")
    page = details(IDLE.with_(state="running", open_calls=(hostile,)), ())
    assert "- `a'b('); # x # y)` waiting · `c`" in page


def test_a_transcript_is_plain_text() -> None:
    """The query is read in terminals as well, so words stand there as they were said."""
    lines = remember(remember((), "User", "# hi\n<b>"), "Assistant", "*hello*")
    assert transcript(lines) == "User: # hi <b>\nAssistant: *hello*"
    assert transcript(()) == ""


def test_many_open_calls_are_counted_instead_of_listed() -> None:
    """The page stays readable, and within what Temporal takes."""
    calls = tuple(CallStatus(call_id=f"c{number}", tool="t") for number in range(SHOWN_CALLS + 7))
    page = details(IDLE.with_(state="running", open_calls=calls), ())
    assert page.count("- `t()` waiting") == SHOWN_CALLS
    assert "- and 7 more" in page


@given(values_of(ThreadStatus), hostile_text)
def test_any_status_can_be_shown(status: Any, words: str) -> None:
    """The page is valid UTF-8, since Temporal takes nothing else and would fail the thread's task for it."""
    details(status, remember((), "User", words)).encode("utf-8")
    transcript(remember((), "Tool", words)).encode("utf-8")


def test_one_of_a_thing_is_not_told_as_several() -> None:
    """And three are."""
    usage = Usage(requests=1)
    call = CallStatus(call_id="c", tool="look", state="running")
    one = details(IDLE.with_(state="running", usage=usage, queued=1, deferred=3, open_calls=(call,)), ())
    assert "waits for 1 tool call**" in one
    assert "1 model call ·" in one
    assert "1 message queued, 3 events deferred." in one


def test_a_page_is_small_whatever_happens() -> None:
    """Temporal limits the details to 20 kB."""
    long = "`" * 100_000
    calls = tuple(CallStatus(call_id=long, tool=long, preview=long) for _ in range(100))
    status = ThreadStatus(
        thread_id="t",
        agent=long,
        state="running",
        open_calls=calls,
        last=Status(state="incomplete", reason="error", detail=long),
        problems=tuple(long for _ in range(10)),
        subscriptions=tuple(SubscriptionStatus(call_id=long, tool=long, paused=long) for _ in range(100)),
    )
    lines: tuple[Line, ...] = ()
    for _ in range(RECENT_LINES):
        lines = remember(lines, "User", long)
    assert len(details(status, lines).encode("utf-8")) < 30_000
