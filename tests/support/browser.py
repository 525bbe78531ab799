"""A headless Chromium, driven by playwright: opens pages, moves the mouse, collects complaints and requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Page, sync_playwright

LIMIT_MS = 240_000  # for whatever is waited for


@contextmanager
def launched() -> Iterator[Browser]:
    """One page of the machine's chromium, not of a download of playwright's own; root has no sandbox."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        yield Browser(page)
        chromium.close()


class Browser:
    """A page, and what those it showed complained of and asked for."""

    def __init__(self, page: Page) -> None:
        self.page, self.mouse, self.key = page, page.mouse, page.keyboard.press
        self.complaints, self.requests = list[str](), list[str]()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)
        page.on("request", lambda request: self._ask(request.url))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):  # what a browser refuses appears here too
            self.complaints.append(message.text)

    def _ask(self, url: str) -> None:
        if not url.startswith(("data:", "blob:")):
            self.requests.append(url)

    def open(self, path: Path) -> None:
        """Load a page and wait until it says that it is ready."""
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready=true]", state="attached")

    def run(self, code: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        return self.page.evaluate(code)

    def frames(self, count: int = 2) -> None:
        """Wait until that many frames were shown."""
        self.run(f"(async () => {{ for (let i = 0; i < {count}; i++) await new Promise(requestAnimationFrame); }})()")
