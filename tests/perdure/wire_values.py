"""Hypothesis strategies for boundary types, made from the annotations of their fields."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from perdure.codec import Text, Wire
from perdure.contract import Name
from perdure.inputs import InputId
from perdure.messages import ModelName
from tests.properties import hostile_text, json_values

plain_text = st.text(max_size=20)
_leaves: dict[Any, st.SearchStrategy[Any]] = {
    Any: json_values,
    NoneType: st.none(),
    str: plain_text,
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Text: hostile_text,
    ModelName: st.text(min_size=1, max_size=20),
    InputId: st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
    Name: st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
}


@cache
def values_of(kind: type[Wire]) -> st.SearchStrategy[Wire]:
    """Values with any of their fields set."""
    hints = get_type_hints(kind, include_extras=True)
    required = {name: _within(field, hints[name]) for name, field in kind.model_fields.items() if field.is_required()}
    optional = {name: _within(field, hints[name]) for name, field in kind.model_fields.items() if name not in required}
    fields = st.fixed_dictionaries(required, optional=optional)
    return st.deferred(lambda: fields.map(lambda values: kind(**values)))


def _within(field: FieldInfo, hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field, within its bounds if it has some: only times do, and those may be left out."""
    most = next((about.le for about in field.metadata if hasattr(about, "le")), None)
    return _values(hint) if most is None else st.none() | st.floats(min_value=0, exclude_min=True, max_value=most)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _leaves:
        return _leaves[hint]
    arguments = get_args(hint)
    origin = get_origin(hint)
    build: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        Annotated: lambda: _values(arguments[0]),
        Literal: lambda: st.sampled_from(arguments),
        Union: lambda: st.one_of([_values(one) for one in arguments]),
        UnionType: lambda: st.one_of([_values(one) for one in arguments]),
        dict: lambda: st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=2),
        tuple: lambda: _tuples(arguments),
    }
    if origin in build:
        return build[origin]()
    assert issubclass(hint, Wire), hint
    return values_of(hint)


def _tuples(arguments: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if arguments[-1] is Ellipsis:
        return st.lists(_values(arguments[0]), max_size=2).map(tuple)
    return st.tuples(*(_values(one) for one in arguments))
