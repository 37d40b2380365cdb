"""Which blobs a stored text names. A blob is known by the SHA-256 of its content, so a name cannot be mistaken."""

import re
from collections.abc import Iterable
from typing import Final

_NAME: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def blobs_named(bodies: Iterable[str]) -> set[str]:
    """All that may be names of blobs, in fields that are made for them or anywhere else: displays hold them deep."""
    return {name for body in bodies for name in _NAME.findall(body)}
