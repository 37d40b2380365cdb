"""A codec of Temporal payloads that hides them from whoever looks for their words. No encryption."""

from collections.abc import Sequence
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

_HIDDEN: Final = b"binary/hidden"


class Hiding(PayloadCodec):
    """Turns every bit of a payload around; payloads of others, as the Temporal CLI writes them, pass."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Hide the whole payload, its metadata included."""
        return [
            Payload(metadata={"encoding": _HIDDEN}, data=_turned(payload.SerializeToString())) for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Show what was hidden."""
        return [
            Payload.FromString(_turned(payload.data)) if payload.metadata.get("encoding") == _HIDDEN else payload
            for payload in payloads
        ]


def _turned(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


codec = Hiding()
