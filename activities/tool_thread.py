"""Sync tools in threads of their own.

Not in a pool: nothing can stop a thread, so a few tools that hang would take all of a pool's threads and with them
every other tool of the worker. A thread that hangs is a daemon, so the worker can still end.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a new thread, with the context of the caller.

    Whoever is cancelled here stops waiting; the function runs on to its end, and what it returns is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        returned, raised = None, None
        try:
            returned = context.run(function, *arguments, **named)
        except BaseException as error:  # raised again where the caller waits: here it would only end the thread
            raised = error
        try:
            loop.call_soon_threadsafe(deliver, returned, raised)
        except RuntimeError:
            # The loop is closed: the worker has ended, and nobody waits any more.
            pass

    def deliver(returned: Any, raised: BaseException | None) -> None:
        if not done.done():
            done.set_result((returned, raised))

    threading.Thread(target=work, name=f"tool {getattr(function, '__name__', function)}", daemon=True).start()
    returned, raised = await done
    if raised is not None:
        raise raised
    return returned
