"""The tutorial, run as a reader does, and then what other pages say about its job: HTTP, the live page, SQL.

`.ci/release.py` runs these tests with the built wheels, too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
from playwright.sync_api import Page as Tab
from playwright.sync_api import expect

from tests.browser import browser, page
from tests.project.documentation import Page, run_program
from tests.project.shells import Shells
from tests.spark.streams import LOCAL, start_spark, until

__all__ = ["browser", "page"]

FIRST_JOB = Page("docs/tutorial/first-job.md")
GATEWAY = Page("docs/how-to/gateway.md")
README = Page("README.md")

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shells]:
    """The tutorial, acted out. Its job still runs in the first shell."""
    shells = Shells(tmp_path_factory.mktemp("tutorial"))
    try:
        shells.act_out(FIRST_JOB)
        yield shells
        shells.interrupt("gateway")
        shells.interrupt("first shell")
    finally:
        shells.close()


@pytest.fixture(scope="module")
def gateway(shells: Shells) -> str:
    """The address of a gateway that was started as its page says, but for the port."""
    first = next(block for block in GATEWAY.blocks if block.language == "bash")
    shells.start("gateway", f"{first.text.splitlines()[-1]} --port 0")
    return shells.wait_for("gateway", r"serving (http://\S+);")[1]


@pytest.fixture(scope="module")
def spark() -> Any:
    return start_spark(LOCAL)


def add_reading(shells: Shells, hour: int, temperature: float) -> None:
    """One more file of the tutorial's input."""
    file = shells.directory / f"{hour}.csv"
    file.write_text(f"JFK,2013-07-18 {hour}:00:00,{temperature}\n")
    file.rename(shells.directory / "readings" / file.name)


def test_the_first_job_does_what_the_page_says(shells: Shells) -> None:
    shells.until("qstate get alerts lastTemperature JFK", "94.0\n")


def test_curl_follows_the_changes(shells: Shells, gateway: str) -> None:
    command = next(block.text for block in GATEWAY.blocks if block.text.startswith("curl -sN"))
    shells.start("curl", command.replace("http://localhost:8069", gateway))
    shells.wait_for("curl", r'event: snapshot\nid: .*\ndata: .*"key":"JFK",.*"value":')
    add_reading(shells, 16, 96.5)
    shells.wait_for("curl", r'event: changes\nid: .*\ndata: .*"key":"JFK",.*"value":96.5')
    shells.interrupt("curl")


def test_the_value_moves_on_the_live_page(shells: Shells, gateway: str, page: Tab) -> None:
    page.goto(gateway)
    for link in ("alerts", "lastTemperature", "JFK"):
        page.get_by_role("link", name=link).click()
    for hour, temperature in ((17, 97.25), (18, 98.75)):
        add_reading(shells, hour, temperature)
        expect(page.locator("#value")).to_contain_text(str(temperature))


def test_a_session_of_its_own_reads_the_live_state_in_sql(shells: Shells, spark: Any) -> None:
    add_reading(shells, 19, 99.0)
    namespace: dict[str, object] = {"__name__": "__main__", "spark": spark}
    *_, table = README.programs()

    def printed() -> str:
        with redirect_stdout(io.StringIO()) as output:
            run_program(README, table, namespace, shells.proxy)
        return output.getvalue()

    until(lambda: printed() == "[Row(city='New York', value=99.0)]\n", "the new reading is in the table", 120.0)
