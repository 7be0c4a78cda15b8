"""Laws of the simulation of large jobs: it agrees with the formulas of queueing theory, and the page has its table."""

from __future__ import annotations

import pytest

from benchmarks.scale_simulation import Assumed, Measured, Plan, render, simulate
from tests.project.documentation import Page

NO_NETWORK = Assumed(network_us=0.0)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
def test_one_owner_is_a_queue_with_a_constant_service_time(load: float) -> None:
    """The mean time of M/D/1: s (1 + load / 2 (1 - load)), by Pollaczek and Khinchine."""
    service_us = 100.0
    measured = Measured(proxy_us=0.0, owner_us=service_us, wait_p50_us=0.0)
    plan = Plan("one owner", proxies=1, gets_per_s=load * 1e6 / service_us, owners=1, in_task_managers=False)
    found = simulate(plan, measured, NO_NETWORK)
    expected_ms = service_us / 1000 * (1 + load / (2 * (1 - load)))
    assert found.mean_ms == pytest.approx(expected_ms, rel=0.1)
    assert found.busiest_owner == pytest.approx(load, rel=0.05)


def test_without_queues_a_get_takes_its_services_and_its_ways() -> None:
    measured = Measured(proxy_us=60.0, owner_us=40.0, wait_p50_us=0.0)
    plan = Plan("idle", proxies=100, gets_per_s=100, in_task_managers=False)
    assert simulate(plan, measured, Assumed(network_us=50.0)).p50_ms == pytest.approx(0.3, abs=1e-6)


def test_the_same_seed_gives_the_same_outcome() -> None:
    plan = Plan("some", proxies=50, gets_per_s=100_000)
    assert simulate(plan, seed=7) == simulate(plan, seed=7)
    assert simulate(plan, seed=7) != simulate(plan, seed=8)


def test_the_page_has_the_table_of_the_simulation() -> None:
    assert render() in Page("docs/explanation/scale.md").text, "run: python -m benchmarks.scale_simulation"
