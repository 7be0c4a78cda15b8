"""A real browser for tests of the live page: the Chromium of the system, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

#: How long the page may take for what a test waits for, in milliseconds.
PATIENCE_MS = 15_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium without a window. Playwright's event loop occupies the thread, so it ends with the module."""
    chromium, *arguments = _chromium()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield found
        found.close()


@pytest.fixture
def tabs(tmp_path: Path) -> Iterator[BrowserContext]:
    """Tabs of one window, for a module without `browser`: one is visible, which `bring_to_front` chooses.

    The pages of a browser that Playwright starts are all visible.
    """
    command = [*_chromium(), "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'profile'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, sync_playwright() as playwright:
        try:
            assert process.stderr is not None
            lines = (re.search(r"listening on (ws://\S+)", line) for line in process.stderr)
            found = playwright.chromium.connect_over_cdp(next(filter(None, lines))[1], no_defaults=True)
            found.contexts[0].set_default_timeout(PATIENCE_MS)
            yield found.contexts[0]
            found.close()
        finally:
            process.terminate()


def _chromium() -> list[str]:
    """The command that starts it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("the page's tests need a chromium on the PATH; on Debian: apt install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    # Chromium's sandbox refuses to work for root, which tests in containers are.
    return [chromium, "--no-sandbox"] if os.geteuid() == 0 else [chromium]


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
