"""Callbacks of tool servers for people: questions and views."""

from typing import Any

import pytest

from gateway.delivery import MAX_VIEW_BYTES
from perdure.errors import TooManyViews
from perdure.records import MAX_VIEWS
from tests.gateway.bodies import choice, is_untouched, oauth, view
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread

# -- questions and views ---------------------------------------------------------------------------------------------


async def test_questions_are_kept_and_the_call_stays_open(served: Served, waiting: WaitingThread) -> None:
    """A link and a choice are stored for clients, with all that is needed to answer; the workflow is not woken."""
    assert (await served.post(waiting.thread_id, waiting.calls[0], oauth(waiting))).status_code == 200
    assert (await served.post(waiting.thread_id, waiting.calls[0], choice(waiting))).status_code == 200
    link, question = await served.store.get_choices(waiting.thread_id)
    assert (link.kind, link.auth_url) == ("oauth", "https://id.example/authorize?x=1")
    assert (question.kind, question.prompt, question.choices, question.default) == ("choice", "Which?", ("a", "b"), 1)
    assert question.response_url == "http://127.0.0.1:1/answer"
    assert {link.call_id, question.call_id} == {waiting.calls[0]}
    assert (await served.store.get_call(waiting.thread_id, waiting.calls[0])).result is None
    assert await served.signals(waiting.thread_id) == []


async def test_a_newer_question_takes_the_place_of_the_one_before(served: Served, waiting: WaitingThread) -> None:
    """A question that comes again, or with other words, is one question; one of another call is another."""
    for prompt in ("Which?", "Which?", "Really?"):
        await served.post(waiting.thread_id, waiting.calls[0], choice(waiting, prompt=prompt))
    await served.post(waiting.thread_id, waiting.calls[1], choice(waiting, id=waiting.calls[1]))
    questions = await served.store.get_choices(waiting.thread_id)
    assert [(question.call_id, question.prompt) for question in questions] == [
        (waiting.calls[0], "Really?"),
        (waiting.calls[1], "Which?"),
    ]


@pytest.mark.parametrize("kind", [oauth, choice])
async def test_a_question_of_a_settled_call_is_refused(served: Served, waiting: WaitingThread, kind: Any) -> None:
    """Nobody can answer it any more, a forged one least of all: 410, and nothing is shown."""
    await waiting.settle(subscribed=True)
    assert (await served.post(waiting.thread_id, waiting.calls[0], kind(waiting))).status_code == 410
    assert await is_untouched(served, waiting)


async def test_the_newest_view_is_kept(served: Served, waiting: WaitingThread) -> None:
    """One view for each type, with the content as it came; a settled call may still send one."""
    await served.post(waiting.thread_id, waiting.calls[0], view(waiting))
    await waiting.settle()
    newest = {"b": [1.5, None], "a": "\ud800"}
    await served.post(waiting.thread_id, waiting.calls[0], view(waiting, content=newest))
    await served.post(waiting.thread_id, waiting.calls[0], view(waiting, view_type="plan", content="x"))
    views = (await served.store.snapshot(waiting.thread_id)).views
    assert {shown.view_type: shown.content for shown in views} == {
        "diff": '{"b":[1.5,null],"a":"\\ud800"}',
        "plan": '"x"',
    }
    assert await served.signals(waiting.thread_id) == []


async def test_one_view_type_too_many_is_refused(served: Served, waiting: WaitingThread) -> None:
    """413 with one sentence, since to send it again would not help; one that is shown is still replaced."""
    for number in range(MAX_VIEWS):
        await served.store.put_view(waiting.thread_id, f"type{number}", "1")
    answer = await served.post(waiting.thread_id, waiting.calls[0], view(waiting))
    assert (answer.status_code, answer.json()) == (413, {"error": str(TooManyViews(MAX_VIEWS))})
    replaced = view(waiting, view_type="type7")
    assert (await served.post(waiting.thread_id, waiting.calls[0], replaced)).status_code == 200
    cleared = view(waiting, view_type="type8", content={})
    assert (await served.post(waiting.thread_id, waiting.calls[0], cleared)).status_code == 200
    assert (await served.post(waiting.thread_id, waiting.calls[0], view(waiting))).status_code == 200


async def test_a_view_has_a_largest_size(served: Served, waiting: WaitingThread) -> None:
    """413 for one byte more than that as JSON, although the body would be taken; just as many are shown."""
    async with Served(served.temporal, served.store, callback_bytes=2 * MAX_VIEW_BYTES) as roomy:
        content = "x" * (MAX_VIEW_BYTES - len('""'))
        above = await roomy.post(waiting.thread_id, waiting.calls[0], view(waiting, content=content + "x"))
        assert above.status_code == 413
        assert "1,000,000 bytes" in above.json()["error"]
        assert await is_untouched(served, waiting)
        assert (
            await roomy.post(waiting.thread_id, waiting.calls[0], view(waiting, content=content))
        ).status_code == 200
    assert not await is_untouched(served, waiting)
