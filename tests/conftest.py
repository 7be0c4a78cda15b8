"""What every test gets: Hypothesis profiles, the `spark` marker by folder, and a check that nothing is left behind.

Tests that take minutes (marker `soak`) run only when they are asked for.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: How long threads and child processes that a test has ended may take to disappear.
LEFTOVER_GRACE_S = 5.0
#: After so many collections of young objects only, all are collected. Python does so by itself after ten.
MOST_COLLECTIONS_OF_THE_YOUNG = 8

# A shared machine with two cores stalls now and then: time limits per example would test the machine.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if {here / "spark", here / "chaos"}.intersection(item.path.parents):
            item.add_marker(pytest.mark.spark)
    # A run of every test, or of all Spark tests, does not ask for them: `-m soak` does.
    soak = [] if "soak" in str(config.getoption("-m")) else [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no need to look through it after each test."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Clear up after each test, so that no other one pauses for it.

    A property test leaves a hundred thousand objects in cycles. Collecting them stopped the test that came later for
    up to 0.7 s, which is longer than some deadlines. To look through all objects takes 15 to 40 ms, so after a test
    that has made few objects only these are looked through.
    """
    many = gc.get_count()[2] > MOST_COLLECTIONS_OF_THE_YOUNG
    gc.collect(2 if many else 1)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the test that leaves a thread or a child process running.

    What was there before the test (a Spark session that the whole run shares) is none of its business. Fixtures
    of the test itself are undone before this one, because pytest sets autouse fixtures up first.
    """
    threads, children = set(threading.enumerate()), _child_processes()
    yield
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    for thread in _own_threads() - threads:
        while thread.ident is None and time.monotonic() < deadline:  # being started: it cannot be joined before it runs
            threading.Event().wait(0.01)
        thread.join(max(0.0, deadline - time.monotonic()))
    left = [f"thread {thread.name!r}" for thread in _own_threads() - threads]
    left += [f"process {pid}: {name}" for pid, name in _ended_by(deadline, children).items()]
    if left:
        pytest.fail(f"the test left behind: {', '.join(left)}", pytrace=False)


def _own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not _is_of_py4j(thread)}


def _is_of_py4j(thread: threading.Thread) -> bool:
    """Py4J's connections to the JVM keep threads for as long as the session lives, whatever the test does."""
    target = getattr(thread, "_target", None)
    return any(str(getattr(thing, "__module__", "")).startswith("py4j") for thing in (type(thread), target))


def _ended_by(deadline: float, before: dict[int, str]) -> dict[int, str]:
    """The new child processes that are still there at the deadline; zombies count, somebody has to wait for them."""
    while True:
        new = {pid: name for pid, name in _child_processes().items() if pid not in before}
        if not new or time.monotonic() > deadline:
            return new
        threading.Event().wait(0.02)


def _child_processes() -> dict[int, str]:
    """The direct children of this process by id, where the system lists them (Linux)."""
    found = {}
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            for pid in map(int, listing.read_text().split()):
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # the thread or the process ended while we looked
            continue
    return found
