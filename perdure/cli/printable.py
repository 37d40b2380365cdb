"""Text that is safe to write to a terminal, whoever wrote it.

Models, tools and other people write what is shown here. A terminal obeys escape sequences in it: they can rewrite what
stands above, put words into the clipboard, or change what the next key does; overrides of the writing direction make
text read other than it is. All of them are shown as symbols instead.
"""

from typing import Final

_SYMBOLS: Final = {
    **{code: chr(0x2400 + code) for code in range(0x20)},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    ord("\n"): "\n",
    ord("\t"): "    ",
}


def printable(text: str) -> str:
    """The text with everything replaced that a terminal would obey instead of show; line ends stay.

    A piece of a stream may be given as well as a whole: no replacement depends on what comes next.
    """
    return text.translate(_SYMBOLS)


def one_line(text: str) -> str:
    """The same on one line, line ends shown as symbols."""
    return printable(text).replace("\n", "\u240a")
