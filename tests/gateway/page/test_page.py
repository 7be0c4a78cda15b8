"""The live page in a real browser, in front of states that are really served."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from qstate.descriptors import StateDescriptor, ValueStateDescriptor
from qstate.keys import ColumnType
from tests.gateway.page.served import TEMPERATURE, ServedJob, serving, shown
from tests.gateway.running_gateway import running_gateway

HOSTILE = "<img src=x onerror=document.title='hacked'>/../%2F?#&.."
TOKEN = b"open sesame"


def value_of(page: Page) -> Locator:
    return page.locator("#value")


def test_jobs_lead_to_states_and_these_to_keys(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(url)
        expect(page.get_by_role("status")).to_have_text("live")
        row = page.get_by_role("row").filter(has_text="weather")
        expect(row).to_contain_text("running")
        page.get_by_role("link", name="weather").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("weather")
        page.get_by_role("link", name="lastTemperature").click()
        expect(page.get_by_text("value state · string → float · 3 entries")).to_be_visible()
        expect(page.get_by_text("128 key groups at 1 state server")).to_be_visible()
        page.get_by_role("link", name="JFK").click()
        expect(value_of(page)).to_contain_text("71.5")
        page.go_back()
        expect(page.get_by_role("link", name="JFK")).to_be_visible()


def test_more_windows_than_a_browser_has_connections_show_their_keys(browser: Browser, job: ServedJob) -> None:
    """All pages of this browser are visible, as those of windows side by side are."""
    keys = [f"key-{number}" for number in range(8)]
    job.put(lastTemperature=dict.fromkeys(keys, 1.5))
    context = browser.new_context()
    with shown(job) as (url, _), closing(context):
        pages = [context.new_page() for _ in keys]
        for reading in (1.5, 2.5):
            job.put(lastTemperature=dict.fromkeys(keys, reading))
            for key, page in zip(keys, pages, strict=True):
                if reading == 1.5:
                    page.goto(f"{url}#/weather/lastTemperature/{key}")
                expect(value_of(page)).to_contain_text(str(reading))
        asked = [page for page in pages if "asked every second (other windows" in value_of(page).inner_text()]
        assert len(asked) == 4
        for page in pages:
            if page not in asked:
                page.close()
        expect(value_of(asked[0])).to_contain_text("Committed, shown as it changes")
        job.put(lastTemperature=dict.fromkeys(keys, 3.5))
        for page in asked:
            expect(value_of(page)).to_contain_text("3.5")


def test_figures_of_a_job_move(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather")
        epoch = page.locator(".figures div").filter(has_text="Epoch").locator("span")
        expect(epoch).to_have_text("0")
        job.put(lastTemperature={"JFK": 72.0})
        expect(epoch).to_have_text("1")
        expect(page.get_by_role("img", name=re.compile("Rows per second"))).to_be_visible()
        expect(page.get_by_role("table", name="Subtasks").get_by_role("row")).to_have_count(2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (40.639751, "40.639751"),
        (-1234.5, "-1,234.5"),
        (5e-324, "5e-324"),
        (1e300, "1e+300"),
        (1.2345678901234567e-06, "0.0000012345678901234567"),
        (-1.2345678901234568e-05, "-0.000012345678901234568"),
        (1.2345678901234567e-04, "0.00012345678901234567"),
        (0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_no_digit_of_a_value_is_rounded_away(page: Page, job: ServedJob, value: float, text: str) -> None:
    job.put(lastTemperature={"JFK": value})
    with shown(job) as (url, _):
        page.goto(url + "#/weather/lastTemperature")
        expect(page.get_by_role("row").filter(has_text="JFK")).to_contain_text(text)
        page.get_by_role("link", name="JFK").click()
        expect(page.locator("#value .value")).to_have_text(text)


def test_a_namespace_keeps_all_of_its_digits(page: Page, tmp_path: Path) -> None:
    state = ValueStateDescriptor("value", str).queryable("word")
    words = ServedJob("words", [state], tmp_path, namespace_types=(ColumnType.BIGINT,))
    words.put_in(2**53 + 1, word={"key": "odd"})
    words.put_in(2**53, word={"key": "even"})
    with shown(words) as (url, _):
        page.goto(url + "#/words/word")
        page.get_by_role("row").filter(has_text="9,007,199,254,740,993").get_by_role("link").click()
        expect(page.locator("#value .value")).to_have_text("odd")
        choice = page.get_by_label("Namespace")
        expect(choice.locator("option")).to_have_text(["9,007,199,254,740,992", "9,007,199,254,740,993"])
        expect(choice).to_have_value(str(2**53 + 1))
        choice.select_option(str(2**53))
        expect(page.locator("#value .value")).to_have_text("even")
        page.get_by_label("Namespace").select_option(str(2**53 + 1))
        expect(page.locator("#value .value")).to_have_text("odd")


PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
COUPLE = "\U0001f469\u200d\u2764\ufe0f\u200d\U0001f468"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"{PERSIAN} {FAMILY} {COUPLE}", f"{PERSIAN} {FAMILY} {COUPLE}"),
        ("a\u061cb\u00adc\u180ed\U000e0041e\u202ef\u200bg", "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\ufffdg"),
        ("a\u200db\u200d", "a\ufffdb\ufffd"),
        ("\u0645\u200c\u200c\u0645", "\u0645\ufffd\ufffd\u0645"),
        ("a\tb", "a\u2409b"),
    ],
    ids=["joined", "hidden", "joiners of nothing", "joiners of joiners", "control"],
)
def test_what_hides_or_reorders_text_is_seen_and_joined_letters_stay(
    page: Page, tmp_path: Path, text: str, seen: str
) -> None:
    words = ServedJob("words", [ValueStateDescriptor("value", str).queryable("word")], tmp_path)
    words.put(word={"key": text})
    with shown(words) as (url, _):
        page.goto(url + "#/words/word")
        expect(page.locator("tbody td.code")).to_have_text(seen)
        page.get_by_role("link", name="key", exact=True).click()
        expect(page.locator("#value .value")).to_have_text(seen)


def test_null_in_a_value_is_shown_as_such(page: Page, tmp_path: Path) -> None:
    things = ServedJob("things", [ValueStateDescriptor("value", object).queryable("thing")], tmp_path)
    things.put(thing={"key": {"a": None, "b": 1}})
    with shown(things) as (url, _):
        page.goto(url + "#/things/thing")
        expect(page.locator("tbody tr")).to_contain_text("a: null, b: 1")
        page.get_by_role("link", name="key", exact=True).click()
        expect(page.locator("#value dd")).to_have_text(["null", "1"])


def test_an_empty_key_and_an_empty_text_can_be_seen(page: Page, tmp_path: Path) -> None:
    words = ServedJob("words", [ValueStateDescriptor("value", str).queryable("word")], tmp_path)
    words.put(word={"": ""})
    with shown(words) as (url, _):
        page.goto(url + "#/words/word")
        page.get_by_role("link", name='""').click()
        expect(page.locator("#value .value")).to_have_text('""')


def test_a_value_and_its_chart_move_as_epochs_are_committed(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        expect(value_of(page)).to_contain_text("71.5")
        for reading in (72.25, 68.0):
            job.put(lastTemperature={"JFK": reading})
            expect(value_of(page)).to_contain_text(f"{reading:g}")
        values = page.get_by_role("table", name="Values").locator("tbody td.code")
        expect(values).to_have_text(["68", "72.25", "71.5"])
        expect(page.get_by_role("img", name=re.compile("68, 3 values"))).to_be_visible()
        job.put(lastTemperature={"JFK": None})
        expect(value_of(page)).to_contain_text("The state has no value for this key.")


@pytest.mark.parametrize(
    "readings",
    [
        (0.3, 0.1 + 0.2),
        (2**53, 2**53 + 2),
        (1_700_000_000_000_000_000, 1_700_000_000_000_000_256),
        (0, 5e-324),
        (1, 1.7e308),
    ],
    ids=str,
)
def test_values_next_to_each_other_are_drawn(page: Page, tmp_path: Path, readings: tuple[float, float]) -> None:
    numbers = ServedJob("numbers", [ValueStateDescriptor("value", object).queryable("number")], tmp_path)
    with shown(numbers) as (url, _):
        page.goto(f"{url}#/numbers/number/key")
        expect(value_of(page)).to_contain_text("no value")
        for reading in (*readings, 7):
            numbers.put(number={"key": reading})
            chart = page.get_by_role("img", name=re.compile("Value over time"))
            text = f"{reading:,}" if isinstance(reading, int) else str(reading)
            expect(page.locator("#value .value")).to_have_text(text)
            expect(chart.locator("circle")).to_have_count(1)
            assert chart.locator("line.grid").count() <= 5
            assert "NaN" not in chart.inner_html()


def test_a_value_is_shown_with_its_own_epoch(page: Page, job: ServedJob) -> None:
    """The readings are the epochs. Whatever the page shows between two of its tasks is looked at."""
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        expect(page.locator("#value .value")).to_have_text("71.5")
        page.evaluate(
            """() => {
                const card = document.getElementById("value");
                window.seen = [];
                const look = () => window.seen.push(card.innerText);
                new MutationObserver(look).observe(card, { subtree: true, childList: true, characterData: true });
            }"""
        )
        for reading in range(1, 6):
            job.put(lastTemperature={"JFK": float(reading)})
            expect(page.locator("#value .value")).to_have_text(str(reading))
            expect(value_of(page)).to_contain_text(f"epoch {reading}")
        seen = page.evaluate("window.seen")
        assert len(seen) >= 5
        for text in seen:
            value, note = text.split("\n", 1)
            assert note.strip().endswith(f"epoch {value}"), text


def test_a_chart_that_cannot_be_drawn_is_said_and_the_value_moves(browser: Browser, job: ServedJob) -> None:
    with shown(job) as (url, _), closing(browser.new_context()) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        expect(page.get_by_role("img", name=re.compile("71.5, 1 values"))).to_be_visible()
        page.evaluate("() => { document.createElementNS = () => { throw new Error('no lines') } }")
        expect(page.get_by_role("alert")).to_contain_text("no lines")
        assert any("no lines" in error for error in errors)
        for epoch, reading in enumerate((72.5, 73.5), 1):
            job.put(lastTemperature={"JFK": reading})
            expect(page.locator("#value .value")).to_have_text(str(reading))
            expect(value_of(page)).to_contain_text(f"epoch {epoch}")


def test_changes_of_parts_are_applied_to_the_whole_value(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/visits/N725MQ")
        expect(value_of(page)).to_contain_text("LAX2")
        job.put(visits={"N725MQ": {"SFO": 9}})
        expect(value_of(page)).to_contain_text("SFO9")
        expect(value_of(page)).to_contain_text("LAX2")
        for visits in (1, 7):
            job.put(visits={"N725MQ": {("BOS", 2): visits}})
            expect(value_of(page)).to_contain_text(f'["BOS",2]{visits}')
        page.get_by_label("Figure to draw").select_option("number of entries")
        expect(page.get_by_role("img", name=re.compile(": 3, 4 values"))).to_be_visible()


def test_no_entry_of_a_map_is_lost(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/visits/N725MQ")
        expect(page.locator("#value dt")).to_have_text(["LAX"])
        keys = [1, "1", b"1", "31", "__proto__"]
        for number, key in enumerate(keys, 3):
            job.put(visits={"N725MQ": {key: number}})
        names = ["LAX", "1", '"1"', '{"binary":"31"}', '"31"', "__proto__"]
        values = ["2", "3", "4", "5", "6", "7"]
        fields = page.locator("#value dt, #value dd")
        expect(fields).to_have_count(12)
        found = fields.all_text_contents()
        assert sorted(zip(found[::2], found[1::2], strict=True)) == sorted(zip(names, values, strict=True))
        page.reload()
        expect(fields).to_have_count(12)
        page.goto(f"{url}#/weather/visits")
        expect(page.get_by_role("row").filter(has_text="N725MQ")).to_contain_text('{"binary":"31"}: 5')


def test_names_keys_and_values_are_text_whatever_they_contain(page: Page, tmp_path: Path) -> None:
    state = ValueStateDescriptor("value", str).queryable(HOSTILE)
    job = ServedJob(HOSTILE, [state], tmp_path)
    job.put(**{HOSTILE: {HOSTILE: HOSTILE, "a/b?c#d%20": HOSTILE}})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    with shown(job) as (url, _):
        page.goto(url)
        page.get_by_role("link", name=HOSTILE).click()
        page.get_by_role("link", name=HOSTILE).last.click()
        page.get_by_role("link", name="a/b?c#d%20").click()
        expect(value_of(page)).to_contain_text(HOSTILE)
        page.goto(f"{url}#/{quote(HOSTILE, safe='')}/{quote(HOSTILE, safe='')}/{quote(HOSTILE, safe='')}")
        expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
        expect(value_of(page)).to_contain_text(HOSTILE)
        expect(page.locator("img:not([role])")).to_have_count(0)
        assert "hacked" not in page.title().replace(HOSTILE, "")
    assert not [one for one in requests if not one.startswith(url)]


def test_no_module_of_the_page_makes_markup_of_text() -> None:
    directory = Path(__file__).parents[3] / "qstate/gateway/page"
    modules = list(directory.glob("*.js"))
    assert modules
    for module in modules:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", module.read_text()), (
            module
        )


def test_search_by_prefix_and_its_link(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature")
        expect(page.get_by_text("3 keys", exact=True)).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("L")
        expect(page.get_by_text("1 key", exact=True)).to_be_visible()
        expect(page).to_have_url(f"{url}#/weather/lastTemperature?begins=L")
        page.reload()
        expect(page.get_by_role("searchbox")).to_have_value("L")
        expect(page.get_by_text("1 key", exact=True)).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("nothing")
        expect(page.get_by_text("No key matches.")).to_be_visible()


def test_keys_come_in_pages_and_their_values_move(page: Page, job: ServedJob) -> None:
    job.put(lastTemperature={f"key-{number:03}": float(number) for number in range(247)})
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature")
        rows = page.get_by_role("table", name="Keys").locator("tbody tr")
        expect(rows).to_have_count(100)
        page.get_by_role("button", name="Show 100 more").click()
        expect(rows).to_have_count(200)
        page.get_by_role("button", name="Show 100 more").click()
        expect(rows).to_have_count(250)
        job.put(lastTemperature={"key-007": 1234.5})
        expect(rows.filter(has_text="key-007")).to_contain_text("1,234.5")


def test_the_largest_values_come_first(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature?show=top")
        names = page.get_by_role("list", name="Keys with the largest values").get_by_role("link")
        expect(names).to_have_text(["EWR", "JFK", "LGA"])
        job.put(lastTemperature={"LGA": 99.0})
        expect(names).to_have_text(["LGA", "EWR", "JFK"])


def test_what_is_not_there_is_said(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, served):
        page.goto(f"{url}#/nothing")
        expect(page.get_by_role("alert")).to_contain_text("No such job")
        page.goto(f"{url}#/weather/nothing")
        expect(page.get_by_role("alert")).to_contain_text("No such state")
        page.goto(f"{url}#/weather/lastTemperature/nothing")
        expect(value_of(page)).to_contain_text("The state has no value for this key.")
        page.goto(url)
        expect(page.get_by_role("row").filter(has_text="weather")).to_contain_text("running")
        served.stop("weather")
        expect(page.get_by_role("row").filter(has_text="weather")).to_contain_text("stopped")


def test_lost_gateway_is_said_and_what_was_seen_stays(page: Page, job: ServedJob) -> None:
    with serving(job) as served:
        with running_gateway(served.proxy.address) as gateway:
            port = gateway.port
            page.goto(f"{gateway.url}/#/weather/lastTemperature/JFK")
            expect(value_of(page)).to_contain_text("71.5")
        expect(page.get_by_role("status")).to_contain_text("connection lost")
        expect(page.get_by_role("alert")).to_contain_text("Connection lost")
        expect(value_of(page)).to_contain_text("71.5")
        job.put(lastTemperature={"JFK": 73.0})
        with running_gateway(served.proxy.address, ports=str(port)):
            expect(page.get_by_role("status")).to_have_text("live")
            expect(value_of(page)).to_contain_text("73")
            expect(page.get_by_role("alert")).to_have_count(0)
            page.goto("about:blank")


def test_after_a_gap_that_is_compacted_the_newest_value_is_shown(page: Page, job: ServedJob) -> None:
    with serving(job) as served:
        with running_gateway(served.proxy.address) as gateway:
            port = gateway.port
            page.goto(f"{gateway.url}/#/weather/lastTemperature/JFK")
            expect(value_of(page)).to_contain_text("71.5")
        expect(page.get_by_role("status")).to_contain_text("connection lost")
        for reading in range(5):
            job.put(lastTemperature={"JFK": float(reading)})
        job.compact()
        job.put(lastTemperature={"JFK": 99.0})
        with running_gateway(served.proxy.address, ports=str(port)):
            expect(value_of(page)).to_contain_text("99")
            values = page.get_by_role("table", name="Values").locator("tbody td.code")
            expect(values).to_have_text(["99", "71.5"])
            page.goto("about:blank")


def test_a_token_is_asked_for_and_kept_in_the_tab(page: Page, job: ServedJob) -> None:
    with shown(job, token=TOKEN) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        page.get_by_label("Token", exact=True).fill("wrong")
        page.get_by_role("button", name="Use token").click()
        page.get_by_label("Token", exact=True).fill(TOKEN.decode())
        page.get_by_role("button", name="Use token").click()
        expect(value_of(page)).to_contain_text("71.5")
        page.reload()
        expect(value_of(page)).to_contain_text("71.5")
        assert "sesame" not in str(page.context.storage_state())
        page.get_by_role("button", name="Forget token").click()
        expect(page.get_by_role("button", name="Use token")).to_be_visible()


def test_a_state_without_a_feed_is_asked_again(page: Page, tmp_path: Path) -> None:
    job = ServedJob("weather", [TEMPERATURE], tmp_path, fed=False)
    job.put(lastTemperature={"JFK": 71.5})
    with shown(job) as (url, _):
        page.goto(f"{url}#/weather/lastTemperature/JFK")
        expect(value_of(page)).to_contain_text("71.5")
        expect(value_of(page)).to_contain_text("no feed of changes")
        job.put(lastTemperature={"JFK": 72.5})
        expect(value_of(page)).to_contain_text("72.5")


def many_states() -> list[StateDescriptor]:
    return [ValueStateDescriptor(f"v{one:04}", float).queryable(f"state-{one:04}") for one in range(1000)]


def test_fifty_jobs_and_a_thousand_states_are_searched_and_paged(page: Page, tmp_path: Path) -> None:
    jobs = [ServedJob("large", many_states(), tmp_path / "large", fed=False)]
    jobs += [ServedJob(f"job-{one:02}", [TEMPERATURE], tmp_path / str(one), fed=False) for one in range(49)]
    with shown(*jobs) as (url, _):
        page.goto(url)
        expect(page.locator("tbody tr")).to_have_count(50)
        page.keyboard.press("/")
        page.keyboard.type("large")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="large").click()
        rows = page.get_by_role("table", name="States").locator("tbody tr")
        expect(rows).to_have_count(100)
        page.keyboard.press("/")
        page.keyboard.type("0777")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="state-0777").click()
        expect(page.get_by_text("The state has no entries yet.")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_scrolls_sideways_on_a_phone(page: Page, tmp_path: Path, theme: str) -> None:
    long = "x" * 250
    job = ServedJob(long, [ValueStateDescriptor("value", str).queryable(long)], tmp_path)
    job.put(**{long: {long: long * 40}})
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    with shown(job) as (url, _):
        for place, landmark in (
            ("", "running"),
            (long, "string"),
            (f"{long}/{long}", "1 key"),
            (f"{long}/{long}/{long}", "epoch"),
        ):
            page.goto(f"{url}#/{place}")
            expect(page.locator("main")).to_contain_text(landmark)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, place[:3]


def test_the_theme_follows_the_system_until_it_is_switched(page: Page, job: ServedJob) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="dark")
    with shown(job) as (url, _):
        page.goto(url)
        dark = ground()
        page.emulate_media(color_scheme="light")
        light = ground()
        assert dark != light
        button = page.get_by_role("button", name="Theme")
        button.click()
        button.click()
        expect(button).to_have_text("Theme: dark")
        assert ground() == dark
        page.reload()
        assert ground() == dark


def test_everything_is_reached_with_the_keyboard(page: Page, job: ServedJob) -> None:
    with shown(job) as (url, _):
        page.goto(url)
        link = page.get_by_role("link", name="weather")
        expect(link).to_be_visible()
        for _ in range(12):
            page.keyboard.press("Tab")
            if link.evaluate("(element) => element === document.activeElement"):
                break
        expect(link).to_be_focused()
        assert link.evaluate("(element) => getComputedStyle(element).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("weather")
        expect(page.locator("main")).to_be_focused()
