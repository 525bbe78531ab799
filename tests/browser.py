"""A headless Chromium, driven over a pipe by its DevTools protocol: opens pages, moves the mouse, tells complaints."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
ARGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
# Chromium talks on descriptors 3 and 4.
START = """
import os, sys
to_read, to_write = (os.dup2(int(fd), 100 + i) for i, fd in enumerate(sys.argv[1:3]))
os.dup2(to_read, 3)
os.dup2(to_write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
BAD = ("Runtime.exceptionThrown", "Log.entryAdded")


def command() -> str | None:
    """The path of a Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, COMMANDS)), None)


class Browser:
    """One page of one browser. Use in a `with`; `complaints` and `requests` tell what pages did."""

    def __init__(self, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        args = [*ARGS, f"--window-size={width},{height}", "--remote-debugging-pipe"]
        start = [sys.executable, "-c", START, str(to_read), str(to_write), str(command()), *args]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen([*start, profile], pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._events = b"", 0, list[dict[str, Any]]()
        try:
            self._attach(width, height, dark)
        except BaseException:
            self.close()
            raise

    def _attach(self, width: int, height: int, dark: bool) -> None:
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._send(method, self._session, **params)

    def open(self, path: Path, limit_s: float = 120) -> None:
        """Load a page and wait until it says that it is ready."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + limit_s
        while self.run("document.documentElement?.dataset.ready ?? ''") != "true":
            assert time.monotonic() < end, f"{path} is not ready: {self.complaints}"
            time.sleep(0.02)

    def run(self, code: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **params: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 else "")

    def frames(self, count: int = 2) -> None:
        """Wait until that many frames were shown."""
        self.run(f"(async () => {{ for (let i = 0; i < {count}; i++) await new Promise(requestAnimationFrame); }})()")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    @property
    def complaints(self) -> list[Any]:
        """Exceptions, security refusals and warnings of the page."""
        return [event["params"] for event in self._events if event["method"] in BAD]

    @property
    def requests(self) -> list[str]:
        """What the page asked for, itself included."""
        sent = (e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def _send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
