"""A page in Chromium without a window, over its debugging protocol: its errors, requests and text, at any size."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_STARTS_S = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """One tab. Problems are what the console, the security policy and scripts complained about; requests are URLs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop, self._socket, self._number = loop, socket, 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a file, until its scripts have run."""
        self.call("Page.navigate", url=path.as_uri())
        self.evaluate("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.settle()

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window in CSS pixels, as a phone's where narrow, and the system's colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def settle(self) -> None:
        """Two frames: observers of sizes have redrawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script: str) -> object:
        """The value of an expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **params: object) -> dict:
        """Send a command; events that arrive before its answer are noted."""
        self._number += 1
        return self._loop.run_until_complete(asyncio.wait_for(self._answer(method, params), _STARTS_S))

    async def _answer(self, method: str, params: dict) -> dict:
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            text = await self._socket.read_message()
            assert text is not None, "Chromium has closed the connection"
            message = json.loads(text)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, event: str | None, facts: dict) -> None:
        if event == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.problems.append(str(facts["args"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.problems.append(facts["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A tab of a Chromium whose profile is in `folder`."""
    with open(folder / "chromium.log", "wb") as log:
        process = subprocess.Popen([CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"], stdout=log, stderr=log)
    loop = asyncio.new_event_loop()
    try:
        socket = loop.run_until_complete(_connect(folder, process))
        yield Page(loop, socket)
        socket.close()
    finally:
        process.kill()
        process.wait()
        loop.close()


async def _connect(folder: Path, process: subprocess.Popen) -> WebSocketClientConnection:
    port = folder / "DevToolsActivePort"
    for _ in range(int(_STARTS_S * 20)):
        if port.exists() and port.read_text().count("\n"):
            break
        assert process.poll() is None, (folder / "chromium.log").read_text()
        await asyncio.sleep(0.05)
    wish = Request(f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/new?about:blank", method="PUT")
    tab = json.loads(urlopen(wish).read())
    return await websocket_connect(tab["webSocketDebuggerUrl"], max_message_size=2**28)
