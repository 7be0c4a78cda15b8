"""The live page in many tabs of one window, of which a browser shows one and hides the others."""

from __future__ import annotations

import httpx
from playwright.sync_api import BrowserContext, expect

from tests.gateway.page.served import ServedJob, shown
from tests.gateway.page.try_form import sent_form
from tests.runtime.serving.raw_client import wait_until

#: More than the six connections that a browser opens to one gateway.
TABS = 8


def test_more_tabs_than_a_browser_has_connections_are_usable(tabs: BrowserContext, job: ServedJob) -> None:
    keys = [f"key-{number}" for number in range(TABS)]
    job.put(lastTemperature=dict.fromkeys(keys, 1.5))
    with shown(job) as (url, _):
        pages = [tabs.new_page() for _ in keys]
        for key, page in zip(keys, pages, strict=True):
            page.bring_to_front()
            page.goto(f"{url}#/weather/lastTemperature/{key}")
            expect(page.locator("#value")).to_contain_text("1.5")
        for reading in (2.5, 3.5):
            job.put(lastTemperature=dict.fromkeys(keys, reading))
        for page in (pages[0], pages[-2], pages[-1]):
            page.bring_to_front()
            values = page.get_by_role("table", name="Values").locator("tbody td.code")
            expect(values).to_have_text(["3.5", "2.5", "1.5"])
        wait_until(lambda: "qstate_gateway_streams 1.0" in httpx.get(f"{url}metrics").text, "the end of other streams")


def test_page_that_tries_the_api_follows_nothing_while_it_is_hidden(tabs: BrowserContext, job: ServedJob) -> None:
    with shown(job) as (url, _):

        def streams(count: int) -> None:
            figure = f"qstate_gateway_streams {count:.1f}"
            wait_until(lambda: figure in httpx.get(f"{url}metrics").text, f"{count} streams")

        page = tabs.new_page()
        page.bring_to_front()
        shown_text = sent_form(page, url, "The changes of keys", "weather", "lastTemperature", "JFK").locator("pre")
        expect(shown_text).to_contain_text('"value":71.5')
        for number, reading in enumerate((72.5, 73.5), 1):
            streams(1)
            other = tabs.new_page()
            other.bring_to_front()
            streams(0)
            job.put(lastTemperature={"JFK": reading})
            page.bring_to_front()
            expect(shown_text).to_contain_text(f'"value":{reading}')
            text = shown_text.inner_text()
            assert text.count('"value":71.5') == 1, "no event comes twice"
            assert text.count("closed while the page was hidden") == number
