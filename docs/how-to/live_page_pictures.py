"""Makes the pictures of live-page.md from the demo: needs the extras `demo` and `test`, Java and a chromium.

`python docs/how-to/live_page_pictures.py` takes about a minute.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

PICTURES = Path(__file__).with_name("live-page")
DEMO = [sys.executable, "-m", "qstate.cli.main", "demo", "--serve", "--speed", "3", "--ports", "0", "--page-ports", "0"]
DESK, PHONE = {"width": 1200, "height": 780}, {"width": 360, "height": 740}
#: So long a page is watched before its picture is taken, in milliseconds: then its charts have something to show.
WATCHED_MS = 20_000
#: name -> (place on the page, what it must show, its size, colours)
SHOTS = {
    "job": ("", "lastTemperature", DESK, "light"),
    "top": ("/totalDistance?show=top", "Of ", DESK, "dark"),
    "key": ("/lastTemperature/JFK", "Committed", PHONE, "light"),
}


def main() -> None:
    """Run the demo, and take the pictures while it replays."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            url = next(line.split()[-1] for line in demo.stdout if "live in a browser" in line)
            with sync_playwright() as playwright:
                arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
                take(playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments), url)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.stdout and demo.stdout.read()


def take(browser: Browser, url: str) -> None:
    """All pictures, watched at the same time."""
    pages = {}
    for name, (place, shown, size, colours) in SHOTS.items():
        pages[name] = browser.new_page(viewport=size, color_scheme=colours, reduced_motion="reduce")
        pages[name].goto(url + place)
        expect(pages[name].locator("main")).to_contain_text(shown, timeout=60_000)
    pages["job"].wait_for_timeout(WATCHED_MS)
    PICTURES.mkdir(exist_ok=True)
    for name, page in pages.items():
        page.screenshot(path=PICTURES / f"{name}.png")
    browser.close()


if __name__ == "__main__":
    main()
