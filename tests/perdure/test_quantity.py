"""Numbers with what they count."""

import pytest

from perdure.quantity import quantity


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (12_000, "12,000 events")]
)
def test_only_one_is_one(number: int, said: str) -> None:
    """None and many are told in the plural, and thousands are set apart."""
    assert quantity(number, "event") == said
