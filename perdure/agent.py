"""Agents: a name, a model, instructions, tools and limits, declared in Python and looked up by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from perdure.builtins import RESERVED
from perdure.compaction import Compaction
from perdure.context import ContextProvider, check_provider, loads_messages, tools_of
from perdure.errors import ConfigurationError, UnknownAgent
from perdure.limits import Limits, Price
from perdure.output import FINAL_RESULT, output_of
from perdure.schema import object_schema
from perdure.thinking import thinking_objection
from perdure.tools import ApprovalPolicy, ApprovalRule, Tool, ToolKind, Toolset, check_approval, function_tool

Function = TypeVar("Function", bound=Callable[..., Any])


class Agent:
    """An agent. `model` is a name such as `openai:gpt-5` or a pydantic-ai model object.

    `approval` says whether people are asked before a call runs, for tools that say nothing of that themselves; the
    runtime's own are among these (`spawn_thread`), except those that only wait.

    Args:
        name: what threads are started with.
        model: see above.
        instructions: what the model is told first, in every thread.
        tools: declared tools; `agent.tool` declares a function as one.
        toolsets: tools of servers, and the runtime's own.
        limits: bounds and budgets.
        settings: of the model, as pydantic-ai names them: `{"temperature": 0, "thinking": "high"}`.
        approval: see above.
        context: context providers, in the order in which they are asked.
        compaction: what is done when the conversation outgrows the model; None does nothing.
        fallbacks: models that are asked, in this order, when the one before cannot answer.
        models: names that threads and messages may choose; None lets them choose any.
        output: what a turn ends with instead of words: a pydantic model or a JSON schema of an object. Its answer is
            the JSON text, which `agent.output.value` reads.
        history: who keeps the conversation for the model: `local` is the store; `service` is the model's own server,
            where it has one, and then only what is new is sent.
        price: what its models cost, in place of what `genai-prices` says.

    Example:
        >>> agent = Agent("weather", model="openai:gpt-5", instructions="Be brief.")
        >>> @agent.tool
        ... async def get_weather(city: str) -> str:
        ...     '''The weather in a city, now.'''
        ...     return "sunny"
    """

    def __init__(
        self,
        name: str,
        *,
        model: Any,
        instructions: str = "",
        tools: Iterable[Tool] = (),
        toolsets: Iterable[Toolset] = (),
        limits: Limits | None = None,
        settings: Mapping[str, Any] | None = None,
        approval: ApprovalPolicy = "never",
        context: Iterable[ContextProvider] = (),
        compaction: Compaction | None = Compaction(),  # noqa: B008 - frozen, so it may be shared
        fallbacks: Iterable[Any] = (),
        models: Iterable[str] | None = None,
        output: type[Any] | Mapping[str, Any] | None = None,
        history: Literal["local", "service"] = "local",
        price: Price | None = None,
    ) -> None:
        check_approval(f"Agent {name!r}", approval, by_name=True)
        self.name = name
        self.context = tuple(context)
        for provider in self.context:
            check_provider(name, provider)
        self.model = model
        self.instructions = instructions
        self.limits = limits or Limits()
        self.settings = dict(settings or {})
        thinking = self.settings.get("thinking")
        if thinking is not None and (why := thinking_objection(thinking)) is not None:
            raise ConfigurationError(f"Agent {name!r} sets thinking to what it cannot be: {why}.")
        self.approval: ApprovalPolicy = approval
        self.compaction = compaction
        self.fallbacks = tuple(fallbacks)
        self.models = None if models is None else tuple(models)
        self.output = None if output is None else output_of(f"Agent {name!r}", output)
        self.history: Literal["local", "service"] = history
        self.price = price
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add_tool(tool)
        self.toolsets = tuple(toolsets)
        names = [toolset.name for toolset in self.toolsets]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError(f"Agent {name!r} has two toolsets named {twice!r}; give one another name.")
        self._check_context()
        if self.output is not None and self.history == "service":
            # The service would wait for the result of the call that the answer came as.
            raise ConfigurationError(f"Agent {name!r}: `output` needs history='local'; leave out one of the two.")

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, in the order in which they were declared: the order the model always sees."""
        return self._tools

    def add_tool(self, tool: Tool) -> None:
        """Add a declared tool.

        Raises:
            ConfigurationError: if the name is taken.
        """
        if tool.name in RESERVED or (tool.name == FINAL_RESULT and self.output is not None):
            raise ConfigurationError(f"Agent {self.name!r}: the tool name {tool.name!r} is reserved; give it another.")
        if tool.name in self._tools or tool.name in _tools_of(self.context):
            raise ConfigurationError(f"Agent {self.name!r} has two tools named {tool.name!r}; rename one.")
        self._tools[tool.name] = tool

    def _check_context(self) -> None:
        """Refuse providers that get in each other's way, when the agent is declared and not when it runs."""
        names = [provider.name for provider in self.context]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError(f"Agent {self.name!r} has two context providers named {twice!r}; rename one.")
        kept = {source for provider in self.context for source in getattr(provider, "store_context_from", None) or ()}
        if unknown := sorted(kept.difference(names)):
            raise ConfigurationError(
                f"Agent {self.name!r}: `store_context_from` names {unknown[0]!r}, which is no context provider of it."
            )
        names = [*self._tools, *_tools_of(self.context)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError(f"Agent {self.name!r} has two tools named {twice!r}; rename one.")
        if taken := next((name for name in names if name in RESERVED), None):
            raise ConfigurationError(f"Agent {self.name!r}: the tool name {taken!r} is reserved; give it another.")
        loaders = [provider.name for provider in self.context if loads_messages(provider)]
        if len(loaders) > 1:
            raise ConfigurationError(
                f"Agent {self.name!r}: the providers {' and '.join(map(repr, loaders))} both load the conversation, so "
                "the model would read it twice; give load_messages=False to all but one."
            )
        if loaders and self.history == "service":
            raise ConfigurationError(
                f"Agent {self.name!r}: the model's server keeps the conversation (history='service'), so the provider "
                f"{loaders[0]!r} must not load it too; leave it out or give it load_messages=False."
            )

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        kind: ToolKind = "function",
        passive: bool = False,
        retry_safe: bool = False,
        timeout: timedelta = timedelta(minutes=10),
        approval: ApprovalRule | None = None,
    ) -> Callable[[Function], Function]: ...

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a function as a tool of this agent; the function itself stays as it is."""

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add_tool(function_tool(function, **options))
            return function

        return declare if function is None else declare(function)

    def client_tool(
        self, name: str, *, description: str, parameters: Mapping[str, Any], approval: ApprovalRule | None = None
    ) -> Tool:
        """Declare a tool that the user's side carries out: a browser, a person at a terminal, another program.

        Its calls wait, however long, for `client.tool_result`. `parameters` is the JSON schema of the arguments.
        With `approval` they are handed out only once somebody has approved them.

        Raises:
            ConfigurationError: if the name or the schema is not valid, or the name is taken.
        """
        tool = Tool(
            name=name,
            description=description,
            parameters=_schema(name, parameters),
            kind="client",
            approval=approval,
        )
        self.add_tool(tool)
        return tool

    def activity_tool(
        self,
        name: str,
        *,
        description: str,
        parameters: Mapping[str, Any],
        task_queue: str,
        activity: str | None = None,
        retry_safe: bool = False,
        timeout: timedelta = timedelta(minutes=10),
        approval: ApprovalRule | None = None,
    ) -> Tool:
        """Declare a tool that is a Temporal activity on another task queue, written in any language.

        The activity gets one argument, the JSON object of the call, and returns anything that is JSON. Its id is the
        call's, by which it can know a call that comes again.

        Args:
            name: what the model calls it.
            description: what the model reads.
            parameters: the JSON schema of the arguments, of type object.
            task_queue: where its workers poll.
            activity: the name of the activity's type; the tool's name if left out.
            retry_safe: Temporal runs it again when it has failed or its worker died. Without it there is one attempt.
            timeout: how long one attempt may take.
            approval: whether people are asked before a call runs; None leaves it to the agent.

        Raises:
            ConfigurationError: if the name or the schema is not valid, or the name is taken.
        """
        tool = Tool(
            name=name,
            description=description,
            parameters=_schema(name, parameters),
            kind="activity",
            operation=activity,
            task_queue=task_queue,
            retry_safe=retry_safe,
            timeout=timeout,
            approval=approval,
        )
        self.add_tool(tool)
        return tool


def _tools_of(providers: Iterable[ContextProvider]) -> list[str]:
    return [tool.name for provider in providers for tool in tools_of(provider)]


def _schema(name: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return object_schema(dict(parameters))
    except ValueError as error:
        raise ConfigurationError(f"Tool {name!r}: its parameters are no JSON schema of an object: {error}.") from error


class Agents(Mapping[str, Agent]):
    """The agents that a worker serves, by name. The first one is the default."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            if agent.name in self._agents:
                raise ConfigurationError(f"Two agents are named {agent.name!r}; rename one.")
            self._agents[agent.name] = agent
        if not self._agents:
            raise ConfigurationError("A worker needs at least one agent.")

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            known = ", ".join(self._agents)
            raise UnknownAgent(f"There is no agent {name!r} on this worker; it serves {known}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    @property
    def default(self) -> Agent:
        """The agent of threads that name none."""
        return next(iter(self._agents.values()))
