"""What an agent says of compaction, and when one is due."""

from typing import Any

import pytest

from perdure.compaction import Compaction, is_due, window
from perdure.errors import ConfigurationError
from perdure.messages import Usage


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"at": 0.0}, "at=0.0"),
        ({"at": 1.1}, "at=1.1"),
        ({"at": 0.5, "keep": 0.5}, "keep=0.5"),
        ({"keep": -0.1}, "keep=-0.1"),
        ({"context_window": 0}, "context_window=0"),
        ({"strategy": "forget"}, "summary, trace, window"),
    ],
)
def test_what_has_no_meaning_is_refused_when_it_is_declared(options: dict[str, Any], named: str) -> None:
    """The sentence names what is wrong."""
    with pytest.raises(ConfigurationError, match=named):
        Compaction(**options)


def test_one_is_due_when_a_request_has_taken_its_share_of_the_window() -> None:
    """Tokens in and out count; the agent's word goes before the profile's, and without either none is due."""
    usage = Usage(requests=1, input_tokens=700, output_tokens=100)
    assert is_due(Compaction(context_window=1_000), {}, usage)
    assert not is_due(Compaction(context_window=1_001), {}, usage)
    assert is_due(Compaction(), {"context_window": 1_000}, usage)
    assert window(Compaction(context_window=5), {"context_window": 1_000}) == 5
    assert not is_due(Compaction(), {}, usage)
    assert not is_due(None, {"context_window": 1}, usage)
