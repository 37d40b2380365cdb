"""Numbers with what they count, for people."""


def quantity(number: int, noun: str) -> str:
    """`1 event`, `2 events`, `1,000 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
