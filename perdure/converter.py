"""The Temporal data converter: `json/plain` payloads of `perdure.codec`, decoded into the type that is asked for.

Plain JSON is what the Temporal CLI and UI write and show. Text that UTF-8 cannot hold crosses as escapes, which the
SDK's pydantic converter would refuse. A value that does not fit its type is an error, except in the workflow's
handlers, which take what came and answer in a sentence (`perdure.inbox`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
)
from temporalio.exceptions import ApplicationError, FailureError

from perdure.codec import clip, dumps, loads
from perdure.errors import ConfigurationError

MESSAGE_CHARS, STACK_CHARS = 1000, 800

_DETAILS: Final[
    tuple[tuple[Literal["application_failure_info", "canceled_failure_info", "timeout_failure_info"], str], ...]
] = (
    ("application_failure_info", "details"),
    ("canceled_failure_info", "details"),
    ("timeout_failure_info", "last_heartbeat_details"),
)
"""Where a failure has payloads."""


class CodecPayloadConverter(EncodingPayloadConverter):
    """JSON by `perdure.codec`."""

    @property
    def encoding(self) -> str:
        """The encoding that the Temporal UI and CLI know as plain JSON."""
        return "json/plain"

    def to_payload(self, value: Any) -> Payload:
        """Encode; TypeError for what is not JSON."""
        return Payload(metadata={"encoding": b"json/plain"}, data=dumps(value).encode("ascii"))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Decode, validated against the hint if there is one."""
        value = loads(payload.data)
        return value if type_hint is None else _adapter(type_hint).validate_python(value)


class PerdurePayloadConverter(CompositePayloadConverter):
    """The SDK's converters, with ours in the place of its JSON.

    The SDK makes several for every task, each to know the task's context. So they share their parts, and none is made
    for a context, which no part looks at.
    """

    _shared: ClassVar[Mapping[bytes, EncodingPayloadConverter]] = {
        converter.encoding.encode(): converter
        for converter in (
            CodecPayloadConverter() if isinstance(standard, JSONPlainPayloadConverter) else standard
            for standard in DefaultPayloadConverter.default_encoding_payload_converters
        )
    }

    def __init__(self) -> None:
        self.converters = self._shared

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode. Raises ConfigurationError for what some codec has encoded that this process does not know.

        Nothing is decided about it: the same worker with its codec reads what this one could not.
        """
        for payload in payloads:
            encoding = payload.metadata.get("encoding", b"")
            if encoding not in self.converters:
                raise ConfigurationError(
                    f"A payload is encoded as {encoding.decode(errors='replace')!r}, which this process cannot read: "
                    "set PERDURE_PAYLOAD_CODEC as it is set for the workers."
                )
        return super().from_payloads(payloads, type_hints)

    def with_context(self, context: SerializationContext) -> Self:
        """The converter itself."""
        return self


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(hint: Any) -> TypeAdapter[Any]:
    # A cache of pure values, so it is the same on every replay; it holds one entry for each type in our signatures.
    adapter = _adapters.get(hint)
    if adapter is None:
        adapter = _adapters[hint] = TypeAdapter(hint)
    return adapter


class PerdureFailureConverter(DefaultFailureConverter):
    """Failures that Temporal can show: it keeps 4 KB of what an activity failed with, and of more than that nothing.

    An error of ours says in its message what happened and what to do. What caused it goes to the log only.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Encode, with a message that is text and fits, and the end of the stack trace."""
        super().to_failure(_showable(exception), payload_converter, failure)
        failure.stack_trace = failure.stack_trace[-STACK_CHARS:]

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Decode, if need be without details: other programs put anything there, and nobody here reads it.

        A workflow's task would fail on them, again and again.
        """
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:  # of whatever decodes the details; the rest of a failure is no payload
            bare = Failure()
            bare.CopyFrom(failure)
            for info, details in _DETAILS:
                if bare.HasField(info):
                    getattr(bare, info).ClearField(details)
            return super().from_failure(bare, payload_converter)


class PerdureFailureConverterWithEncodedWords(PerdureFailureConverter):
    """The same, with the message and the stack trace of a failure in a payload, so that a codec sees them."""

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)


def _showable(exception: BaseException) -> BaseException:
    if isinstance(exception, FailureError):
        # One that came from Temporal is what it was there, and those of Temporal's own kinds wrap others.
        if exception.failure or not isinstance(exception, ApplicationError):
            return exception
        error = exception
    else:
        error = ApplicationError(str(exception), type=type(exception).__name__)
    return ApplicationError(
        clip(error.message, MESSAGE_CHARS),
        *error.details,
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    ).with_traceback(exception.__traceback__)


data_converter = dataclasses.replace(
    DataConverter.default,
    payload_converter_class=PerdurePayloadConverter,
    failure_converter_class=PerdureFailureConverter,
)


class ExplainedCodec(PayloadCodec):
    """A user's codec, whose failures say where to look. What it cannot do it raises as ConfigurationError.

    A workflow task fails with it, and is tried again until a worker comes that can read: nothing is decided about words
    that only this process cannot read.
    """

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As the codec does it."""
        try:
            return await self._codec.encode(payloads)
        except Exception as error:  # it is the user's code, which may raise anything
            raise ConfigurationError(f"The payload codec cannot encode: {_reason(error)}.") from error

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As the codec does it."""
        try:
            return await self._codec.decode(payloads)
        except Exception as error:  # as above
            raise ConfigurationError(
                f"The payload codec cannot read what Temporal has stored ({_reason(error)}): all workers, clients and "
                "gateways need the same codec with the same keys."
            ) from error


def with_codec(codec: PayloadCodec) -> DataConverter:
    """The data converter with a codec for all payloads; the words of failures become one too."""
    return dataclasses.replace(
        data_converter,
        payload_codec=ExplainedCodec(codec),
        failure_converter_class=PerdureFailureConverterWithEncodedWords,
    )


async def check_codec(codec: PayloadCodec) -> None:
    """Have a codec encode and decode. Raises ConfigurationError if that does not give back what was put in."""
    converter, words = with_codec(codec), ["a word", "another one"]
    if await converter.decode(await converter.encode(words)) != words:
        raise ConfigurationError("The payload codec does not give back what it was given.")


def _reason(error: Exception) -> str:
    return clip(" ".join(f"{type(error).__name__}: {error}".split()), 200).rstrip(".: ")
