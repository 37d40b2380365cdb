"""Tools: what a model may call, and how a call is carried out.

One declaration whatever stands behind it. A Python function's parameters become the JSON schema that the model sees,
and its calls are validated against them before they run.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, TypeGuard, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from perdure.codec import loads_object
from perdure.errors import ConfigurationError
from perdure.misfits import misfits

ToolKind = Literal["function", "client", "activity", "workflow", "thread", "rap", "mcp"]
"""Who carries a call out.

function: a Python function on this worker; client: somebody on the user's side, who sends the result; activity: a
Temporal activity on another task queue; workflow: the thread's own workflow (timers, subscriptions); thread: the
runtime, which starts and reaches other threads; rap, mcp: a server of that protocol.
"""

ApprovalRule = Literal["always", "never"] | Callable[[Mapping[str, Any]], Any]
"""Whether people are asked before a call runs: always, never, or what a function says of the arguments.

The function is sync or async, gets the arguments as the tool does, with their defaults, and returns a bool, or an
`ApprovalRequest` that says what to ask; without a prompt or options it gets the usual ones. If the function raises,
returns anything else or takes too long, people are asked.
"""

ApprovalPolicy = Literal["always", "never"] | Callable[[str, Mapping[str, Any]], Any]
"""The same for all tools of an agent that say nothing themselves; the function gets the tool's name first."""

ToolsetApproval = ApprovalRule | Literal["destructive"] | Mapping[str, ApprovalRule]
"""The same for the tools of a server: for all of them, for those that the server calls destructive, or by its names for
them; others say nothing."""

KEPT_ARGUMENTS: Final = frozenset[ToolKind]({"activity", "workflow", "rap"})
"""Calls whose arguments the workflow keeps: it hands them on, carries the call out, or remembers what subscribed."""

_name = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A tool of an agent.

    Attributes:
        name: letters, digits, `_` and `-`, at most 64 characters, as every provider takes.
        description: what the model reads.
        parameters: JSON schema of the arguments, of type object.
        function: the Python function, sync or async. Sync ones run in a thread, which nothing can stop: after a
            timeout or an interrupt it runs on to its end, and what it returns is dropped. After an interrupt
            `temporalio.activity.is_cancelled()` is true in it.
        kind: who carries a call out, see `ToolKind`.
        passive: waiting for it does not hold back events and reports (the sleep family).
        retry_safe: running it twice does no harm, so after a crash it runs again. Without it a call whose worker
            died gets the error result "outcome unknown", since nobody can tell whether it took effect.
        timeout: how long one execution may take.
        toolset: the toolset that the tool came from; its server carries the call out.
        operation: the name that stands behind the tool: of an activity's type or a server's operation; `name` if None.
        task_queue: where an activity is picked up.
        approval: whether people are asked before a call runs; None leaves it to the agent. Passive tools wait for
            something and do nothing, so nobody is ever asked about those.
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
    toolset: str | None = None
    operation: str | None = None
    task_queue: str | None = None
    approval: ApprovalRule | None = None

    def __post_init__(self) -> None:
        """Refuse what no provider takes, when it is declared and not when a model is asked."""
        if not _name.fullmatch(self.name):
            raise ConfigurationError(
                f"Tool {self.name!r}: a name has 1 to 64 letters, digits, `_` or `-`; give another with `name=`."
            )
        if self.kind == "function" and self.function is None:
            raise ConfigurationError(f"Tool {self.name!r} of kind `function` needs a function.")
        if self.kind == "activity" and not self.task_queue:
            raise ConfigurationError(f"Tool {self.name!r} of kind `activity` needs the task queue that serves it.")
        if self.timeout <= timedelta(0):
            raise ConfigurationError(f"Tool {self.name!r}: the timeout must be longer than nothing.")
        check_approval(f"Tool {self.name!r}", self.approval)
        if self.passive and self.approval not in (None, "never"):
            raise ConfigurationError(f"Tool {self.name!r} is passive: it only waits, so there is nothing to approve.")

    def validate(self, arguments: str) -> dict[str, Any]:
        """The keyword arguments for the function out of the model's JSON text.

        Raises:
            ValueError: with a sentence for the model if the text is not a JSON object or does not fit the schema.
        """
        try:
            values = loads_object(arguments)
        except ValueError as error:
            raise ValueError(f"The arguments are not a JSON object ({error}).") from error
        if self.arguments is None:
            return values
        try:
            model = self.arguments.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"The arguments do not fit the tool: {'; '.join(misfits(error, 'arguments'))}.") from error
        fields = self.arguments.model_fields
        return {field.alias or name: getattr(model, name) for name, field in fields.items()}


class Toolset(Protocol):
    """Tools that are declared together: those of a server, or some of the runtime's own."""

    @property
    def name(self) -> str:
        """What tells it from the agent's other toolsets."""
        ...


def check_approval(owner: str, approval: object, *, by_name: bool = False) -> None:
    """Whether it can be a policy: `None`, a word, or a function; `by_name` if that gets the tool's name first.

    Raises:
        ConfigurationError: with a sentence that begins with the owner.
    """
    takes = "a tool's name and the arguments" if by_name else "the arguments"
    if approval is None or approval in ("always", "never"):
        return
    if not callable(approval):
        raise ConfigurationError(
            f'{owner}: `approval` is "always", "never" or a function of {takes}, and not {approval!r}.'
        )
    if inspect.isgeneratorfunction(approval) or inspect.isasyncgenfunction(approval):
        raise ConfigurationError(f"{owner}: the function given as `approval` yields; it must return what it says.")
    try:
        signature = inspect.signature(approval)
    except (TypeError, ValueError):
        return  # some built-in ones do not tell what they take
    try:
        signature.bind(*(("name", {}) if by_name else ({},)))
    except TypeError as error:
        raise ConfigurationError(f"{owner}: the function given as `approval` must take {takes} ({error}).") from error


def check_toolset_approval(owner: str, approval: ToolsetApproval | None) -> None:
    """The same for the tools of a toolset, all of them or by name. Raises ConfigurationError."""
    named = approvals_by_name(approval)
    if named is None and approval != "destructive":
        check_approval(owner, approval)
    for name, one in (named or {}).items():
        check_approval(f"{owner}, tool {name!r}", one)


def approvals_by_name(approval: ToolsetApproval | None) -> Mapping[str, ApprovalRule] | None:
    """What a toolset says of some of its tools, by the server's names; None if it says the same of all."""
    return approval if _is_by_name(approval) else None


def _is_by_name(approval: ToolsetApproval | None) -> TypeGuard[Mapping[str, ApprovalRule]]:
    return isinstance(approval, Mapping)


def approval_of(approval: ToolsetApproval | None, name: str, *, destructive: bool) -> ApprovalRule | None:
    """What a toolset says of the tool with this name, which its server calls destructive or not."""
    named = approvals_by_name(approval)
    if approval == "destructive":
        return "always" if destructive else None
    return named.get(name) if named is not None else cast("ApprovalRule | None", approval)


def function_tool(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Tool:
    """Declare a Python function as a tool; its docstring is the description.

    Raises:
        ConfigurationError: if the function yields, a parameter has no annotation or is not a plain named one, or an
            annotation cannot be described by a JSON schema.
    """
    tool_name = name or str(getattr(function, "__name__", type(function).__name__))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"Tool {tool_name!r} yields its result in pieces; return it whole.")
    try:
        arguments = _arguments_model(function, tool_name)
        parameters = arguments.model_json_schema()
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"Tool {tool_name!r}: no model can be told its parameters: {reason}") from error
    return Tool(
        name=tool_name,
        description=inspect.getdoc(function) or "",
        parameters=parameters,
        function=function,
        arguments=arguments,
        **options,
    )


def _arguments_model(function: Callable[..., Any], name: str) -> type[BaseModel]:
    hints = get_type_hints(_annotated(function), include_extras=True)
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"Tool {name!r}: parameter {parameter.name!r} must be a plain named parameter.")
        if parameter.name not in hints:
            raise ConfigurationError(f"Tool {name!r}: annotate parameter {parameter.name!r} with its type.")
        default = ... if parameter.default is parameter.empty else parameter.default
        # By alias, since some names mean something to pydantic (`copy`, `model_config`, `_private`).
        fields[f"parameter_{number}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the annotations of a callable are: its own, those of what a partial completes, or of `__call__`."""
    if isinstance(function, functools.partial):
        return _annotated(function.func)
    return function if inspect.isroutine(function) else type(function).__call__
