"""Tools: what a model may call, and how a call is carried out.

One declaration whatever stands behind it. A Python function's parameters become the JSON schema that the model sees,
and its calls are validated against them before they run.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from perdure.codec import loads
from perdure.errors import ConfigurationError

ToolKind = Literal["function", "client"]


@dataclass(frozen=True)
class Tool:
    """A tool of an agent.

    Attributes:
        name: letters, digits, `_` and `-`, at most 64 characters, as every provider takes.
        description: what the model reads.
        parameters: JSON schema of the arguments, of type object.
        function: the Python function, sync or async; sync ones run in a thread.
        kind: `function` runs on the worker; `client` waits for a result from the user's side.
        passive: waiting for it does not hold back events and reports (the sleep family).
        retry_safe: running it twice does no harm, so after a crash it runs again. Without it a call whose worker
            died gets the error result "outcome unknown", since nobody can tell whether it took effect.
        timeout: how long one execution may take.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] | None = None
    kind: ToolKind = "function"
    passive: bool = False
    retry_safe: bool = False
    timeout: timedelta = timedelta(minutes=10)
    arguments: type[BaseModel] | None = field(default=None, repr=False, compare=False)

    def validate(self, arguments: str) -> dict[str, Any]:
        """The keyword arguments for the function out of the model's JSON text.

        Raises:
            ValueError: with a sentence for the model if the text is not a JSON object or does not fit the schema.
        """
        try:
            decoded: object = loads(arguments)
        except ValueError as error:
            raise ValueError(f"The arguments are not valid JSON ({error}).") from error
        if not isinstance(decoded, dict):
            raise ValueError("The arguments must be a JSON object.")
        values = cast("dict[str, Any]", decoded)
        if self.arguments is None:
            return values
        try:
            model = self.arguments.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"The arguments do not fit the tool: {_sentence(error)}.") from error
        return {name: getattr(model, name) for name in type(model).model_fields}


def function_tool(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Tool:
    """Declare a Python function as a tool; its docstring is the description.

    Raises:
        ConfigurationError: if a parameter has no annotation or cannot be described by a JSON schema.
    """
    tool_name = name or function.__name__
    arguments = _arguments_model(function, tool_name)
    return Tool(
        name=tool_name,
        description=inspect.getdoc(function) or "",
        parameters=arguments.model_json_schema(),
        function=function,
        arguments=arguments,
        **options,
    )


def _arguments_model(function: Callable[..., Any], name: str) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"Tool {name!r}: parameter {parameter.name!r} must be a plain named parameter.")
        if parameter.name not in hints:
            raise ConfigurationError(f"Tool {name!r}: annotate parameter {parameter.name!r} with its type.")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(place) for place in item['loc']) or 'arguments'}: {item['msg']}" for item in error.errors()
    )
