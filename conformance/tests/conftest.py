"""What the suite's own tests get: readable assertions in its modules, and a check that nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A test may import a module of the suite before the suite has run: its asserts are rewritten, too.
pytest.register_assert_rewrite(*(f"qstate_conformance.{area}" for area in ("backend", "server", "client")))

#: How long threads and child processes that a test has ended may take to disappear.
LEFTOVER_GRACE_S = 5.0

settings.register_profile(
    "own", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("own")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the test that leaves a thread or a child process running."""
    threads, children = set(threading.enumerate()), _child_processes()
    yield
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    for thread in set(threading.enumerate()) - threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = [f"thread {thread.name!r}" for thread in set(threading.enumerate()) - threads]
    left += [f"process {pid}" for pid in _ended_by(deadline, children)]
    if left:
        pytest.fail(f"the test left behind: {', '.join(left)}", pytrace=False)


def _ended_by(deadline: float, before: set[int]) -> set[int]:
    """The new child processes that are still there at the deadline; zombies count, somebody has to wait for them."""
    while True:
        new = _child_processes() - before
        if not new or time.monotonic() > deadline:
            return new
        threading.Event().wait(0.02)


def _child_processes() -> set[int]:
    """The direct children of this process, where the system lists them (Linux)."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(map(int, listing.read_text().split()))
        except OSError:  # the thread ended while we looked
            continue
    return found
