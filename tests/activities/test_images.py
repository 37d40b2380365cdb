"""What is known of an image by its bytes."""

from collections.abc import Callable

import pytest

from activities.images import IMAGE_BYTES, MANY_IMAGES, SIDE_PIXELS, SIDE_PIXELS_OF_MANY, is_too_large, pixels
from tests.activities.image_bytes import extended, gif, jpeg, lossless, lossy, png


@pytest.mark.parametrize("made", [png, gif, jpeg, lossy, lossless, extended])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (640, 480), (3_000, 7), (16_383, 16_383)])
def test_width_and_height_are_read_from_the_header(made: Callable[[int, int], bytes], width: int, height: int) -> None:
    """Of all kinds that providers take."""
    assert pixels(made(width, height)) == (width, height)


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a" + b"\xff" * 3, b"BM" + b"\xff" * 60])
def test_what_cannot_be_read_has_no_size(data: bytes) -> None:
    """Cut off, or of another kind: it is the provider's to judge."""
    assert pixels(data) == (0, 0)
    assert not is_too_large(data, one_of_many=True)


@pytest.mark.parametrize(
    "tail", [b"", b"\xff\xe0", b"\xff\xe0\x00\x00" * 9, b"\xff\xff" * 30, b"\xff\xe0\xff\xff" + bytes(40)]
)
def test_a_broken_jpeg_is_not_read_for_ever(tail: bytes) -> None:
    """Segments that lead nowhere end the search."""
    assert pixels((b"\xff\xd8" + tail).ljust(40, b"\x00")) == (0, 0)


def test_b54_images_that_some_provider_refuses_are_too_large() -> None:
    """B54 (b), (c): too many bytes, too wide, or too wide in the company of many others."""
    assert is_too_large(png(9, 9).ljust(IMAGE_BYTES + 1), one_of_many=False)
    assert not is_too_large(png(9, 9).ljust(IMAGE_BYTES), one_of_many=True)
    for width, height in ((SIDE_PIXELS + 1, 9), (9, SIDE_PIXELS + 1)):
        assert is_too_large(png(width, height), one_of_many=False)
    assert not is_too_large(png(SIDE_PIXELS, 9), one_of_many=False)
    assert is_too_large(png(SIDE_PIXELS_OF_MANY + 1, 9), one_of_many=True)
    assert not is_too_large(png(SIDE_PIXELS_OF_MANY, 9), one_of_many=True)
    assert MANY_IMAGES == 20
