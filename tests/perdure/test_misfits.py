"""What is said of values that do not fit."""

from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError

from perdure.misfits import misfits


def of(kind: type, value: object) -> list[str]:
    """What is wrong with a value."""
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    return misfits(raised.value, "the arguments")


class Address(BaseModel):
    """Where somebody lives."""

    city: str
    number: int


class Person(BaseModel):
    """Somebody."""

    name: str
    addresses: list[Address]


def test_each_field_has_a_line_with_its_place() -> None:
    """However deep it is; what was given is not repeated."""
    found = of(Person, {"name": 5, "addresses": [{"city": "Paris", "number": "secret"}, {"city": "Rome"}]})
    assert [line.partition(":")[0] for line in found] == ["name", "addresses.0.number", "addresses.1.number"]
    assert "secret" not in str(found)


def test_what_has_no_place_is_the_whole() -> None:
    """As whoever asks calls it."""
    assert of(Person, 5) == ["the arguments: Input should be a valid dictionary or instance of Person"]


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


def test_a_validator_speaks_for_itself() -> None:
    """Without the word that pydantic puts before it."""

    class Pair(BaseModel):
        size: Annotated[int, AfterValidator(_even)]

    assert of(Pair, {"size": 3}) == ["size: must be even"]


@pytest.mark.parametrize(("count", "more"), [(1, []), (10, []), (11, ["and 1 more"]), (1_500, ["and 1,490 more"])])
def test_of_many_lines_the_first_ten_are_told(count: int, more: list[str]) -> None:
    """The others are counted."""
    found = of(list[int], ["x"] * count)
    assert [line.partition(":")[0] for line in found] == [*map(str, range(min(count, 10))), *more]
