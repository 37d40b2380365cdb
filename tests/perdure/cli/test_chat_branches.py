"""Branches and approvals in the chat: a terminal of its own over a real worker."""

import pytest

from tests.eventually import eventually
from tests.perdure.cli.desk import Desk

pytestmark = pytest.mark.slow  # each starts processes


async def test_branches_are_made_listed_and_switched(desk: Desk) -> None:
    """Only what has changed is written again, under a line that says after what; `2/2` is where there are others."""
    async with desk.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("hi\r")
        await chat.sees("answer 1 to hi")
        chat.types("there\r")
        await chat.sees("answer 1 to there")
        chat.types("/edit you\r")
        await chat.sees("answer 1 to you")
        assert chat.screen.lines[5:9] == [
            "⑃ The conversation was changed. After “answer 1 to hi” it now reads:",
            "‹2/2›",
            "› you",
            "answer 1 to you",
        ]
        chat.types("/regenerate\r")
        await chat.sees("answer 2 to you")
        chat.types("/branches\r")
        await chat.sees("/switch N shows another branch")
        listed = [line for line in chat.screen.lines if "#" in line]
        assert [line[0] for line in listed] == ["*", "*", " ", " ", "*", " ", "*"]
        assert listed[2].startswith("    #3 user 1/2: there")
        chat.types("/switch 3\r")
        await chat.sees("‹1/2›")
        await eventually(lambda: chat.screen.lines.count("answer 1 to there") == 2)
        chat.types("/edit #1 hello\r")
        await chat.sees("⑃ The conversation was changed. It now reads:")
        await chat.sees("answer 1 to hello")
        chat.types("/switch 99\r")
        await chat.sees("✗ No message was listed as 99: /branches numbers them.")
        assert chat.screen.lines.count("answer 1 to hi") == 1, "what stayed was not written again"


async def test_a_change_made_elsewhere_is_written_anew(desk: Desk) -> None:
    """Whatever it was: a deletion in the middle, a switch, an empty thread."""
    for text in ("one", "two"):
        await desk.client.ask(desk.thread, text)
    _, first, two, _ = await desk.ids()
    async with desk.chat() as chat:
        await chat.sees("answer 1 to two")
        await desk.client.feedback(desk.thread, first, "positive")
        await desk.client.delete_message(desk.thread, two)
        await chat.sees("After “answer 1 to one” it now reads:")
        assert chat.screen.lines[:4] == ["› one", "answer 1 to one", "› two", "answer 1 to two"]
        await eventually(lambda: chat.screen.lines[4:6][1:] == ["answer 1 to two"])
        await desk.client.reset(desk.thread, first)
        await chat.sees("⑃ The conversation was changed. After “answer 1 to one” it ends now.")
        await desk.client.reset(desk.thread)
        await chat.sees("⑃ The conversation was changed. It is empty now.")


async def test_a_call_is_approved_in_the_chat(desk: Desk) -> None:
    """By y, n with a reason, or somebody else; words that are no answer are not sent, `/say` sends them."""
    async with desk.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("pay\r")
        await chat.sees("? pay(amount=3) waits for approval")
        for typed in ("what for?", "7"):
            chat.types(f"{typed}\r")
        await eventually(lambda: sum("✗ That is no answer. Type y or n" in line for line in chat.screen.lines) == 2)
        chat.types("y\r")
        await chat.sees("heard paid 3")
        chat.types("pay\r")
        await eventually(lambda: sum("waits for approval" in line for line in chat.screen.lines) == 2)
        chat.types("n too much\r")
        await chat.sees("too much")
        await eventually(lambda: any(line.startswith("heard") and "too much" in line for line in chat.screen.lines))
        chat.types("pay\r")
        await eventually(lambda: sum("waits for approval" in line for line in chat.screen.lines) == 3)
        await desk.client.approve(desk.thread, await desk.approval(), by="Ann")
        await chat.sees("✓ pay(amount=3) is approved by Ann")
        await eventually(lambda: chat.screen.lines.count("heard paid 3") == 2)
        chat.types("pay\r")
        await eventually(lambda: sum("waits for approval" in line for line in chat.screen.lines) == 4)
        chat.types("/status\r")
        await chat.sees("`perdure approve ")
        chat.types("/say what for?\r")
        await chat.sees("answer 1 to what for?")
        await chat.sees("✗ pay(amount=3) was not decided about")


async def test_options_and_questions_are_answered_in_the_chat(desk: Desk) -> None:
    """By numbers and words; the last answer of several lets the call run."""
    async with desk.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("pick\r")
        await chat.sees("  2 Both, always (from now on, whatever the arguments)")
        chat.types("2\r")
        await chat.sees("heard picked of two")
        chat.types("quiz\r")
        await chat.sees("  size: How big?")
        chat.types("2\r")
        await chat.sees("  name: Whose name?")
        chat.types("Ann\r")
        await chat.sees("heard asked")


async def test_a_call_of_the_person_is_approved_first(desk: Desk) -> None:
    """Then its result is asked for; a call beside it runs meanwhile, and each is decided about by itself."""
    async with desk.chat() as chat:
        await chat.sees("A new thread.")
        chat.types("both\r")
        await chat.sees("? pay(amount=3) waits for approval")
        assert not any("sign() waits" in line for line in chat.screen.lines)
        chat.types("/result early\r")
        await chat.sees("✗ No call waits for your result.")
        chat.types("1\r")
        await chat.sees("? sign() waits for approval")
        await chat.sees("← pay(amount=3): paid 3")
        chat.types("yes\r")
        await chat.sees("? sign() waits for you: /result TEXT is its result")
        chat.types("/result signed\r")
        await chat.sees("heard signed")


async def test_a_turn_on_another_branch_goes_on_unseen(desk: Desk) -> None:
    """What it says is not written among what is shown; its branch has it when that is shown again."""
    await desk.client.ask(desk.thread, "hi")
    async with desk.chat() as chat:
        await chat.sees("answer 1 to hi")
        chat.types("/edit hang\r")
        await chat.sees("one two three")
        chat.types("/branches\r")
        await chat.sees("/switch N shows another branch")
        chat.types("/switch 1\r")
        await chat.sees("‹1/2›")
        await eventually(lambda: chat.screen.lines.count("answer 1 to hi") == 2)
        chat.types("/status\r")
        await chat.sees("running · agent desk")
        chat.types("/switch 3\r")
        await eventually(lambda: chat.screen.lines.count("one two three") == 2)
        chat.types("/stop\r")
        await chat.sees("■ interrupted")
        chat.types("/regenerate #1\r")
        await chat.sees("answer 2 to hi")


async def test_a_script_goes_through_all_of_it(desk: Desk) -> None:
    """Without a terminal each line waits for what the one before has begun, and an answer is the line after."""
    lines = await desk.script(
        "pay", "y", "ask", "/result blue", "hi", "/edit hello", "/regenerate", "pay", "n never", "/branches"
    )
    said = [line for line in lines if line.startswith(("heard", "answer", "✗ T", "■"))]
    assert said[:5] == ["heard paid 3", "heard blue", "answer 1 to hi", "answer 1 to hello", "answer 2 to hello"]
    assert "never" in said[5]
    assert len(said) == 6
    assert sum("#" in line for line in lines) == 11
