"""Tools that come with the runtime: threads of one's own, timers, subscriptions, and reading on in large results.

Only declarations are here. What they do is done by the thread's workflow, or by activities that reach other threads or
the store.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from perdure.codec import Text
from perdure.errors import ConfigurationError
from perdure.timer import time_zone
from perdure.tools import Tool, ToolKind
from perdure.view import EVENT_TOOL

SPAWN_THREAD: Final = "spawn_thread"
REPORT_TO_PARENT: Final = "report_to_parent"
CLOSE_THREAD: Final = "close_thread"
SEND_MESSAGE_TO_CHILD: Final = "send_message_to_child"
CANCEL_SUBSCRIPTION: Final = "cancel_subscription"
READ_RESULT: Final = "read_result"

TIMED: Final = frozenset({"sleep", "sleep_until"})
"""Sleepers that wake by themselves."""

RESERVED: Final = frozenset({EVENT_TOOL, READ_RESULT})
"""Names that no other tool may have: calls of these are shown that no model made, or models are told to make them."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _stack(value: object) -> list[str]:
    # What is no stack of ids is as wrong as another thread's: the answer to both is the real one.
    items = cast("list[object]", value) if isinstance(value, list) else []
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else []


Words = Annotated[Text, AfterValidator(_not_blank)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Spawn(_Arguments):
    model_config = ConfigDict(json_schema_extra={"required": ["instructions", "child_of"]})

    instructions: Words = Field(description="The whole task, and what the report should contain.")
    child_of: Annotated[list[str], BeforeValidator(_stack)] = Field(
        default_factory=list,
        description="Your full stack: the ids of all threads from the root to the one you are in, in this order.",
    )


class _Report(_Arguments):
    report: Words = Field(description="What the parent should know.")


class _Close(_Arguments):
    thread_id: Text = Field(description="The id of the thread you are in.")
    report_to_parent: Text | None = Field(None, description="The final report, unless everything has been reported.")


class _Message(_Arguments):
    thread_id: Text = Field(description="The id of the child, as spawn_thread returned it.")
    message: Words = Field(description="What the child should know.")


class _Sleep(_Arguments):
    seconds: Annotated[Any, WithJsonSchema({"type": "number"})] = Field(description="How many, at most ten years.")
    reason: Text | None = Field(None, description="Why, for the people who watch.")


class _SleepUntil(_Arguments):
    date: Text = Field(description="YYYY-MM-DD")
    time: Text = Field(description="HH:MM or HH:MM:SS, from 00:00 to 23:59:59")
    timezone: Text | None = Field(None, description="The IANA name of the zone that date and time are in.")


class _Nothing(_Arguments):
    pass


class _Cancel(_Arguments):
    tool_call_id: Text = Field(description="The id of the call that opened the subscription.")


class _Read(_Arguments):
    call_id: Words = Field(description="The id of the call, as the note says it.")
    offset: Annotated[int, Field(ge=0)] = Field(0, description="How many bytes of the result come before.")


def _tool(
    toolset: str | None, kind: ToolKind, name: str, arguments: type[_Arguments], description: str, **options: Any
) -> Tool:
    return Tool(
        name=name,
        description=description,
        parameters=_schema(arguments),
        kind=kind,
        arguments=arguments,
        toolset=toolset,
        operation=name,
        **options,
    )


def _schema(arguments: type[_Arguments]) -> Mapping[str, Any]:
    """Without the titles that pydantic makes of class and field names: they would tell the model nothing."""
    schema = arguments.model_json_schema()
    fields = {name: {k: v for k, v in field.items() if k != "title"} for name, field in schema["properties"].items()}
    return {**{key: value for key, value in schema.items() if key != "title"}, "properties": fields}


_WAKES = (
    "Events of subscriptions, reports of child threads, messages of the parent and words of the user wake you early; "
    "the call then counts as interrupted and you may sleep again."
)

_THREADS: Final = (
    _tool(
        "threads",
        "thread",
        "spawn_thread",
        _Spawn,
        "Start a child thread that works on a task while you go on. It knows this conversation up to here, so the "
        "instructions need to say only what it should do. Returns the child's id at once. The child's reports come to "
        "you by themselves, as events; there is nothing to poll. Leave its task to it, and start several at once where "
        "tasks do not depend on each other. `child_of` shows that you know which thread you are: you were told your "
        "stack, and it ends with your own id.",
    ),
    _tool(
        "threads",
        "thread",
        "report_to_parent",
        _Report,
        "Send a report to the thread that spawned this one, and go on. Only for child threads: nobody else reads what "
        "they write. With the last report call close_thread instead.",
        retry_safe=True,
    ),
    _tool(
        "threads",
        "thread",
        "close_thread",
        _Close,
        "End the thread you are in, for good: nothing after this call is carried out and no result comes back. Its own "
        "child threads are stopped, so wait for what they have to report. Only for child threads, when their task is "
        "done or cannot be done. The parent gets `report_to_parent` if you give it.",
        retry_safe=True,
    ),
    _tool(
        "threads",
        "thread",
        "send_message_to_child",
        _Message,
        "Send a message to a child thread that you spawned: what it should know, or do differently. Its answer, if "
        "there is one, comes as a report. A child that is closed does not read it.",
        retry_safe=True,
    ),
)

_TIMERS: Final = (
    _tool(
        "timers",
        "workflow",
        "sleep",
        _Sleep,
        f"Wait for some time, from seconds to years, at no cost. {_WAKES}",
        passive=True,
    ),
    _tool(
        "timers",
        "workflow",
        "sleep_until_event_or_input",
        _Nothing,
        "Wait, however long, until something happens: an event of a subscription, a report of a child thread, a "
        "message of the parent, or words of the user. The call itself never returns a result; it counts as interrupted "
        "when you wake. Use it when there is nothing left to do but wait.",
        passive=True,
    ),
)


@dataclass(frozen=True)
class Threads:
    """Lets an agent work in parallel: child threads that inherit the conversation and report back.

    Attributes:
        max_depth: how many levels of child threads there may be below a root.
    """

    max_depth: int = 8

    def __post_init__(self) -> None:
        """Refuse a depth that allows no child."""
        if self.max_depth < 1:
            raise ConfigurationError(f"Threads(max_depth={self.max_depth}): at least one level of children is needed.")

    @property
    def name(self) -> str:
        """The toolset's name."""
        return "threads"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in a fixed order."""
        return _THREADS


@dataclass(frozen=True)
class Timers:
    """Lets an agent wait: for some time, until a time of day, or until something happens.

    Attributes:
        timezone: the IANA name of the zone that dates and times are in where the model names none.
    """

    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse a zone that is not known."""
        try:
            time_zone(self.timezone)
        except ValueError as error:
            raise ConfigurationError(f"Timers(timezone={self.timezone!r}): {error}") from error

    @property
    def name(self) -> str:
        """The toolset's name."""
        return "timers"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in a fixed order."""
        sleep, sleep_until_event = _TIMERS
        return sleep, _sleep_until(self.timezone), sleep_until_event


def _sleep_until(zone: str) -> Tool:
    return _tool(
        "timers",
        "workflow",
        "sleep_until",
        _SleepUntil,
        f"Wait until a date and time, at no cost. Without `timezone` they are in {zone}. A time in the past returns at "
        f"once and says so. Where the clocks are changed, a time that comes twice means the first, and one that does "
        f"not exist the moment of the change. {_WAKES}",
        passive=True,
    )


SUBSCRIPTION_TOOLS: Final[tuple[Tool, ...]] = (
    _tool(
        "subscriptions",
        "workflow",
        "cancel_subscription",
        _Cancel,
        "Stop a subscription of this thread: no more of its events come. Subscriptions are opened by tools whose "
        "result says so and names the id.",
    ),
)
"""What an agent gets whose toolsets may open subscriptions."""


def read_result_tool(read: Callable[..., Any]) -> Tool:
    """What every agent with tools gets, last of all: the way to the rest of a result that is not shown in full.

    Args:
        read: carries a call out in the conversation that the tool is offered in: `read(call_id, offset)`.
    """
    return _tool(
        None,
        "function",
        READ_RESULT,
        _Read,
        "Read on in a result or an event that is not shown in full: where one is cut off, a note names the id and the "
        "offset. Returns the next piece, and where to go on.",
        function=read,
        retry_safe=True,
        timeout=timedelta(minutes=1),
        approval="never",
    )


@dataclass(frozen=True)
class Subscriptions:
    """Lets an agent end its subscriptions. With a RAP toolset it can anyhow; this is for tools of the user's side."""

    @property
    def name(self) -> str:
        """The toolset's name."""
        return "subscriptions"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in a fixed order."""
        return SUBSCRIPTION_TOOLS
