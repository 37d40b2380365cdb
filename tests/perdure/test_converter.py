"""The data converter: what Temporal carries comes back as it was, and a person can read and type it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.common import RawValue
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError

from perdure.contract import CompleteResult, ThreadStart
from perdure.converter import check_codec, data_converter, with_codec
from perdure.errors import ConfigurationError
from perdure.inputs import AnyInput, Event, UserMessage
from tests.fakes.payload_codec import Hiding
from tests.perdure.wire_values import values_of
from tests.properties import json_values

converter = data_converter.payload_converter
UNTYPED: Any = Any
"""The hint of the workflow's handlers."""


def as_typed(json_text: str) -> Payload:
    """What the Temporal CLI makes of `--input`."""
    return Payload(metadata={"encoding": b"json/plain"}, data=json_text.encode("utf-8"))


def through(value: Any, hint: Any = None) -> Any:
    """Encode, and decode into the type."""
    return converter.from_payloads(converter.to_payloads([value]), [hint] if hint else None)[0]


@given(values_of(UserMessage))
def test_boundary_types_come_back_as_what_is_asked_for(message: Any) -> None:
    """A handler with a type gets that type, an untyped one gets plain JSON."""
    assert through(message, UserMessage) == message
    plain = through(message)
    assert isinstance(plain, dict)
    assert UserMessage.model_validate(plain) == message


@given(json_values)
def test_plain_values_come_back(value: Any) -> None:
    """Any JSON value is carried, half characters and long integers included."""
    assert through(value) == value
    assert through(value, UNTYPED) == value


def test_unions_are_told_apart_by_their_kind() -> None:
    """One payload of several possible types comes back as the right one."""
    event = Event(id="e", call_id="c", content="x")
    assert through(event, AnyInput) == event
    assert through([event, UserMessage(id="m")], list[AnyInput]) == [event, UserMessage(id="m")]


def test_payloads_are_plain_json_without_defaults() -> None:
    """The Temporal UI shows them as they are, and they are small."""
    (payload,) = converter.to_payloads([CompleteResult(parts=2)])
    assert payload.metadata == {"encoding": b"json/plain"}
    assert payload.data == b'{"parts":2}'


def test_what_the_cli_sends_is_read() -> None:
    """Spaces, escapes and characters as they are typed."""
    payload = as_typed('{ "id": "m1", "text": "grüß dich \\u00e9 🙂" }')
    expected = UserMessage(id="m1", text="grüß dich é 🙂")
    assert converter.from_payloads([payload], [UserMessage]) == [expected]
    assert converter.from_payloads([as_typed('"hi"')], [UNTYPED]) == ["hi"]


def test_a_raw_value_keeps_its_payload() -> None:
    """Handlers that forward what they do not read see the payload itself."""
    payload = as_typed('{"a": 1}')
    (raw,) = converter.from_payloads([payload], [RawValue])
    assert raw.payload == payload
    assert converter.to_payloads([raw]) == [payload]


def test_nothing_and_bytes_and_protobuf_are_the_sdk_s_business() -> None:
    """Only JSON is ours."""
    assert through(None) is None
    assert through(b"\x00\xff") == b"\x00\xff"
    assert converter.to_payloads([None])[0].metadata["encoding"] == b"binary/null"
    assert converter.to_payloads([as_typed("1")])[0].metadata["encoding"] == b"json/protobuf"


def test_a_value_that_does_not_fit_is_an_error() -> None:
    """It never becomes another value in silence."""
    with pytest.raises(ValueError, match="agent"):
        converter.from_payloads([as_typed('{"agent": 5}')], [ThreadStart])


@pytest.mark.parametrize("text", ["NaN", "{", '{"a": 1e999}'])
def test_a_payload_that_is_not_json_is_an_error(text: str) -> None:
    """Python would read some of these; what it reads could not be written again."""
    with pytest.raises(ValueError, match=r".+"):
        converter.from_payloads([as_typed(text)], [UNTYPED])


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_what_json_cannot_hold_is_not_sent(value: object) -> None:
    """The sender learns it, not the receiver."""
    with pytest.raises((ValueError, TypeError), match=r".+"):
        converter.to_payloads([value])


def test_an_unknown_field_is_handed_on() -> None:
    """A result of a newer worker passes through an older one."""
    result = converter.from_payloads([as_typed('{"parts":1,"budget":5}')], [CompleteResult])[0]
    assert converter.to_payloads([result])[0].data == b'{"parts":1,"budget":5}'


def recorded(exception: BaseException) -> Failure:
    """The failure that Temporal records."""
    failure = Failure()
    data_converter.failure_converter.to_failure(exception, converter, failure)
    return failure


def deep(levels: int, error: Exception) -> None:
    """Raise from so many calls down."""
    if levels == 0:
        raise error
    deep(levels - 1, error)


@pytest.mark.parametrize(
    "error", [ApplicationError("漢" * 5000, "detail", type="T", non_retryable=True), ValueError("x" * 5000)]
)
def test_a_failure_fits_into_what_temporal_keeps_of_it(error: Exception) -> None:
    """4 KB with its stack trace, without its causes: of a longer one Temporal shows nothing but that it is longer."""
    with pytest.raises((ApplicationError, ValueError)) as raised:  # noqa: PT012 - the cause is part of it
        try:
            deep(50, KeyError("a" * 5000))
        except KeyError as cause:
            raise error from cause
    failure = recorded(raised.value)
    assert failure.ByteSize() < 4096
    assert not failure.HasField("cause")
    assert failure.message.strip("漢x") == "…"
    assert "raise error from cause" in failure.stack_trace
    assert failure.application_failure_info.type == getattr(error, "type", "ValueError")


def test_a_failure_with_half_a_character_can_be_recorded() -> None:
    """What a person or a model has typed may stand in a message, and it may be no valid text."""
    assert recorded(ApplicationError("field te\ud800xt")).message == "field te?xt"
    assert recorded(ValueError("te\ud800xt")).message == "te?xt"


def test_a_failure_keeps_what_temporal_acts_on() -> None:
    """Whether and when it is tried again."""
    error = ApplicationError("later", type="T", next_retry_delay=timedelta(seconds=7))
    info = recorded(error).application_failure_info
    assert (info.type, info.non_retryable, info.next_retry_delay.ToTimedelta()) == ("T", False, timedelta(seconds=7))
    assert recorded(ApplicationError("no", non_retryable=True)).application_failure_info.non_retryable


@pytest.mark.parametrize(
    ("info", "details", "type"),
    [
        ("application_failure_info", "details", ApplicationError),
        ("canceled_failure_info", "details", CancelledError),
        ("timeout_failure_info", "last_heartbeat_details", TimeoutError),
    ],
)
def test_a_failure_is_read_whatever_its_details_are(info: str, details: str, type: type[Exception]) -> None:
    """Another program's details may be no JSON; those that are stay, and so does a cause."""
    for text, expected in (("7", (7,)), ("NaN", ())):
        failure = Failure(message="out of order", cause=Failure(message="rain"))
        getattr(getattr(failure, info), details).payloads.append(as_typed(text))
        failure.cause.application_failure_info.details.payloads.append(as_typed("NaN"))
        read = data_converter.failure_converter.from_failure(failure, converter)
        assert isinstance(read, type)
        assert tuple(getattr(read, details)) == expected
        assert str(read.__cause__) == "rain"


class Failing(PayloadCodec):
    """A codec without its key."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As it is."""
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Fails."""
        raise KeyError("no such key")


class Losing(Failing):
    """A codec that gives back something else."""

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The first one, again and again."""
        return [payloads[0] for _ in payloads]


async def test_what_a_codec_cannot_read_is_said_with_what_to_do() -> None:
    """Whatever it raises, and where there is no codec at all; nothing is taken for something else."""
    encoded = [Payload(metadata={"encoding": b"binary/hidden"}, data=b"?")]
    with pytest.raises(ConfigurationError, match=r"encoded as 'binary/hidden'.* set PERDURE_PAYLOAD_CODEC"):
        await data_converter.decode(encoded)
    with pytest.raises(ConfigurationError, match=r"cannot read .*KeyError: 'no such key'.* with the same keys"):
        await with_codec(Failing()).decode(encoded)


@pytest.mark.parametrize(("codec", "wrong"), [(Failing(), "cannot read"), (Losing(), "does not give back")])
async def test_a_codec_that_is_of_no_use_is_found_out(codec: PayloadCodec, wrong: str) -> None:
    """Before a worker begins with it; one that works is the control."""
    with pytest.raises(ConfigurationError, match=wrong):
        await check_codec(codec)
    await check_codec(Hiding())
