"""Model calls of turns that are not where the head is: each reads the path to its own message."""

from activities.model_calls import CUT_OFF
from perdure.batch import AppendMessage
from perdure.messages import Message, TextPart
from perdure.testing import Call, Reply
from tests.activities.conversation import Conversation, requests_of, scripted, with_write

CUT = Reply(Call("write", '{"path":"a.txt"'), finish="length")


def words(name: str, text: str) -> Message:
    """Words of the user."""
    return Message(id=name, thread_id="t", role="user", parts=(TextPart(text=text),))


async def test_a_turn_that_is_hidden_reads_its_own_branch() -> None:
    """Somebody edits the question while its answer is under way: that goes on as if nobody had."""
    agent = with_write(scripted([Reply(Call("read", {})), "done"]))
    thread = await Conversation.start(agent)
    await thread.say("first")
    await thread.commit(await thread.complete(), "what was read")
    await thread.sync(AppendMessage(message=words("edited", "second"), beside="u1"))
    assert (await thread.store.get_thread("t")).head_id == "edited"
    thread.named = True
    assert (await thread.complete()).preview == "done"
    asked = requests_of(agent).requests[-1]
    assert (asked.user_text, asked.results) == ("first", ("what was read",))


async def test_a_turn_with_words_below_it_does_not_read_them() -> None:
    """They come after the answer, so it is not an answer to them."""
    agent = scripted(["done"])
    thread = await Conversation.start(agent)
    await thread.say("first")
    await thread.sync(AppendMessage(message=words("note", "by the way")))
    thread.named = True
    await thread.complete()
    assert requests_of(agent).requests[-1].user_text == "first"


async def test_a_call_that_is_tried_again_answers_what_it_was_asked_for() -> None:
    """The turn was at the head when its call was asked for, so the request does not name it. Then the head moved."""
    agent = scripted(["done"])
    thread = await Conversation.start(agent)
    await thread.say("first")
    await thread.sync(AppendMessage(message=words("note", "by the way")))
    await thread.complete(attempt=2)
    assert requests_of(agent).requests[-1].user_text == "first"


async def test_b31_the_second_cut_in_a_row_is_that_of_the_turn_and_not_of_the_branch_that_is_open() -> None:
    """B31: what was cut off before is looked up in the turn's own message, wherever the head is."""
    thread = await Conversation.start(with_write(scripted([CUT, CUT])))
    await thread.say("write it")
    first = await thread.complete()
    assert (first.calls[0].error or "").startswith(CUT_OFF)
    await thread.commit(first)
    await thread.sync(AppendMessage(message=words("edited", "do something else"), beside="u1"))
    thread.named = True
    second = await thread.complete()
    assert (second.finish, second.calls) == ("length", ())
