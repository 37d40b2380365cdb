"""JSON Schema: the parameters of tools that others describe, and the arguments that have to fit them.

Schemas come from servers, so reading one does nothing but read: references to other documents are not fetched, and
patterns run on an engine that takes linear time whatever they are. A pattern that it cannot express (a lookahead, for
one) is left to the server, as is `unevaluatedProperties`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  it has no types
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Resource
from referencing.exceptions import CannotDetermineSpecification, Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from perdure.codec import clip, is_json

_validators: Any = validators  # its classes are described by a protocol that lacks half of what they have
_specifications: Any = REGISTRY
"""The dialects themselves: the only other documents that a schema may refer to."""

_ENDLESS: Final = "it is nested too deeply, or refers to itself without end"
_REASONS, _REASON_CHARS = 5, 200
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def object_schema(schema: object) -> dict[str, Any]:
    """A schema of arguments, checked; its `type` is stated even where it may be left out, since providers want it.

    Raises:
        ValueError: if it is no valid JSON Schema (draft 2020-12, or the one that it names), does not describe objects,
            or refers to what is not within it.
    """
    if not isinstance(schema, dict):
        raise ValueError("it is not an object")
    if not is_json(cast("object", schema)):
        raise ValueError("it is nested too deeply")
    checked = cast("dict[str, Any]", schema)
    if not isinstance(checked.get("$schema", ""), str):
        raise ValueError("its `$schema` is not a text")
    try:
        _dialect(checked).check_schema(checked, format_checker=None)
    except SchemaError as error:
        raise ValueError(_reason(error)) from error
    except RecursionError as error:
        raise ValueError(_ENDLESS) from error
    types = checked.get("type", "object")
    if types != "object" and "object" not in types:
        raise ValueError(f"its type is {clip(str(types), _REASON_CHARS)}, not object")
    stated = {**checked, "type": "object"}
    _check_references(stated)
    reasons(stated, {})
    return stated


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Compare arguments with the schema of a tool.

    Raises:
        ValueError: with a sentence for the model.
    """
    try:
        found = reasons(schema, arguments)
    except ValueError as error:
        raise ValueError(f"The arguments cannot be checked, the tool's schema is not valid: {error}.") from error
    if found:
        raise ValueError(f"The arguments do not fit the tool: {'; '.join(found)}.")


def reasons(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What does not fit a schema, a line for each of the first few; none if all does.

    Raises:
        ValueError: if the schema is no valid one.
    """
    # Without `$schema`, which would make jsonschema go on with its own class where a reference leads back to the root.
    root = {name: value for name, value in schema.items() if name != "$schema"}
    validator = _linear(_dialect(schema))(root, registry=_specifications)
    try:
        return [_reason(error) for error in islice(validator.iter_errors(dict(arguments)), _REASONS)]
    except RecursionError as error:
        raise ValueError(_ENDLESS) from error
    except Unresolvable as error:
        raise _outside(error) from error


def _outside(error: Unresolvable) -> ValueError:
    return ValueError(f"it refers to {clip(str(error.ref), 80)}, which is not within it")


def _dialect(schema: Mapping[str, Any]) -> Any:
    """The validator class for the schema's dialect."""
    return _validators.validator_for(schema, default=Draft202012Validator)


def _reason(error: ValidationError | SchemaError) -> str:
    place = ".".join(map(str, error.absolute_path))
    message = clip(error.message, _REASON_CHARS)
    return f"{clip(place, _REASON_CHARS)}: {message}" if place else message


def _check_references(schema: dict[str, Any]) -> None:
    specification = specification_with(_dialect(schema).META_SCHEMA["$schema"], default=DRAFT202012)
    root = specification.create_resource(schema)
    resolver = _specifications.resolver_with_root(root)
    try:
        _look_up(root, resolver)
    except Unresolvable as error:
        raise _outside(error) from error
    except CannotDetermineSpecification as error:
        raise ValueError("it has a part with an unknown `$schema`") from error
    except RecursionError as error:
        raise ValueError(_ENDLESS) from error


def _look_up(resource: Resource[Any], resolver: Any) -> None:
    contents = resource.contents
    if isinstance(contents, dict):
        for keyword in _REFERENCES:
            if keyword in contents:
                resolver.lookup(contents[keyword])
    for inner in resource.subresources():
        _look_up(inner, resolver.in_subresource(inner))


@cache
def _linear(dialect: Any) -> Any:
    """The dialect with patterns that cannot take for ever."""
    additional = dialect.VALIDATORS["additionalProperties"]

    def additional_properties(
        validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]
    ) -> Iterator[ValidationError]:
        patterns: Iterable[str] = schema.get("patternProperties", {})
        if not isinstance(instance, dict) or not all(_compiled(pattern) for pattern in patterns):
            return
        named = cast("dict[str, Any]", instance)
        rest = {name: item for name, item in named.items() if not any(_matches(each, name) for each in patterns)}
        yield from additional(validator, value, rest, {"properties": schema.get("properties", {})})

    changed = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": additional_properties,
        "unevaluatedProperties": _left_to_the_server,
    }
    return _validators.extend(dialect, {name: rule for name, rule in changed.items() if name in dialect.VALIDATORS})


def _pattern(_: Any, pattern: str, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    if isinstance(instance, str) and _compiled(pattern) and not _matches(pattern, instance):
        yield ValidationError(f"{clip(instance, 80)!r} does not match {clip(pattern, 80)!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for name, item in cast("dict[str, Any]", instance).items():
            for pattern, schema in patterns.items():
                if _matches(pattern, name):
                    yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _left_to_the_server(*_: Any) -> Iterator[ValidationError]:
    return iter(())


def _matches(pattern: str, text: str) -> bool:
    compiled = _compiled(pattern)
    return compiled is not None and compiled.isinstance_python(text.encode("utf-8", "replace").decode("utf-8"))


@lru_cache(maxsize=500)
def _compiled(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError:
        return None
