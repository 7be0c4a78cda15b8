"""A real browser for tests of the live page: the Chromium of the system, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

#: How long the page may take for what a test waits for, in milliseconds.
PATIENCE_MS = 15_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium without a window. Playwright's event loop occupies the thread, so it ends with the module."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("the page's tests need a chromium on the PATH; on Debian: apt install chromium")
    # Chromium's sandbox refuses to work for root, which tests in containers are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a fresh browser profile. A test fails when the page has raised an error."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    found = context.new_page()
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    yield found
    context.close()
    assert errors == []
