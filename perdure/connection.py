"""The way to Temporal: a connected client, or one sentence that says why there is none."""

import asyncio
import os
import socket
from datetime import timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from perdure.converter import data_converter, with_codec
from perdure.errors import ConfigurationError
from perdure.loader import load_codec
from perdure.search_attributes import SEARCH_ATTRIBUTES
from perdure.settings import load_environment, load_temporal_config

_PATIENCE: Final = timedelta(seconds=5)
_NO_OPERATOR: Final = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)


async def connect_temporal(config: ClientConnectConfig | None = None, *, runtime: Runtime | None = None) -> Client:
    """A client with Perdure's data converter; `config` is this process's Temporal configuration unless given.

    The converter has the codec that the environment names, `PERDURE_PAYLOAD_CODEC`.

    Raises:
        ConfigurationError: if Temporal or the namespace cannot be reached within 5 s, or the codec cannot be imported.
        UsageError: if no codec is where the environment says.
    """
    options: dict[str, Any] = dict(config or load_temporal_config())
    codec = load_environment().payload_codec
    converter = with_codec(load_codec(codec)) if codec else data_converter
    address = options["target_host"]
    try:
        async with asyncio.timeout(_PATIENCE.total_seconds()):
            client = await Client.connect(
                **options, data_converter=converter, identity=process_identity(), runtime=runtime
            )
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        raise ConfigurationError(_refusal(address, options.get("namespace", "default"), error)) from error
    except (RuntimeError, ValueError, TimeoutError) as error:  # what the SDK raises for a connection it cannot make
        raise ConfigurationError(
            f"Temporal is not reachable at {address}: start it with `perdure dev`, or set TEMPORAL_ADDRESS."
        ) from error
    return client


def process_identity() -> str:
    """`pid@host`. It is written into every event of a history, so the host's domain is left out."""
    return f"{os.getpid()}@{socket.gethostname().partition('.')[0]}"


async def register_search_attributes(client: Client) -> tuple[str, ...]:
    """Add the search attributes that the namespace lacks; returns their names. Safe to repeat.

    Raises:
        ConfigurationError: if the namespace lacks one and this client may not add it.
    """
    try:
        missing = await missing_search_attributes(client)
        if missing:
            keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword)
                )
            )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:  # somebody else registered them since we looked
            return ()
        names = ", ".join(key.name for key in SEARCH_ATTRIBUTES)
        raise ConfigurationError(
            f"The search attributes cannot be registered ({error.message}): add {names} to the namespace "
            f"{client.namespace!r} as Keywords in your Temporal administration."
        ) from error
    return missing


async def missing_search_attributes(client: Client) -> tuple[str, ...]:
    """The names of the search attributes that the namespace lacks."""
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    return tuple(key.name for key in SEARCH_ATTRIBUTES if key.name not in known.custom_attributes)


async def has_search_attributes(client: Client) -> bool:
    """Whether workflows can carry ours, found out by a search for them: that takes no operator's rights."""
    query = " and ".join(f'{key.name} = "none"' for key in SEARCH_ATTRIBUTES)
    try:
        await client.count_workflows(query)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return False
        raise
    return True


def may_not_administer(error: ConfigurationError) -> bool:
    """Whether registering failed only because this client has no operator's rights, as on Temporal Cloud."""
    return isinstance(error.__cause__, RPCError) and error.__cause__.status in _NO_OPERATOR


def _refusal(address: str, namespace: str, error: RPCError) -> str:
    if error.status is RPCStatusCode.NOT_FOUND:
        return (
            f"Temporal at {address} has no namespace {namespace!r}: create it with "
            f"`temporal operator namespace create {namespace}`, or set TEMPORAL_NAMESPACE."
        )
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        return f"Temporal at {address} refuses this client ({error.message}): check TEMPORAL_API_KEY or TLS."
    return f"Temporal at {address} does not answer ({error.message}): check that it is up, and TEMPORAL_ADDRESS."
