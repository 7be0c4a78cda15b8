"""The live page while the gateway or the job does not answer, when they are back, and with a token that is no good."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from datetime import datetime, timezone

import pytest
from playwright.sync_api import Page, expect

from qstate.gateway import feeds
from tests.gateway.page.served import Served, ServedJob, metrics_of, serving, shown
from tests.gateway.running_gateway import running_gateway

TOKEN = b"open sesame"
NO_ANSWER = re.compile("No answer in time|The job does not answer")
#: Asks, lists when it has asked, and gets answers and failures that take so many milliseconds each.
ASKING = """async () => {
  const { poll, pause, Problem } = await import("./api.js");
  const answers = [[1000, true], [10, true], [2000, false], [1000, true], [1000, true], [2000, false], [2000, false]];
  const began = performance.now();
  window.asked = [];
  const load = async (signal) => {
    const [ms, works] = answers[window.asked.push(performance.now() - began) - 1] ?? [1e9, true];
    await pause(ms, signal);
    if (!works) throw new Problem({});
  };
  poll(load, 100, { show: () => {}, failed: () => {}, signal: new AbortController().signal });
}"""


def test_what_is_slow_is_asked_for_less_often_but_soon_after_a_failure(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.clock.install(time=datetime(2030, 1, 1, tzinfo=timezone.utc))
        page.goto(f"{url}try.html")
        page.clock.pause_at(datetime(2030, 1, 2, tzinfo=timezone.utc))
        page.evaluate(ASKING)
        page.clock.run_for(40_000)
        assert [round(ms) for ms in page.evaluate("asked")] == [0, 10000, 10110, 12210, 13310, 23310, 25410, 37410]


def test_views_are_current_soon_after_the_job_was_away(page: Page, job: ServedJob) -> None:
    with closing(job), ExitStack() as serving:
        served = Served([job])
        serving.callback(served.close)
        with running_gateway(served.proxy.address) as gateway:
            page.goto(f"{gateway.url}/#/weather/lastTemperature")
            row = page.get_by_role("row").filter(has_text="JFK")
            expect(row).to_contain_text("71.5")
            serving.close()
            expect(page.locator(".notice")).to_contain_text(NO_ANSWER)
            job.put(lastTemperature={"JFK": 72.5})
            serving.callback(Served([job], ports=str(served.proxy.address[1])).close)
            expect(row).to_contain_text("72.5")
            expect(page.locator(".notice")).to_have_count(0)
            page.goto("about:blank")


def test_the_view_of_a_key_says_that_the_job_is_away_and_goes_on(
    page: Page, job: ServedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 0.2)
    with closing(job), ExitStack() as serving:
        served = Served([job])
        serving.callback(served.close)
        with running_gateway(served.proxy.address) as gateway:
            page.goto(f"{gateway.url}/#/weather/lastTemperature/JFK")
            value = page.locator("#value")
            expect(value).to_contain_text("71.5")
            job.put(lastTemperature={"JFK": 72.5})
            expect(value).to_contain_text("72.5")
            serving.close()
            expect(page.locator(".notice")).to_contain_text(NO_ANSWER)
            serving.callback(Served([job], ports=str(served.proxy.address[1])).close)
            expect(page.locator(".notice")).to_have_count(0)
            job.put(lastTemperature={"JFK": 73.5})
            values = page.get_by_role("table", name="Values").locator("tbody td.code")
            expect(values).to_have_text(["73.5", "72.5", "71.5"])
            page.goto("about:blank")


def test_a_job_whose_metrics_are_away_is_not_said_to_lack_them(page: Page, job: ServedJob) -> None:
    with serving(job) as served, ExitStack() as measured:
        metrics = measured.enter_context(metrics_of(job))
        with running_gateway(served.proxy.address, job_metrics=[metrics]) as gateway:
            jobs = page.context.new_page()
            for shown_page, place in ((jobs, "#/"), (page, "#/weather")):
                shown_page.goto(f"{gateway.url}/{place}")
            expect(page.get_by_text("1 operator in 1 subtask")).to_be_visible()
            epoch = jobs.get_by_role("row").filter(has_text="weather").get_by_role("cell").nth(2)
            expect(epoch).to_have_text("0")
            measured.close()
            expect(page.get_by_text("Its metrics do not answer now.")).to_be_visible()
            expect(epoch).to_have_text("\N{EN DASH}")
            expect(jobs.get_by_text("--job-metrics")).to_be_hidden()
            for shown_page in (jobs, page):
                shown_page.goto("about:blank")


def test_a_token_that_is_refused_is_said_to_be(page: Page, job: ServedJob) -> None:
    with shown(job, token=TOKEN) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
        page.get_by_label("Token", exact=True).fill("wrong")
        page.get_by_role("button", name="Use token").click()
        expect(page.get_by_role("heading", name="The token was refused")).to_be_visible()


def test_what_no_request_can_carry_is_refused_as_a_token_and_not_kept(page: Page, job: ServedJob) -> None:
    with shown(job, token=TOKEN) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        page.get_by_label("Token", exact=True).fill("“open sesame”")
        page.get_by_role("button", name="Use token").click()
        expect(page.get_by_role("alert")).to_contain_text("characters that no request can carry")
        assert page.evaluate("sessionStorage.length") == 0
        page.get_by_label("Token", exact=True).fill(TOKEN.decode())
        page.get_by_role("button", name="Use token").click()
        expect(page.locator("#value")).to_contain_text("71.5")
