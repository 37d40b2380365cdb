"""Structured output over a whole turn: what people and models read of answers that do not fit."""

import pytest
from pydantic import BaseModel

from perdure.agent import Agent
from perdure.errors import TurnFailed
from perdure.messages import ToolResultPart
from perdure.output import FINAL_RESULT
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.workflows.conftest import StackFactory


class Receipt(BaseModel):
    """A receipt."""

    shop: str
    total: float


async def test_a_model_that_never_fits_ends_its_turn_soon(start_stack: StackFactory, thread: str) -> None:
    """It is asked three times and not until the limit of steps; the thread goes on, and nobody reads a library."""

    def answer(asked: Asked) -> Reply:
        fits = {"total": 4.5} if asked.user_text == "Again." else {}
        return Reply(Call(FINAL_RESULT, {"shop": "Café", **fits}))

    model = ScriptedModel(answer)
    stack = await start_stack(Agent("a", model=model, output=Receipt))
    with pytest.raises(TurnFailed) as caught:
        await stack.client.ask(thread, "How much?", output=Receipt)
    assert str(caught.value) == (
        "The answer did not fit Receipt three times in a row: total: Field required. "
        "Ask again, or let another model answer."
    )
    assert (caught.value.status.state, caught.value.status.reason) == ("incomplete", "error")
    assert len(model.requests) == 3
    (_, turn) = await stack.client.history(thread)
    results = [part.content for part in turn.parts if isinstance(part, ToolResultPart)]
    assert results == ["total: Field required"] * 2
    assert await stack.client.ask(thread, "Again.", output=Receipt) == Receipt(shop="Café", total=4.5)
