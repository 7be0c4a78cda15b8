"""The page that tries the API, in a real browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.gateway.page.served import ServedJob, shown
from tests.gateway.page.try_form import sent_form
from tests.gateway.running_gateway import running_gateway
from tests.project.served_job import serve, serve_history


def test_a_form_sends_its_request_and_shows_the_answer(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path) as proxy, running_gateway(proxy) as gateway:
        form = sent_form(page, f"{gateway.url}/", "The value of a key", "nyc", "byPlace", "JFK\n7\nff")
        expect(form.locator("pre")).to_contain_text('"value": "AAE="')


def test_numbers_are_shown_as_the_gateway_sent_them(page: Page, job: ServedJob) -> None:
    job.put(visits={"N725MQ": {"LAX": 2**53 + 1}}, lastTemperature={"JFK": 71.0})
    with shown(job) as (url, _):
        form = sent_form(page, url, "The value of a key", "weather", "visits", "N725MQ")
        expect(form.locator("pre")).to_contain_text('"LAX": 9007199254740993')
        form = sent_form(page, url, "The value of a key", "weather", "lastTemperature", "JFK")
        expect(form.locator("pre")).to_contain_text('"value": 71.0')


def test_a_stream_is_shown_as_it_comes(page: Page, tmp_path: Path) -> None:
    with serve_history(tmp_path, job="nyc") as (proxy, _), running_gateway(proxy) as gateway:
        form = sent_form(page, f"{gateway.url}/", "The changes of keys", "nyc", "lastTemperature", "JFK")
        expect(form.locator("pre")).to_contain_text("event: snapshot")
        expect(form.locator("pre")).to_contain_text('"value":73.0')
        page.goto("about:blank")
