"""The start input, as people and programs give it."""

import pytest

from perdure.contract import ThreadStart
from perdure.converter import data_converter
from perdure.errors import UsageError


@pytest.mark.parametrize(
    "value", [None, {}, {"agent": "a"}, {"agent": None, "tenant": "x" * 200, "title": "\ud83d" * 200}]
)
def test_a_start_may_leave_everything_out(value: object) -> None:
    """Nothing, an empty object and any of the fields; a title may hold half a character, as words do."""
    start = ThreadStart.read(value)
    payload = data_converter.payload_converter.to_payload(start)
    assert data_converter.payload_converter.from_payload(payload, ThreadStart) == start


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"agnet": "weather"}, r"there is no field `agnet` \(there are agent, tenant, title"),
        ({"agent": "x" * 201}, "`agent` must be 1 to 200 characters"),
        ({"agent": ""}, "`agent` must be 1 to 200 characters"),
        ({"tenant": "x" * 201}, "`tenant` must be 1 to 200 characters"),
        ({"tenant": "a\nb"}, "`tenant` must be 1 to 200 characters without control characters"),
        ({"title": "x" * 201}, "`title` must be at most 200 characters"),
        ({"tenant": 5}, "`tenant`: "),
        ({"kind": "odd"}, "`kind`: "),
        ("weather", "give an object"),
        ({"x" * 5000: 1}, "there is no field"),
    ],
)
def test_what_is_wrong_with_a_start_is_said(value: object, reason: str) -> None:
    """One short line that names the field, and no default in its place."""
    with pytest.raises(UsageError, match=reason) as raised:
        ThreadStart.read(value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    with pytest.raises(ValueError, match=r".+"):
        ThreadStart.model_validate(value)
