"""Structured output: what an agent's turns end with instead of words.

The model gives it by calling a tool that is offered for that, which works with every provider. What it gives is
checked as a call's arguments are; the answer of the turn is then the JSON text, in the model's own words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from perdure.codec import clip, loads_object
from perdure.errors import ConfigurationError
from perdure.misfits import misfits
from perdure.schema import check_arguments, object_schema, reasons

FINAL_RESULT: Final = "final_result"
"""The tool that the model calls with its answer. An agent with structured output can have no other of this name."""

DESCRIPTION: Final = "Give the final answer. Call this when nothing else is left to do."
_NAME_CHARS: Final = 100
_REASON_CHARS: Final = 500


@dataclass(frozen=True)
class Output:
    """What a turn ends with.

    Attributes:
        name: what people call it: the type's name, or the schema's title.
        schema: the JSON schema, of an object.
        description: what the model reads about it.
    """

    name: str
    schema: Mapping[str, Any]
    description: str
    _type: TypeAdapter[Any] | None = None

    def value(self, text: str) -> Any:
        """The answer out of its JSON text: of the declared type, or a dict.

        Raises:
            ValueError: with a sentence that says what does not fit.
        """
        values = loads_object(text)
        if self._type is None:
            check_arguments(self.schema, values)
            return values
        return self._type.validate_json(text)

    def objection(self, text: str) -> str | None:
        """Why a text is no answer, for the model; None if it is one."""
        return "\n".join(self.misfits(text)) or None

    def misfits(self, text: str) -> list[str]:
        """What does not fit, a line for each field: its place and what is wrong. Empty if it is an answer."""
        try:
            values = loads_object(text)
        except ValueError as error:
            return [f"the answer is not a JSON object ({clip(str(error), _REASON_CHARS)})"]
        try:
            if self._type is None:
                return reasons(self.schema, values)
            self._type.validate_json(text)
        except ValidationError as error:
            return misfits(error, "the answer")
        except Exception as error:  # validators of the user's type may raise anything, and the model is told
            return [clip(str(error), _REASON_CHARS) or type(error).__name__]
        return []


def output_of(owner: str, declared: type[Any] | Mapping[str, Any]) -> Output:
    """What was declared for `owner`, which errors name.

    Raises:
        ConfigurationError: if it is not a type or a JSON schema whose values are JSON objects.
    """
    known: TypeAdapter[Any] | None = None
    try:
        if isinstance(declared, Mapping):
            schema = object_schema(dict(declared))
        else:
            known = TypeAdapter(declared)
            schema = object_schema(_at_its_root(known.json_schema()))
    except (ValueError, PydanticUserError) as error:
        raise ConfigurationError(f"{owner}: its output is no JSON schema of an object: {error}.") from error
    said = " ".join(str(schema.get("description", "")).split())
    title = str(schema.get("title") or "its schema") if known is None else getattr(declared, "__name__", str(declared))
    return Output(clip(title, _NAME_CHARS), schema, f"{DESCRIPTION} {said}".strip(), known)


def _at_its_root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type that contains itself, which pydantic gives as a reference; providers want an object."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema
