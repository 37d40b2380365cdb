"""The commands that rearrange a conversation, over a real worker."""

import pytest

from tests.perdure.cli.desk import Desk

pytestmark = pytest.mark.slow  # each starts a stack


async def test_words_are_edited_and_answered_anew(desk: Desk) -> None:
    """The edited ones stand beside the others, which stay; a repetition under one id is one; prefixes are enough."""
    await desk.client.ask(desk.thread, "hi")
    first, answer = await desk.ids()
    done, edited = (await desk.does("edit", first[:8], "hello", "--id", "e1")).split()
    assert done == "started"
    assert edited not in (first, answer)
    await desk.client.wait_settled(desk.thread, edited)
    assert await desk.does("edit", first[:8], "hello", "--id", "e1") == f"duplicate {edited}\n"
    assert "conflict" in await desk.fails("edit", first, "other", "--id", "e1", code=1)
    assert await desk.does("edit", first, "-", "--id", "e2", stdin="from a pipe") != ""
    assert (await desk.ids())[0] not in (first, edited)
    beside = await desk.lines("branches", first)
    assert [(one["text"], one.get("selected", False)) for one in beside] == [
        ("hi", False),
        ("hello", False),
        ("from a pipe", True),
    ]


async def test_words_go_below_any_message(desk: Desk) -> None:
    """By its id or the beginning of it, on whatever branch, answered or not; `root` begins beside all else."""
    await desk.client.ask(desk.thread, "hi")
    first, answer = await desk.ids()
    await desk.client.ask(desk.thread, "and then")
    assert await desk.does("send", "instead", "--parent", answer[:8], "--wait") == "answer 1 to instead\n"
    path = await desk.ids()
    assert path[:2] == [first, answer]
    assert [one["text"] for one in await desk.lines("branches", path[2])] == ["and then", "instead"]
    assert await desk.does("send", "anew", "--parent", "root", "--wait") == "answer 1 to anew\n"
    assert [one["text"] for one in await desk.lines("branches", first)] == ["hi", "anew"]
    said = await desk.fails("send", "x", "--parent", "nope")
    assert said == "No message of this thread has the id 'nope', or one that begins so.\n"


async def test_words_that_nobody_answers(desk: Desk) -> None:
    """They are there, at the end, below any message or in place of another, and no model was asked."""
    await desk.client.ask(desk.thread, "hi")
    first, answer = await desk.ids()
    done, noted = (await desk.does("send", "by the way", "--no-run")).split()
    assert (done, await desk.ids()) == ("appended", [first, answer, noted])
    done, beside = (await desk.does("send", "a remark", "--no-run", "--parent", answer)).split()
    assert (done, await desk.ids()) == ("appended", [first, answer, beside])
    done, edited = (await desk.does("edit", first, "hello", "--no-run")).split()
    assert (done, await desk.ids()) == ("appended", [edited])
    assert await desk.fails("send", "x", "--no-run", "--wait") == (
        "Nobody answers what is sent with --no-run: there is nothing to --wait for.\n"
    )


async def test_the_last_answer_is_given_once_more(desk: Desk) -> None:
    """Beside the old one, which is shown again by a switch; a message by its prefix as well."""
    await desk.client.ask(desk.thread, "hi")
    words, old = await desk.ids()
    done, new = (await desk.does("regenerate")).split()
    assert done == "started"
    await desk.client.wait_settled(desk.thread, new)
    assert await desk.ids() == [words, new]
    assert await desk.does("switch", old[:10]) == f"The branch of {old} is shown.\n"
    assert await desk.ids() == [words, old]
    assert await desk.does("switch", words) == f"The branch of {words} is shown; it ends with {old}.\n"
    assert (await desk.does("regenerate", words[:12])).startswith("started ")
    assert len(await desk.lines("branches", old)) == 3


async def test_the_tree_is_read_at_a_glance(desk: Desk) -> None:
    """What is shown stands leftmost and is marked; others are further in and numbered; JSON has the ids whole."""
    assert await desk.does("start") == f"{desk.thread}\n"
    assert await desk.does("branches") == "Nothing was said yet.\n"
    assert await desk.lines("branches") == []
    await desk.client.ask(desk.thread, "hi")
    words, old = await desk.ids()
    new = (await desk.does("regenerate")).split()[1]
    await desk.client.wait_settled(desk.thread, new)
    assert (await desk.does("branches")).splitlines() == [
        f"* {words[:8]} user: hi",
        f"    {old[:8]} assistant 1/2: answer 1 to hi",
        f"* {new[:8]} assistant 2/2: answer 2 to hi",
    ]
    assert (await desk.does("branches", new[:8])).splitlines() == [
        f"  {old[:8]} assistant 1/2: answer 1 to hi",
        f"* {new[:8]} assistant 2/2: answer 2 to hi",
    ]
    assert [(one["message_id"], one["parent_id"], one["shown"]) for one in await desk.lines("branches")] == [
        (words, None, True),
        (old, words, False),
        (new, words, True),
    ]
    assert (await desk.does("history")).splitlines() == ["› hi", "‹2/2›", "answer 2 to hi"]


async def test_what_is_deleted_is_gone(desk: Desk) -> None:
    """A message moves what follows it up, a reset takes all of it; without a person to ask it has to be said."""
    for text in ("one", "two", "three"):
        await desk.client.ask(desk.thread, text)
    one, first, two, second, three, third = await desk.ids()
    assert await desk.does("delete", two[:8]) == f"{two} is deleted.\n"
    assert await desk.ids() == [one, first, second, three, third]
    assert "has the id" in await desk.fails("delete", two)
    assert "say it with --yes" in await desk.fails("reset", first)
    assert await desk.does("reset", three, "--yes") == "1 message deleted.\n"
    assert await desk.ids() == [one, first, second, three]
    async with desk.terminal("reset", desk.thread) as asking:
        await asking.sees("Delete 4 messages for good? [y/N]")
        asking.types("\r")
        assert await asking.ends() == 1
        await asking.sees("perdure: Nothing was deleted.")
    async with desk.terminal("reset", desk.thread) as asking:
        await asking.sees("Delete 4 messages for good? [y/N]")
        asking.types("y\r")
        assert await asking.ends() == 0
    assert await desk.ids() == []
    assert "nothing to answer" in await desk.fails("regenerate")


async def test_a_conversation_with_several_beginnings_is_emptied(desk: Desk) -> None:
    """Also while another one than the last is shown; what was moved to the root is one of them."""
    await desk.client.ask(desk.thread, "one")
    await desk.client.ask(desk.thread, "two")
    one, first, two, second = await desk.ids()
    assert await desk.does("delete", two, "--replacement", "root") == f"{two} is deleted.\n"
    assert await desk.ids() == [second]
    await desk.does("switch", one)
    assert await desk.ids() == [one, first]
    assert await desk.does("reset", "--yes") == "3 messages deleted.\n"
    assert await desk.ids() == []


async def test_people_say_what_they_think_of_a_message(desk: Desk) -> None:
    """A word or a number, with a comment; it can be withdrawn, and what cannot be is one line."""
    await desk.client.ask(desk.thread, "hi")
    _, answer = await desk.ids()

    async def kept() -> object:
        return ((await desk.client.history(desk.thread))[-1].metadata or {}).get("feedback")

    assert await desk.does("feedback", answer[:8], "positive", "--comment", "short") == f"{answer}: positive.\n"
    assert await kept() == {"value": "positive", "comment": "short"}
    assert await desk.does("feedback", answer, "0.5") == f"{answer}: 0.5.\n"
    assert await kept() == {"value": 0.5}
    assert await desk.does("feedback", answer) == f"{answer}: withdrawn.\n"
    assert await kept() is None
    assert "needs a value" in await desk.fails("feedback", answer, "--comment", "why")


@pytest.mark.parametrize(
    "arguments", [("edit", "0000", "x"), ("switch", "0000"), ("delete", "0000"), ("branches", "0000"), ("reset", "0")]
)
async def test_a_message_that_is_none_is_one_line(desk: Desk, arguments: tuple[str, ...]) -> None:
    """Whatever should become of it; and so is a thread that is none."""
    assert (await desk.perdure(arguments[0], "nobody", *arguments[1:]))[0] == 2
    await desk.client.start(desk.thread)
    said = await desk.fails(arguments[0], *arguments[1:])
    assert said == f"No message of this thread has the id '{arguments[1]}', or one that begins so.\n"
