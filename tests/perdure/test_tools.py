"""Tools: a Python function as the model sees it, and its calls checked before they run."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field

from perdure.errors import ConfigurationError
from perdure.tools import ApprovalRule, Tool, approval_of, check_toolset_approval, function_tool


class Place(BaseModel):
    """Where."""

    city: str
    country: str = "FR"


@dataclass
class Span:
    """When."""

    start: date
    days: int = 1


async def get_weather(city: str, days: Annotated[int, Field(ge=1, description="how many")] = 1) -> str:
    """The weather in a city.

    For some days.
    """
    return f"{city} {days}"


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    """Name, description and a JSON schema of the arguments, required ones named."""
    tool = function_tool(get_weather)
    assert tool.name == "get_weather"
    assert tool.description == "The weather in a city.\n\nFor some days."
    assert tool.parameters["type"] == "object"
    assert tool.parameters["required"] == ["city"]
    assert tool.parameters["additionalProperties"] is False
    assert tool.parameters["properties"]["city"]["type"] == "string"
    days = tool.parameters["properties"]["days"]
    assert (days["type"], days["default"], days["minimum"], days["description"]) == ("integer", 1, 1, "how many")


def test_options_are_those_of_the_declaration() -> None:
    """A name of its own, and everything that says how it is run."""
    tool = function_tool(get_weather, name="weather", retry_safe=True, timeout=timedelta(seconds=5))
    assert (tool.name, tool.retry_safe, tool.timeout) == ("weather", True, timedelta(seconds=5))
    assert tool.function is get_weather


def test_arguments_become_what_the_annotations_say() -> None:
    """Models, dataclasses, dates and literals are built; defaults are filled in."""

    def book(place: Place, span: Span, kind: Literal["train", "bus"], tags: list[str] | None = None) -> None:
        """Book."""

    checked = function_tool(book).validate('{"place":{"city":"Paris"},"span":{"start":"2025-01-02"},"kind":"bus"}')
    assert checked == {"place": Place(city="Paris"), "span": Span(date(2025, 1, 2)), "kind": "bus", "tags": None}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("{}", "city: Field required"),
        ('{"city":"P","days":0}', "days: Input should be greater than or equal to 1"),
        ('{"city":5}', "city: Input should be a valid string"),
        ('{"city":"P","town":"Q"}', "town: Extra inputs are not permitted"),
        ("", "not a JSON object"),
        ('{"city":', "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"city":"P","days":NaN}', "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, sentence: str) -> None:
    """The sentence names the argument, so that the model can try again; nothing runs."""
    with pytest.raises(ValueError, match=sentence):
        function_tool(get_weather).validate(arguments)


def test_long_integers_arrive_whole() -> None:
    """19 digits and more are not rounded (case B69)."""

    def add(number: int) -> None:
        """Add."""

    assert function_tool(add).validate('{"number":1234567890123456789012}') == {"number": 1234567890123456789012}


def test_half_a_character_arrives_as_it_is() -> None:
    """Models cut emoji in two; the tool decides what to make of it."""
    assert function_tool(get_weather).validate('{"city":"\\ud83d"}')["city"] == "\ud83d"


def test_any_parameter_name_works() -> None:
    """Names that mean something to pydantic are names like all others."""

    def odd(copy: str, model_config: int, _private: str = "x", schema: str = "y", self: str = "z") -> None:
        """Odd."""

    tool = function_tool(odd)
    assert list(tool.parameters["properties"]) == ["copy", "model_config", "_private", "schema", "self"]
    assert tool.validate('{"copy":"a","model_config":1,"_private":"b"}') == {
        "copy": "a", "model_config": 1, "_private": "b", "schema": "y", "self": "z",
    }  # fmt: skip


def test_methods_partials_and_callable_objects_are_tools_too() -> None:
    """Whatever can be called by name and is annotated."""

    class Service:
        def look_up(self, key: str) -> str:
            """Look up."""
            return key

        async def __call__(self, key: str) -> str:
            """Call."""
            return key

    assert list(function_tool(Service().look_up).parameters["properties"]) == ["key"]
    assert list(function_tool(Service(), name="service").parameters["properties"]) == ["key"]
    partial = functools.partial(get_weather, days=3)
    assert list(function_tool(partial, name="partial").parameters["properties"]) == ["city", "days"]


def test_a_tool_without_parameters() -> None:
    """An empty object is what it takes."""

    def now() -> str:
        """Now."""
        return "now"

    tool = function_tool(now)
    assert tool.parameters["properties"] == {}
    assert tool.validate("{}") == {}


def _untyped(city) -> None:  # type: ignore[no-untyped-def]  # pyright: ignore  # the missing annotation is the test
    pass


def _starred(*cities: str) -> None: ...


def _keywords(**cities: str) -> None: ...


def _positional(city: str, /) -> None: ...


def _unknown(city: "Town") -> None: ...  # type: ignore[name-defined]  # pyright: ignore  # noqa: F821 the test


def _opaque(city: Callable[[], None]) -> None: ...


class _Plain:
    pass


def _arbitrary(city: _Plain) -> None: ...


def _yields() -> Iterator[str]:
    yield "a"


async def _streams() -> AsyncIterator[str]:
    yield "a"


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (_untyped, "annotate parameter 'city'"),
    (_starred, "parameter 'cities' must be a plain named parameter"),
    (_keywords, "parameter 'cities' must be a plain named parameter"),
    (_positional, "parameter 'city' must be a plain named parameter"),
    (_unknown, "no model can be told its parameters: name 'Town' is not defined"),
    (_opaque, "no model can be told its parameters"),
    (_arbitrary, "no model can be told its parameters"),
    (_yields, "yields its result in pieces; return it whole"),
    (_streams, "yields its result in pieces; return it whole"),
]


@pytest.mark.parametrize(("function", "sentence"), REFUSED)
def test_what_cannot_be_a_tool_is_refused_when_it_is_declared(function: Callable[..., Any], sentence: str) -> None:
    """One line that names the tool and the parameter, not a traceback from the first call."""
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        function_tool(function)
    assert function.__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "get weather", "grüß", "x" * 65, "a.b", "get_weather\n"])
def test_names_that_a_provider_would_refuse_are_refused(name: str) -> None:
    """Before a model is asked, and with the way out."""
    with pytest.raises(ConfigurationError, match="give another with `name=`"):
        Tool(name=name, description="", parameters={}, kind="client")


def test_a_lambda_needs_a_name() -> None:
    """Its own name is none."""
    with pytest.raises(ConfigurationError, match="<lambda>"):
        function_tool(lambda: "x")
    assert function_tool(lambda: "x", name="x").name == "x"


def test_a_function_tool_has_a_function_and_time() -> None:
    """A declaration that could never run is refused; a tool of the user's side needs no function."""
    with pytest.raises(ConfigurationError, match="needs a function"):
        Tool(name="a", description="", parameters={})
    with pytest.raises(ConfigurationError, match="timeout"):
        function_tool(get_weather, timeout=timedelta(0))
    client = Tool(name="ask", description="", parameters={"type": "object"}, kind="client")
    assert client.validate('{"anything":1}') == {"anything": 1}


class Asks:
    """A policy that is an object."""

    def __call__(self, arguments: Mapping[str, Any]) -> bool:
        """Ask."""
        return bool(arguments)


def asks(arguments: Mapping[str, Any]) -> bool:
    """Ask."""
    return bool(arguments)


@pytest.mark.parametrize("approval", [None, "always", "never", asks, Asks(), Asks().__call__, bool])
def test_a_policy_is_a_word_or_a_function(approval: Any) -> None:
    """Of the arguments; a built-in one that takes them too."""
    assert function_tool(get_weather, approval=approval).approval is approval


def without_arguments() -> bool:
    """Look at nothing."""
    return True


def with_a_name(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Take what an agent's policy takes."""
    return bool(tool and arguments)


def yielding(arguments: Mapping[str, Any]) -> Iterator[bool]:
    """Return a generator, which would be taken for yes."""
    yield bool(arguments)


@pytest.mark.parametrize(
    ("approval", "sentence"),
    [
        (True, 'Tool \'get_weather\': `approval` is "always", "never" or a function of the arguments, and not True.'),
        ("ask", "and not 'ask'"),
        (yielding, "it must return what it says"),
        (without_arguments, "must take the arguments (too many positional arguments)"),
        (with_a_name, "must take the arguments (missing a required argument: 'arguments')"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_when_it_is_declared(approval: Any, sentence: str) -> None:
    """And not when a model first calls the tool: then people would be asked about every call."""
    with pytest.raises(ConfigurationError) as refused:
        function_tool(get_weather, approval=approval)
    assert sentence in str(refused.value)


def test_nothing_is_asked_about_a_tool_that_only_waits() -> None:
    """A wait does nothing that could be approved; the control says that nobody is to be asked."""
    with pytest.raises(ConfigurationError, match="it only waits, so there is nothing to approve"):
        function_tool(get_weather, passive=True, approval="always")
    assert function_tool(get_weather, passive=True, approval="never").passive


def test_a_toolset_speaks_for_all_its_tools_or_for_some() -> None:
    """By their names; of the others it says nothing."""
    for destructive in (False, True):
        assert approval_of("always", "any", destructive=destructive) == "always"
        assert approval_of(None, "any", destructive=destructive) is None
        assert approval_of({"drop": "always"}, "drop", destructive=destructive) == "always"
        assert approval_of({"drop": "always"}, "read", destructive=destructive) is None
    check_toolset_approval("Toolset 's'", "destructive")
    assert approval_of("destructive", "drop", destructive=True) == "always"
    assert approval_of("destructive", "read", destructive=False) is None
    with pytest.raises(ConfigurationError, match="`approval` is"):
        check_toolset_approval("Toolset 's'", cast("Mapping[str, ApprovalRule]", {"read": "destructive"}))
    with pytest.raises(ConfigurationError, match="Toolset 's', tool 'drop': `approval` is"):
        check_toolset_approval("Toolset 's'", cast("Mapping[str, ApprovalRule]", {"read": "never", "drop": True}))
