"""The first bytes of images of a given size, in each format."""


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG."""
    return (
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02" * 8
    )


def gif(width: int, height: int) -> bytes:
    """The beginning of a GIF."""
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + bytes(20)


def jpeg(width: int, height: int) -> bytes:
    """The beginning of a JPEG: a segment of its application, fill bytes, a Huffman table, then the frame."""
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    application = b"\xff\xe0\x00\x10JFIF" + bytes(10)
    table = b"\xff\xc4\x00\x04\xff\xc0"
    return b"\xff\xd8" + application + b"\xff" + table + b"\xff\xc2\x00\x11\x08" + size + bytes(12)


def webp(kind: bytes, header: bytes) -> bytes:
    """The beginning of a WebP of one of its three kinds."""
    return b"RIFF\x00\x00\x00\x00WEBP" + kind + b"\x00\x00\x00\x00" + header.ljust(20, b"\x00")


def lossy(width: int, height: int) -> bytes:
    """A WebP with losses."""
    return webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + width.to_bytes(2, "little") + height.to_bytes(2, "little"))


def lossless(width: int, height: int) -> bytes:
    """A WebP without losses."""
    return webp(b"VP8L", b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"))


def extended(width: int, height: int) -> bytes:
    """A WebP with more in it."""
    return webp(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))
