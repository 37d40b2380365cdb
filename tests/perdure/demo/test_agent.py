"""The demo's agent: what its script makes of what one says."""

from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from perdure.demo.agent import answer
from perdure.testing import Asked, Call


def test_the_script_calls_what_the_user_names() -> None:
    """Cities in the order of the words, a table with its number of people; a story and an explanation without tools."""

    def calls(words: str) -> list[Call]:
        return [item for item in answer(asked(words)).items if isinstance(item, Call)]

    assert calls("Oslo or Paris?") == [Call("get_weather", {"city": "Oslo"}), Call("get_weather", {"city": "Paris"})]
    assert calls("A table for 7, please") == [Call("book_table", {"restaurant": "Chez Marie", "people": 7})]
    assert calls("Tell me a story") == []
    assert calls("What if a worker dies?") == []
    assert calls("Hello") == []


def asked(words: str) -> Asked:
    """A request with these words of the user."""
    return Asked((ModelRequest(parts=[UserPromptPart(words)]),), ModelRequestParameters())
