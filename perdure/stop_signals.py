"""How our processes end: the first signal asks for an end in order, the second one does not wait for it."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def on_stop_signal(stop: Callable[[], None], signals: tuple[signal.Signals, ...] = STOP_SIGNALS) -> None:
    """Call `stop` in the running loop at the first of these signals; at the second the process ends at once."""
    is_stopping = False

    def received(number: int) -> None:
        nonlocal is_stopping
        if is_stopping:
            # Not `sys.exit`, which would wait for what the loop still runs. On Linux the children go with us.
            os._exit(128 + number)
        is_stopping = True
        stop()

    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, received, number)
