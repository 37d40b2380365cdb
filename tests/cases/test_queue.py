"""Cases 83 and 84: words that wait while an answer is under way."""

from perdure.inputs import Disposition, Mode
from perdure.messages import Status
from perdure.testing import Call, Reply
from tests.cases.conftest import Converse
from tests.cases.conversation import Conversation, Gate, text_of, with_gate


async def held(converse: Converse, gate: Gate, **replies: list[Reply | str]) -> Conversation:
    """A conversation whose answer to "go" waits for the gate."""
    talk = await converse({"go": [Reply(Call("hold")), "went"], **replies}, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go", id="go")
    await gate.begun.wait()
    return talk


async def test_case_83_words_wait_in_their_order_and_steered_ones_go_first(converse: Converse) -> None:
    """They interrupt nothing; what is steered joins before the next step, the others follow the whole answer."""
    gate = Gate()
    talk = await held(converse, gate)
    waiting: list[tuple[str, Mode, Disposition]] = [
        ("one", "queue", "queued"),
        ("two", "queue", "queued"),
        ("now", "steer", "steered"),
    ]
    for words, mode, what in waiting:
        accepted = await talk.client.send(talk.thread, words, id=words, mode=mode)
        assert accepted.disposition == what
    assert (await talk.client.status(talk.thread)).queued == 3
    assert await talk.shown() == ["go", ""]
    gate.open.set()
    await talk.client.wait_settled(talk.thread, (await talk.client.send(talk.thread, "two", id="two")).message_id)
    shown = await talk.shown()
    assert shown == ["go", "", "now", "answer 1 to now", "one", "two", "answer 1 to two"]
    assert (await talk.path())[1].status.reason == "steered"
    assert len(talk.model.requests) == 3


async def test_case_83_another_answer_while_words_wait(converse: Converse) -> None:
    """One answer at a time: it stops the first, the words go on waiting, and follow it when it is complete."""
    gate = Gate()
    replies: list[Reply | str] = [Reply(Call("hold")), "went", "not asked"]
    talk = await converse({"go": [Reply(Call("hold")), *replies]}, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go", id="go")
    await gate.begun.wait()
    first = (await talk.ids())[-1]
    waits = await talk.client.send(talk.thread, "later", id="later", mode="queue")
    second = (await talk.client.regenerate(talk.thread, first)).message_id
    assert second is not None
    assert await talk.status(first) == Status(state="incomplete", reason="cancelled")
    assert (await talk.status(second)).state == "running"
    assert (await talk.client.status(talk.thread)).queued == 1
    gate.open.set()
    await talk.client.wait_settled(talk.thread, waits.message_id)
    assert await talk.shown() == ["go", "went", "later", "answer 1 to later"]
    assert (await talk.ids())[1] == second
    running = [
        one.message.id
        for one in (await talk.client.tree(talk.thread)).messages
        if one.message.status.state == "running"
    ]
    assert running == []


async def test_case_84_a_stop_keeps_what_waits(converse: Converse) -> None:
    """Only the answer under way ends; what waits for its end is taken then, in its order, before what is sent next."""
    gate = Gate()
    talk = await held(converse, gate)
    await talk.client.send(talk.thread, "one", id="one", mode="queue")
    await talk.client.send(talk.thread, "two", id="two", mode="queue")
    assert (await talk.client.stop(talk.thread)).turn == 1
    settled = await talk.client.wait_settled(
        talk.thread, (await talk.client.send(talk.thread, "three", id="three", mode="queue")).message_id
    )
    assert text_of(settled) == "answer 1 to three"
    asked = [message.input_id for message in await talk.path() if message.role == "user"]
    assert asked == ["go", "one", "two", "three"]
    assert (await talk.path())[1].status == Status(state="incomplete", reason="cancelled")
    assert (await talk.client.status(talk.thread)).queued == 0
