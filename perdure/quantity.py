"""Numbers with what they count, and money, for people."""

from decimal import Decimal


def quantity(number: int, noun: str) -> str:
    """`1 event`, `2 events`, `1,000 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def dollars(nano_usd: int) -> str:
    """Billionths of a US dollar as one reads them: `$1,234.50`, `$0.0123`; tiny sums in full, `$0.00000125`.

    From a hundredth of a cent on what is behind the fourth place is rounded away; halves go up.
    """
    digits = 4 if nano_usd >= 100_000 else 9
    whole, _, part = f"{_rounded(nano_usd, digits):,f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def _rounded(nano_usd: int, digits: int) -> Decimal:
    return Decimal((nano_usd + 10 ** (9 - digits) // 2) // 10 ** (9 - digits)).scaleb(-digits)
