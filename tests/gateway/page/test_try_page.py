"""The page that tries the API, in a real browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.gateway.running_gateway import running_gateway
from tests.project.served_job import serve, serve_history


def test_a_form_sends_its_request_and_shows_the_answer(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path) as proxy, running_gateway(proxy) as gateway:
        page.goto(f"{gateway.url}/try.html")
        page.locator("summary", has_text="The value of a key").click()
        form = page.locator("details[open]")
        for name, text in (("job", "nyc"), ("state", "byPlace"), ("key", "JFK\n7\nff")):
            form.locator(f"[name={name}]").fill(text)
        form.get_by_role("button").click()
        expect(form.locator("pre")).to_contain_text('"value": "AAE="')


def test_a_stream_is_shown_as_it_comes(page: Page, tmp_path: Path) -> None:
    with serve_history(tmp_path, job="nyc") as (proxy, _), running_gateway(proxy) as gateway:
        page.goto(f"{gateway.url}/try.html")
        page.locator("summary", has_text="The changes of keys").click()
        form = page.locator("details[open]")
        for name, text in (("job", "nyc"), ("state", "lastTemperature"), ("key", "JFK")):
            form.locator(f"[name={name}]").first.fill(text)
        form.get_by_role("button").click()
        expect(form.locator("pre")).to_contain_text("event: snapshot")
        expect(form.locator("pre")).to_contain_text('"value":73.0')
        page.goto("about:blank")
