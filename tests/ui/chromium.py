"""A headless Chromium for tests: pages are opened, read, clicked, and photographed.

It is spoken to over a pair of pipes in the DevTools protocol, so it needs no port, no driver and no package.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import Process
from typing import Any, Final, Self

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # it would need user namespaces, which containers often lack; only our own pages are opened
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1400",
    "--remote-debugging-pipe",
)
_PATIENCE_S: Final = 45.0
_POLL_S: Final = 0.1
# The browser reads from descriptor 3 and writes to 4, whatever numbers our ends have.
_WITH_PIPES: Final = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, pipe in enumerate(high, 3):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
_TEXT: Final = """
    [document, ...[...document.querySelectorAll('iframe')].map((frame) => frame.contentDocument)]
        .map((shown) => shown?.body?.innerText ?? '').join('\\n')
"""


def find_chromium() -> str | None:
    """The program's path, None if this machine has none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """An open tab."""

    def __init__(self, browser: "Chromium", session_id: str) -> None:
        self._browser = browser
        self._session_id = session_id

    async def goto(self, url: str) -> None:
        """Open an address."""
        await self._call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def text(self) -> str:
        """The words that the page and its frames show now, as rendered."""
        return str(await self.evaluate(_TEXT))

    async def wait_for(self, *texts: str) -> str:
        """Wait until the page shows all of the texts, however they are broken into lines; returns what it shows."""
        shown = ""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    shown = await self.text()
                    if all(" ".join(text.split()) in " ".join(shown.split()) for text in texts):
                        return shown
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"the page does not show {texts}; it shows:\n{shown}") from None

    async def click(self, selector: str, *texts: str) -> None:
        """Click the first element of a CSS selector that is shown and whose words are exactly one of the texts."""
        await self._click(selector, f"(e) => e.checkVisibility() && {json.dumps(texts)}.includes(e.innerText.trim())")

    async def choose(self, selector: str, text: str) -> None:
        """Choose an option of a list, which need not be open."""
        await self._click(f"{selector} [role=option]", f"(e) => e.textContent.trim() === {json.dumps(text)}")

    async def _click(self, selector: str, condition: str) -> None:
        hit = f"[...document.querySelectorAll({json.dumps(selector)})].find({condition})"
        await self._do(
            f"(() => {{ const hit = {hit}; hit?.click(); return Boolean(hit); }})()", f"{selector} {condition}"
        )

    async def follow(self, path_end: str) -> None:
        """Click the first link whose path ends so: within one application that is quicker than `goto`."""
        hit = f"[...document.links].find((link) => link.pathname.endsWith({json.dumps(path_end)}))"
        await self._do(f"(() => {{ const hit = {hit}; hit?.click(); return Boolean(hit); }})()", f"link to {path_end}")

    async def type_into(self, selector: str, text: str) -> None:
        """Put the cursor into the first element that is shown, and type."""
        hit = f"[...document.querySelectorAll({json.dumps(selector)})].find((e) => e.checkVisibility())"
        await self._do(f"(() => {{ const hit = {hit}; hit?.focus(); return Boolean(hit); }})()", selector)
        await self._call("Input.insertText", text=text)

    async def _do(self, action: str, what: str) -> None:
        """Try an action until it says that it found what it acts on."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not await self.evaluate(action):  # noqa: ASYNC110 - the browser tells nobody
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"there is no {what} on the page; it shows:\n{await self.text()}") from None

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session_id, **parameters)


class Chromium:
    """A browser with a profile of its own, gone when the context ends."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()
        try:
            self._process: Process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _WITH_PIPES, str(from_us), str(to_us), self._program, *_FLAGS),
                f"--user-data-dir={self._profile.name}",
                pass_fds=(from_us, to_us),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(from_us)
            os.close(to_us)
        reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._in, "rb")
        )
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(10):
                await self.call("Browser.close")
                await self._process.wait()
        except (TimeoutError, ConnectionError):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        self._reading.cancel()
        self._transport.close()
        os.close(self._out)
        self._profile.cleanup()

    async def open(self, url: str) -> Page:
        """A new tab with this address."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        await page.goto(url)
        return page

    async def call(self, method: str, session_id: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One request of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session_id:
            message["sessionId"] = session_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        if self._reading.done():
            raise ConnectionError("the browser has ended")
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
                answer = self._waiting.pop(message.get("id"), None)
                if answer is None or answer.done():
                    continue  # an event, or nobody waits any more
                if "error" in message:
                    answer.set_exception(AssertionError(message["error"]["message"]))
                else:
                    answer.set_result(message["result"])
        except asyncio.IncompleteReadError:
            for answer in self._waiting.values():
                answer.set_exception(ConnectionError("the browser has ended"))
