"""The garbage collector pauses while something large is built."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class _Pauses:
    """Who pauses it now: threads overlap, and the last one to end lets it go on as it did before the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    was_enabled: bool = False


_pauses = _Pauses()


@contextmanager
def paused_collector() -> Generator[None]:
    """Keep the collector from running, in all threads of the process.

    For what makes many objects that all stay: it would walk through them again and again while they become more, which
    takes as long as to make them. Not for what waits: nothing is collected meanwhile.
    """
    with _pauses.lock:
        if _pauses.count == 0:
            _pauses.was_enabled = gc.isenabled()
            gc.disable()
        _pauses.count += 1
    try:
        yield
    finally:
        with _pauses.lock:
            _pauses.count -= 1
            if _pauses.count == 0 and _pauses.was_enabled:
                gc.enable()
