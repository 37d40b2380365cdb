"""How much memory a process uses, told by its own allocator.

The kernel's figure, the resident set, wanders by a megabyte up and down with where free pieces lie and when Python
collected its garbage last. Over a thousand threads that is as much as the bar for one. What is allocated does not.
"""

import ctypes
import gc
from typing import Final

ENVIRONMENT: Final = {"PYTHONMALLOC": "malloc"}
"""With this in its environment Python's own objects are the allocator's too, so that one count has everything."""

_FIELDS: Final = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]
    uordblks: int
    hblkhd: int


def bytes_in_use() -> int:
    """Bytes that this process has allocated and not freed, garbage aside."""
    gc.collect()
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
