"""A real browser without a window, driven over a pipe (`--remote-debugging-pipe`: JSON, each
message ended by a zero byte), so that tests need no library for it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
"""The browser of this machine; empty where it has none."""
PATIENCE_S = 120.0
Json = dict[str, Any]


class Browser:
    """A browser with one tab. `said` are the messages of its console, `asked` the addresses that
    pages asked for."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._count, self._read = send, receive, 0, b""
        self._session = ""
        self.said: list[str] = []
        self.asked: list[str] = []

    def begin(self) -> None:
        """Attach to a tab."""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **params: Any) -> Json:
        """Have the browser do something, and give what it answers."""
        self._count += 1
        asked: Json = {"id": self._count, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._send, json.dumps(asked).encode() + b"\0")
        while (message := self._next()).get("id") != self._count:
            pass
        assert "error" not in message, (method, message["error"])
        return dict(message["result"])

    def _next(self, within_s: float = PATIENCE_S) -> Json:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._receive], [], [], within_s)
            assert ready, "the browser says nothing"
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser has ended"
            self._read += data
        said, _, self._read = self._read.partition(b"\0")
        message: Json = json.loads(said)
        self._hear(message)
        return message

    def _hear(self, message: Json) -> None:
        given = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(one.get("value")) for one in given["args"]))
            case "Runtime.exceptionThrown":
                self.said.append(str(given["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.asked.append(given["request"]["url"])

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.do("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        result = self.do(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.value(script):
            assert time.monotonic() < end, script
            self.value("new Promise(later => setTimeout(later, 50))")

    def screen(self, width: int, height: int, *, dark: bool) -> None:
        """Have a screen of this size."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])

    def language(self, name: str) -> None:
        """Have the browser of somebody who speaks this."""
        agent = self.value("navigator.userAgent")
        self.do("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=name)

    def press(self, key: str, text: str = "") -> None:
        """Press a key, by its name."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, " ": 32, "Home": 36, "ArrowLeft": 37}[key]
            given = {"text": text} if text and kind == "keyDown" else {}
            self.do(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given
            )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is on the screen, or the whole page, as a PNG file."""
        found = self.do("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(found))


@contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """A browser, whose files are in `home`."""
    to_read, send = os.pipe()
    receive, to_write = os.pipe()

    def place() -> None:  # the browser reads 3, and writes 4
        spare = [os.dup(one) for one in (to_read, to_write)]
        for one, place in zip(spare, (3, 4), strict=True):
            os.dup2(one, place, inheritable=True)

    with subprocess.Popen(
        [
            CHROMIUM,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",  # a container has none to give
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={home / 'browser'}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(home / "browser.log").open("wb"),
        close_fds=False,
        preexec_fn=place,
        start_new_session=True,
    ) as process:
        os.close(to_read)
        os.close(to_write)
        try:
            one = Browser(send, receive)
            one.begin()
            yield one
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            os.close(send)
            os.close(receive)
