"""What a file may not do to a thread that it is imported into, and a thread to its exports."""

import json

import pytest

from perdure.errors import BlobNotFound, UsageError
from perdure.large_text import MISSING
from tests.cases.conftest import Converse
from tests.cases.conversation import ASK, PAY, results_of


async def test_a_call_that_a_file_left_open_is_asked_about(converse: Converse) -> None:
    """Nobody here has seen it, whatever the file says or leaves out: it runs once somebody has approved it."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    await talk.paused()
    file = await talk.client.export_thread(talk.thread)
    (call,) = [part for part in file["messages"][1]["message"]["content"] if part["type"] == "tool-call"]
    assert call.pop("approval"), "it was asked about"
    await talk.client.reset(talk.thread)
    await talk.client.import_thread(talk.thread, file)
    turn, (call_id,) = await talk.paused()
    assert results_of(await talk.message(turn)) == []
    await talk.client.deny(talk.thread, call_id)
    assert [outcome for outcome, _ in results_of(await talk.client.wait_settled(talk.thread))] == ["denied"]


async def test_a_result_whose_blob_is_not_stored_does_not_keep_a_thread_from_being_exported(
    converse: Converse,
) -> None:
    """The rest is carried away; in its place stands that it is missing."""
    talk = await converse({"go": [ASK, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    forged = {"call_id": call_id, "content": "see file", "blob": "ab" * 32}
    await talk.stack.handle(talk.thread).signal("tool_result", forged)
    await talk.until(turn, "complete")
    try:
        await talk.client.store.get_blob(talk.thread, "ab" * 32)
    except BlobNotFound:
        pass
    else:
        raise AssertionError("nobody has stored it")
    assert MISSING in json.dumps(await talk.client.export_thread(talk.thread))


async def test_a_paused_turn_is_answered_once_after_its_own_export_was_imported(converse: Converse) -> None:
    """It is the same turn, which waits for the same answer: nothing was changed that somebody has looked at."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    before = await talk.client.approvals(talk.thread)
    number = (await talk.message(turn)).turn
    imported = await talk.client.import_thread(talk.thread, await talk.client.export_thread(talk.thread))
    assert imported.head_id == turn
    assert (await talk.paused(), await talk.client.approvals(talk.thread)) == ((turn, [call_id]), before)
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.client.wait_settled(talk.thread)
    assert (settled.id, settled.turn, [outcome for outcome, _ in results_of(settled)]) == (turn, number, ["ok"])
    with pytest.raises(UsageError, match=call_id):
        await talk.client.deny(talk.thread, call_id)
    assert results_of(await talk.message(turn)) == results_of(settled)
