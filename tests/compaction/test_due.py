"""A compaction that is due is begun whichever attempt tells of the answer."""

import pytest

from perdure.compaction import Compaction
from perdure.messages import Usage
from perdure.testing import Reply
from tests.activities.conversation import Conversation, FaultyStore, requests_of, scripted


@pytest.mark.parametrize(("tokens", "due"), [(79, False), (80, True)])
@pytest.mark.parametrize("attempt", [1, 2])
async def test_an_attempt_that_finds_its_step_done_says_whether_a_compaction_is_due(
    tokens: int, due: bool, attempt: int
) -> None:
    """As the one that asked the model did: that one's worker may have ended before it could say so.

    A second attempt asks no model for that; the first one of a run that was reset asks, and then finds it done.
    """
    reply = Reply("done", usage=Usage(input_tokens=tokens))
    thread = await Conversation.start(
        scripted([reply], compaction=Compaction(context_window=100, at=0.8)), FaultyStore()
    )
    await thread.say("hi")
    first = await thread.complete()
    assert first.compact is due
    assert await thread.complete(attempt=attempt) == first
    assert len(requests_of(thread.agent).requests) == attempt % 2 + 1
