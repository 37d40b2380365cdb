"""A model that follows a script, for tests and demos of agents: no key, no network, the same answer every time.

    model = ScriptedModel([Reply(Call("get_weather", {"city": "Paris"})), "It is sunny in Paris."])

Which reply comes next is read from the request (how often the model has answered so far), not remembered: a worker
that is killed and started again, or another worker, goes on at the right place.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from perdure.errors import UsageError
from perdure.messages import Usage
from perdure.view import EVENT_TOOL

SYSTEM = "scripted"
_Category = type[
    ModelRateLimitError
    | ModelUnavailableError
    | ModelServerError
    | ModelRequestRejectedError
    | ModelContextWindowExceededError
]
_categories: dict[int, _Category] = {
    401: ModelAuthenticationError,
    403: ModelAuthenticationError,
    404: ModelNotFoundError,
    413: ModelContextWindowExceededError,
    429: ModelRateLimitError,
    503: ModelUnavailableError,
}


@dataclass(frozen=True)
class Think:
    """A thought, with the signature that a provider would put on it."""

    text: str
    signature: str | None = None


@dataclass(frozen=True)
class Call:
    """A tool call. Arguments given as text go out as they are, cut off or not; `id` is the provider's id for it."""

    tool: str
    arguments: Mapping[str, Any] | str = "{}"
    id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(dict(self.arguments))


@dataclass(frozen=True)
class Failure:
    """How one attempt fails: with an HTTP status, or (None) with a lost connection, after so many chunks."""

    status: int | None = None
    after_chunks: int = 0
    retry_after_s: float | None = None
    body: str = "scripted failure"

    def error(self, model: str) -> ModelAPIError:
        """The error that a real provider's client would raise."""
        streaming = self.after_chunks > 0
        if self.status is None:
            return ModelConnectionError(model, "connection lost", in_stream=streaming)
        fallback: _Category = ModelServerError if self.status >= 500 else ModelRequestRejectedError
        return ModelHTTPError.for_category(
            _categories.get(self.status, fallback),
            status_code=self.status,
            model_name=model,
            body=self.body,
            retry_after=self.retry_after_s,
            in_stream=streaming,
        )


class Reply:
    """What the model answers once: words, thoughts and calls in the order in which they stream.

    Args:
        items: text, `Think` and `Call`, in order.
        chunk_chars: how many characters stream at a time; 0 sends each item at once.
        delay_s: seconds before each chunk.
        start_delay_s: seconds before the first chunk.
        finish: why it ended; `length` and `content_filter` are the provider's cut-offs. Found out when left out.
        usage: tokens; estimated from the length when left out.
        failures: the first attempts at this request fail, one for each.
        hang: after the last chunk, wait until cancelled.
        part_id: the provider's id for every text of the reply.
    """

    def __init__(
        self,
        *items: str | Think | Call,
        chunk_chars: int = 0,
        delay_s: float = 0.0,
        start_delay_s: float = 0.0,
        finish: Literal["stop", "length", "content_filter"] | None = None,
        usage: Usage | None = None,
        failures: Sequence[Failure] = (),
        hang: bool = False,
        part_id: str | None = None,
    ) -> None:
        self.items = items
        self.chunk_chars = chunk_chars
        self.delay_s = delay_s
        self.start_delay_s = start_delay_s
        self.finish: FinishReason | None = finish
        self.usage = usage
        self.failures = tuple(failures)
        self.hang = hang
        self.part_id = part_id

    @property
    def length(self) -> int:
        """Characters in all."""
        return sum(len(item if isinstance(item, str) else item.text) for item in self.items)


@dataclass(frozen=True)
class Asked:
    """A request that reached the model: what a script looks at to choose its reply, and a test to check."""

    messages: tuple[ModelMessage, ...]
    parameters: ModelRequestParameters
    settings: ModelSettings | None = None

    @property
    def answered(self) -> int:
        """How often the model has answered before; injected events do not count."""
        return sum(isinstance(message, ModelResponse) and not _injected(message) for message in self.messages)

    @property
    def user_text(self) -> str:
        """The last words of the user, empty if there are none."""
        texts = [
            part.content
            for message in self.messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, UserPromptPart) and isinstance(part.content, str)
        ]
        return texts[-1] if texts else ""

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results that this request brings, in call order."""
        last = self.messages[-1] if self.messages else None
        if not isinstance(last, ModelRequest):
            return ()
        return tuple(
            part.model_response_str(wrap_if_error=False) for part in last.parts if isinstance(part, ToolReturnPart)
        )

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools on offer, in their order, the one for structured output last."""
        return tuple(tool.name for tool in (*self.parameters.function_tools, *self.parameters.output_tools))


Script = Sequence[Reply | str] | Callable[[Asked], Reply | str]


class ScriptedModel(Model[None]):
    """A pydantic-ai model that answers by script.

    Args:
        script: replies in order, one for each time the model answers, or a function that is given the request.
        name: the model's name.
        state_dir: a folder in which attempts are counted, so that `Reply.failures` hold across processes; without
            it they are counted in memory.
        profile: what the model can do, as pydantic-ai describes it.

    Attributes:
        requests: every request that reached this object, oldest first.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        state_dir: Path | None = None,
        profile: ModelProfile | None = None,
    ) -> None:
        super().__init__(profile=profile)
        self.requests: list[Asked] = []
        self._script = script
        self._name = name
        self._state_dir = state_dir
        self._attempts: Counter[str] = Counter()

    @property
    def model_name(self) -> str:
        """The name given to the constructor."""
        return self._name

    @property
    def system(self) -> str:
        """What its thoughts and ids are labelled with."""
        return SYSTEM

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer without streaming."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Answer chunk by chunk."""
        asked = Asked(tuple(messages), model_request_parameters, model_settings)
        self.requests.append(asked)
        reply = self._choose(asked)
        failure = self._failure(asked, reply)
        if failure is not None and failure.after_chunks == 0:
            raise failure.error(self._name)
        stream = _Stream(model_request_parameters)
        stream.begin(self._name, reply, failure, _input_tokens(asked))
        yield stream

    def _choose(self, asked: Asked) -> Reply:
        if callable(self._script):
            reply = self._script(asked)
        elif asked.answered < len(self._script):
            reply = self._script[asked.answered]
        else:
            raise UsageError(
                f"The script of model {self._name!r} ends after {len(self._script)} replies; it was asked for one more."
            )
        return Reply(reply) if isinstance(reply, str) else reply

    def _failure(self, asked: Asked, reply: Reply) -> Failure | None:
        if not reply.failures:
            return None
        attempt = self._count(f"{asked.answered}-{sum(len(message.parts) for message in asked.messages)}")
        return reply.failures[attempt] if attempt < len(reply.failures) else None

    def _count(self, request: str) -> int:
        """How often this request was made before. Appending one byte is atomic, so processes may share the folder."""
        if self._state_dir is None:
            self._attempts[request] += 1
            return self._attempts[request] - 1
        with (self._state_dir / f"{self._name}-{request}").open("ab") as file:
            file.write(b".")
            return file.tell() - 1


class _Stream(StreamedResponse):
    """The reply as a stream of pydantic-ai events."""

    def begin(self, name: str, reply: Reply, failure: Failure | None, input_tokens: int) -> None:
        self._name = name
        self._reply = reply
        self._failure = failure
        self._input_tokens = input_tokens
        self._started = datetime.now(UTC)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        reply = self._reply
        await asyncio.sleep(reply.start_delay_s)
        for number, chunk in enumerate(self._chunks()):
            if self._failure is not None and number == self._failure.after_chunks:
                raise self._failure.error(self._name)
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            for event in chunk:
                yield event
        if reply.hang:
            await asyncio.Event().wait()
        if self._failure is not None:
            raise self._failure.error(self._name)
        usage = reply.usage or Usage(input_tokens=self._input_tokens, output_tokens=reply.length // 4 + 1)
        self._usage = RequestUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
        )
        called = any(isinstance(item, Call) for item in reply.items)
        self.finish_reason = reply.finish or ("tool_call" if called else "stop")

    def _chunks(self) -> Iterator[Iterator[ModelResponseStreamEvent]]:
        manager = self._parts_manager
        reply = self._reply
        for index, item in enumerate(reply.items):
            match item:
                case str():
                    for piece in _pieces(item, reply.chunk_chars):
                        yield manager.handle_text_delta(
                            vendor_part_id=index,
                            content=piece,
                            id=reply.part_id,
                            provider_name=SYSTEM if reply.part_id else None,
                        )
                case Think():
                    for piece in _pieces(item.text, reply.chunk_chars):
                        yield manager.handle_thinking_delta(vendor_part_id=index, content=piece)
                    if item.signature is not None:
                        # In one piece, as providers send it: pydantic-ai takes a second one for another signature.
                        yield manager.handle_thinking_delta(
                            vendor_part_id=index, signature=item.signature, provider_name=SYSTEM
                        )
                case Call():
                    yield manager.handle_tool_call_delta_events(
                        vendor_part_id=index, tool_name=item.tool, args="", tool_call_id=item.id
                    )
                    for piece in _pieces(item.text, reply.chunk_chars):
                        yield manager.handle_tool_call_delta_events(vendor_part_id=index, args=piece)

    async def close_stream(self) -> None:
        """There is no connection to close."""

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def provider_name(self) -> str:
        return SYSTEM

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._started


def _pieces(text: str, size: int) -> list[str]:
    if size <= 0:
        return [text] if text else []
    return [text[start : start + size] for start in range(0, len(text), size)]


def _injected(message: ModelResponse) -> bool:
    return any(isinstance(part, ToolCallPart) and part.tool_name == EVENT_TOOL for part in message.parts)


def _input_tokens(asked: Asked) -> int:
    return sum(len(str(getattr(part, "content", ""))) for message in asked.messages for part in message.parts) // 4 + 1
