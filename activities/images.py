"""What is known of an image by its first bytes, and which images no provider may be sent."""

from typing import Final

IMAGE_BYTES: Final = 3_900_000
"""The tightest limit of a provider is 5 MB for one image in base64."""

SIDE_PIXELS: Final = 8_000
"""The tightest limit of a provider to the width and height of an image (Anthropic's)."""

MANY_IMAGES: Final = 20
SIDE_PIXELS_OF_MANY: Final = 2_000
"""The same in a request with more than so many images."""

TOO_LARGE: Final = "too large for a model to read"

_HEADER_BYTES: Final = 30
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def image_type(data: bytes) -> str | None:
    """The media type, None for what is none of the kinds that every provider takes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def is_too_large(data: bytes, *, one_of_many: bool) -> bool:
    """Whether a provider would refuse it, and with it the whole request; `one_of_many`: of more than `MANY_IMAGES`.

    An image whose size cannot be read counts as small: providers that cannot read it either say so at once.
    """
    limit = SIDE_PIXELS_OF_MANY if one_of_many else SIDE_PIXELS
    return len(data) > IMAGE_BYTES or max(pixels(data)) > limit


def pixels(data: bytes) -> tuple[int, int]:
    """Width and height; zero if they cannot be told."""
    match image_type(data) if len(data) >= _HEADER_BYTES else None:
        case "image/png":
            return _number(data[16:20]), _number(data[20:24])
        case "image/gif":
            return _little(data[6:8]), _little(data[8:10])
        case "image/jpeg":
            return _jpeg_pixels(data)
        case "image/webp":
            return _webp_pixels(data)
        case _:
            return 0, 0


def _jpeg_pixels(data: bytes) -> tuple[int, int]:
    """From the first frame header, by way of the lengths of the segments before it."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _JPEG_SIZES:
            return _number(data[at + 7 : at + 9]), _number(data[at + 5 : at + 7])
        if marker == 0xFF:
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        else:
            at += 2 + _number(data[at + 2 : at + 4])
    return 0, 0


def _webp_pixels(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return _little(data[24:27]) + 1, _little(data[27:30]) + 1
        case b"VP8L":
            bits = _little(data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
