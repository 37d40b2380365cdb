"""Numbers with what they count, and money."""

import pytest

from perdure.quantity import dollars, quantity


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (12_000, "12,000 events")]
)
def test_only_one_is_one(number: int, said: str) -> None:
    """None and many are told in the plural, and thousands are set apart."""
    assert quantity(number, "event") == said


@pytest.mark.parametrize(
    ("nano_usd", "said"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (1_250, "$0.00000125"),
        (99_999, "$0.000099999"),
        (100_000, "$0.0001"),
        (12_350_000, "$0.0124"),
        (12_349_999, "$0.0123"),
        (500_000_000, "$0.50"),
        (999_950_000, "$1.00"),
        (1_234_500_000_000, "$1,234.50"),
    ],
)
def test_money_is_read_in_dollars(nano_usd: int, said: str) -> None:
    """Cents at least, four places at most, and sums below that in full, so that nothing is told as nothing."""
    assert dollars(nano_usd) == said
