"""Cases 2 to 15 over the client: the tree that people rearrange, on a real thread.

What the pure tree does in each of them is in `tests.perdure.test_tree`. Case 9 and the moves of case 15 need an import.
"""

from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.inputs import ROOT
from tests.cases.conftest import Converse
from tests.cases.conversation import Conversation


async def said(talk: Conversation, text: str, parent_id: str | None = None) -> str:
    """Words that nobody answers, below a message; their id."""
    return (await talk.client.send(talk.thread, text, run=False, parent_id=parent_id)).message_id


async def tree_of(talk: Conversation) -> dict[str, str]:
    """The parent of each message, by their words."""
    nodes = [one.message for one in (await talk.client.tree(talk.thread)).messages]
    texts = {node.id: "".join(part.text for part in node.parts if part.kind == "text") for node in nodes}
    return {texts[node.id]: texts[node.parent_id] if node.parent_id else "" for node in nodes}


async def siblings(talk: Conversation, message_id: str) -> list[str]:
    """The words of a message and of those beside it, in order."""
    return [branch.text for branch in await talk.client.branches(talk.thread, message_id)]


async def test_case_02_answers_side_by_side(converse: Converse) -> None:
    """Each can be shown, again and again; both stay, in their order."""
    talk = await converse({"u": ["a1", "a2"]})
    first = await talk.say("u")
    second = (await talk.client.regenerate(talk.thread, first.id)).message_id
    assert second is not None
    await talk.client.wait_settled(talk.thread, second)
    for message_id, words in ((first.id, "a1"), (second, "a2"), (first.id, "a1")):
        changed = await talk.client.switch_branch(talk.thread, message_id)
        assert (changed.disposition, changed.head_id) == ("changed", message_id)
        assert await talk.shown() == ["u", words]
        assert await siblings(talk, first.id) == ["a1", "a2"]


async def test_case_03_a_branch_is_remembered(converse: Converse) -> None:
    """Showing what is above opens what was last shown below it."""
    talk = await converse()
    r = await said(talk, "r")
    x = await said(talk, "x", await said(talk, "a", r))
    y = await said(talk, "y", await said(talk, "b", r))
    for leaf, path in ((y, ["r", "b", "y"]), (x, ["r", "a", "x"])):
        await talk.client.switch_branch(talk.thread, leaf)
        await talk.client.switch_branch(talk.thread, r)
        assert await talk.shown() == path


async def test_case_04_05_a_deleted_answer_gives_way_to_the_last_one_beside_it(converse: Converse) -> None:
    """And that is shown with what is below it; the question only if no other answer is left."""
    talk = await converse()
    u = await said(talk, "u")
    a1 = await said(talk, "a1", u)
    await said(talk, "x", a1)
    a2, a3 = await said(talk, "a2", u), await said(talk, "a3", u)
    await talk.client.switch_branch(talk.thread, a2)
    await talk.client.delete_message(talk.thread, a2)
    assert await talk.shown() == ["u", "a3"]
    await talk.client.delete_message(talk.thread, a3)
    assert await talk.shown() == ["u", "a1", "x"]
    with pytest.raises(UsageError):
        await talk.client.switch_branch(talk.thread, a2)


async def test_case_06_07_what_is_below_a_deleted_message_moves_up(converse: Converse) -> None:
    """In its order; and what is shown goes on from there."""
    talk = await converse()
    a = await said(talk, "a")
    for name in ("b", "c", "d"):
        await said(talk, name, a)
    await said(talk, "e")
    await talk.client.delete_message(talk.thread, a)
    assert await tree_of(talk) == {"b": "", "c": "", "d": "", "e": "d"}
    assert await talk.shown() == ["d", "e"]
    assert await siblings(talk, (await talk.ids())[0]) == ["b", "c", "d"]
    # Words go on below what is shown, and the model reads nothing of what is gone.
    await talk.say("f")
    assert await talk.shown() == ["d", "e", "f", "answer 1 to f"]
    assert "UserPromptPart(content='a'" not in str(talk.model.requests[-1].messages)


async def test_case_08_no_refuge_in_what_is_deleted(converse: Converse) -> None:
    """Nor in what is below it, nor in what is not there; nothing is changed."""
    talk = await converse()
    a = await said(talk, "a")
    b = await said(talk, "b")
    before = await talk.client.export_thread(talk.thread)
    for replacement in (a, b, "nowhere"):
        with pytest.raises(UsageError):
            await talk.client.delete_message(talk.thread, a, replacement_id=replacement)
    assert await talk.client.export_thread(talk.thread) == before
    await talk.client.delete_message(talk.thread, a, replacement_id=ROOT)
    assert await talk.shown() == ["b"]


async def test_case_09_15_an_import_moves_a_branch_but_never_under_itself(converse: Converse) -> None:
    """Known messages with other parents: under a new chain with all that is below; under what is below it, refused."""
    talk = await converse()
    await said(talk, "a")
    await said(talk, "b")
    await said(talk, "c")
    before = await talk.client.export_thread(talk.thread)
    a, b, c = (item["message"]["id"] for item in before["messages"])
    moved: dict[str, Any] = {"headId": c, "messages": [{**before["messages"][0], "parentId": b}]}
    with pytest.raises(UsageError):
        await talk.client.import_thread(talk.thread, moved)
    assert await talk.client.export_thread(talk.thread) == before
    x, y = (
        {"parentId": parent, "message": {"id": name, "role": "user", "content": [{"type": "text", "text": name}]}}
        for name, parent in (("x", None), ("y", "x"))
    )
    chain: dict[str, Any] = {"headId": a, "messages": [x, y, {**before["messages"][0], "parentId": "y"}]}
    await talk.client.import_thread(talk.thread, chain)
    assert await talk.shown() == ["x", "y", "a"]
    assert await tree_of(talk) == {"x": "", "y": "x", "a": "y", "b": "a", "c": "b"}
    await talk.client.switch_branch(talk.thread, c)
    assert await talk.shown() == ["x", "y", "a", "b", "c"]
    exported = await talk.client.export_thread(talk.thread)
    assert [item["message"]["id"] for item in exported["messages"]] == ["x", "y", a, b, c]
    assert exported["headId"] == c


async def test_case_10_what_is_not_there(converse: Converse) -> None:
    """Every way to name it is refused in a sentence, and changes nothing."""
    talk = await converse()
    await talk.say("go")
    before = await talk.client.export_thread(talk.thread)
    client, thread = talk.client, talk.thread
    for refused in (
        lambda: client.send(thread, "words", parent_id="nowhere"),
        lambda: client.edit(thread, "nowhere", "words"),
        lambda: client.regenerate(thread, "nowhere"),
        lambda: client.switch_branch(thread, "nowhere"),
        lambda: client.delete_message(thread, "nowhere"),
        lambda: client.reset(thread, "nowhere"),
        lambda: client.annotate(thread, "nowhere", {"a": 1}),
    ):
        with pytest.raises(UsageError, match="nowhere"):
            await refused()
    assert await client.export_thread(thread) == before
    assert len(talk.model.requests) == 1
    assert (await client.status(thread)).state == "idle"


async def test_case_11_reset_takes_all_below(converse: Converse) -> None:
    """On all branches, and nothing beside."""
    talk = await converse()
    u = await said(talk, "u")
    a, beside = await said(talk, "a", u), await said(talk, "beside", u)
    await said(talk, "x2", await said(talk, "x1", a))
    await said(talk, "y1", a)
    changed = await talk.client.reset(talk.thread, a)
    assert changed.head_id == a
    assert await tree_of(talk) == {"u": "", "a": "u", "beside": "u"}
    assert await talk.shown() == ["u", "a"]
    await talk.client.switch_branch(talk.thread, beside)
    assert await talk.shown() == ["u", "beside"]
    assert (await talk.client.reset(talk.thread)).head_id is None
    assert await talk.shown() == []


async def test_case_12_13_an_imported_head_may_have_messages_below(converse: Converse) -> None:
    """They stay stored, children may be listed before their parents, and words stand beside what is below the head."""
    talk = await converse()
    await talk.client.start(talk.thread)

    def item(name: str, parent: str | None, role: str) -> dict[str, Any]:
        return {
            "parentId": parent,
            "message": {"id": name, "role": role, "content": [{"type": "text", "text": name}]},
        }

    messages = [
        item("a2", "u2", "assistant"),
        item("u1", None, "user"),
        item("a1", "u1", "assistant"),
        item("u2", "a1", "user"),
    ]
    await talk.client.import_thread(talk.thread, {"headId": "a1", "messages": messages})
    assert await talk.shown() == ["u1", "a1"]
    assert await tree_of(talk) == {"u1": "", "a1": "u1", "u2": "a1", "a2": "u2"}
    await talk.say("more")
    assert await talk.shown() == ["u1", "a1", "more", "answer 1 to more"]
    assert await siblings(talk, (await talk.ids())[2]) == ["u2", "more"]
    assert "u2" not in str(talk.model.requests[-1].messages)
    # Without a head the last message of the ordered list is shown: the one below the parent that was listed late.
    other = await converse()
    await other.client.start(other.thread)
    await other.client.import_thread(other.thread, {"messages": messages})
    assert await other.shown() == ["u1", "a1", "u2", "a2"]
