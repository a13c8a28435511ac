"""A real browser for tests: Chromium without a window, driven over the pipes of its DevTools protocol.

Messages are JSON ended by a zero byte, ours on its descriptor 3 and its own on 4 (``--remote-debugging-pipe``).
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MOST_SECONDS = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


@dataclass(slots=True, kw_only=True)
class Browser:
    """One tab. ``complaints`` is what the console said, and what could not be loaded; ``asked`` addresses of
    requests.
    """

    send: int
    receive: int
    session: str = ""
    number: int = 0
    unread: bytes = b""
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of one command."""
        self.number += 1
        message: dict[str, object] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self.number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]

    def open(self, path: Path, *, width: int, dark: bool) -> None:
        """Load a file on a screen of ``width`` pixels that likes dark or light pages."""
        if not self.session:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._read()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse on the middle of an element, as a user does."""
        middle = "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]"
        scroll = "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'})"
        x, y = self.value(f"(() => {{const e = document.querySelector({json.dumps(selector)}); {scroll}; {middle}}})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select([self.receive], [], [], MOST_SECONDS)
            assert ready, "the browser says nothing"
            found = os.read(self.receive, 1 << 20)
            assert found, "the browser ended"
            self.unread += found
        line, _, self.unread = self.unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, said: dict[str, Any]) -> None:
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(said["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in ``folder``; BINARY is there."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    moved = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
    words = [str(BINARY), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    running = subprocess.Popen(
        ["bash", "-c", moved, "bash", *words],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    one = Browser(send=ours_out, receive=ours_in)
    try:
        yield one
        one.session = ""
        one.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        running.terminate()
        running.wait(timeout=MOST_SECONDS)
