"""A browser, and a job to look at, for the tests of the gateway's pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import browser, page, tabs
from tests.gateway.page.served import DELAYS, TEMPERATURE, VISITS, ServedJob

__all__ = ["browser", "job", "page", "tabs"]


@pytest.fixture
def job(tmp_path: Path) -> ServedJob:
    """The job weather."""
    found = ServedJob("weather", [TEMPERATURE, VISITS, DELAYS], tmp_path)
    found.put(
        lastTemperature={"JFK": 71.5, "LGA": 64.0, "EWR": 80.25},
        visits={"N725MQ": {"LAX": 2}},
        lastDelays={"N725MQ": [3, -1]},
    )
    return found
