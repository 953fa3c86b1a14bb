"""A headless Chromium of the system's, and pages of it that write down what goes wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

NEEDED = "PREFIX_REPLAY_NEED_BROWSER"
"""Set to 1 where a browser must be there, as in CI: without one the tests then fail."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        why = f"none of {', '.join(NAMES)} is installed"
        if os.environ.get(NEEDED) == "1":
            pytest.fail(why)
        pytest.skip(why)
    with sync_playwright() as playwright:
        # No sandbox: it needs privileges that a container does not have.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Shown:
    """A page, and what it said, asked for or popped up since it was opened."""

    page: Page
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def open(self, report: Path) -> None:
        """Show a report, until all of its charts are drawn."""
        self.page.goto(report.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.drawn !== undefined")


@pytest.fixture
def shown(chromium: Browser) -> Iterator[Shown]:
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    shown = Shown(page)
    page.on("console", lambda message: shown.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: shown.said.append(str(error)))
    page.on("request", lambda request: shown.requests.append(request.url))

    def dismiss(dialog: object) -> None:
        shown.dialogs.append(dialog.message)  # type: ignore[attr-defined]
        dialog.dismiss()  # type: ignore[attr-defined]

    page.on("dialog", dismiss)
    yield shown
    page.close()
