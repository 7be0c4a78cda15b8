"""Laws of the scans that a state keeps open: how many, of how many epochs, and which of them give way to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from qstate.backends.contract import Scanned, Selection, StateScan
from qstate.errors import Overloaded, ScanExpired
from qstate.runtime.serving.range_requests.scan_views import (
    IDLE_S,
    LAST_PAGE_S,
    LEAST_S,
    MOST_EPOCHS,
    MOST_VIEWS,
    ScanViews,
    View,
)
from tests.runtime.serving.clock import Clock

STATE_ID = b"s" * 16


class Scan(StateScan):
    """A scan of an epoch, which says whether it is open."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_open = True

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        return iter(())

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def views(clock: Clock) -> ScanViews:
    return ScanViews(STATE_ID, clock)


def opened(views: ScanViews, epoch: int = 0, *, isolation: str = "committed", keep_s: float = IDLE_S) -> View:
    """A view after its first page; with `LAST_PAGE_S` after its last."""
    view = views.open(isolation, lambda: Scan(epoch))
    views.release(view, keep_s)
    return view


def is_there(views: ScanViews, view: View) -> bool:
    try:
        views.release(views.use(view.id, view.isolation), IDLE_S)
    except ScanExpired:
        return False
    return True


@pytest.mark.parametrize("isolation", ["live", "committed"])
def test_clients_that_vanish_block_others_for_a_moment_only(views: ScanViews, clock: Clock, isolation: str) -> None:
    vanished = [opened(views, isolation=isolation) for _ in range(MOST_VIEWS)]
    with pytest.raises(Overloaded):
        opened(views)
    clock.now += LEAST_S
    for _ in range(10 * MOST_VIEWS):
        opened(views, isolation=isolation)
        clock.now += LEAST_S
        assert len(views) <= MOST_VIEWS
    assert not any(view.scan.is_open for view in vanished if isinstance(view.scan, Scan))


def test_a_scan_that_goes_on_keeps_its_place(views: ScanViews, clock: Clock) -> None:
    reading = opened(views)
    for epoch in range(10 * MOST_VIEWS):
        with suppress(Overloaded):
            opened(views, epoch)
        clock.now += LEAST_S / 2
        assert is_there(views, reading)


def test_a_view_is_kept_for_ten_seconds_whatever_others_do(views: ScanViews, clock: Clock) -> None:
    view = opened(views)
    clock.now += LEAST_S - 0.001
    for epoch in range(2 * MOST_VIEWS):
        with suppress(Overloaded):
            opened(views, epoch)
    assert LEAST_S >= 10 and is_there(views, view)


def test_without_others_a_view_is_kept_for_a_minute(views: ScanViews, clock: Clock) -> None:
    view = opened(views)
    clock.now += IDLE_S - 0.001
    views.expire()
    assert is_there(views, view)
    clock.now += IDLE_S
    views.expire()
    assert not is_there(views, view)


def test_committed_scans_are_of_few_epochs_at_a_time(views: ScanViews, clock: Clock) -> None:
    """Each epoch of which there is a scan may take as much memory as all keys of the state."""
    first = [opened(views, epoch) for epoch in range(MOST_EPOCHS)]
    refused: list[Scan] = []

    def scan_of() -> Scan:
        refused.append(Scan(MOST_EPOCHS))
        return refused[0]

    with pytest.raises(Overloaded):
        views.open("committed", scan_of)
    assert not any(scan.is_open for scan in refused), "what is refused costs nothing"
    assert opened(views, MOST_EPOCHS - 1), "scans of one epoch share what they cost"
    assert opened(views, MOST_EPOCHS, isolation="live"), "a live scan is of none"
    clock.now += LEAST_S
    assert is_there(views, first[0])
    later = opened(views, MOST_EPOCHS)
    assert not is_there(views, first[1]), "the one that was not read for longest gives way"
    assert is_there(views, first[0]) and is_there(views, first[2]) and is_there(views, later)


def test_a_scan_that_is_over_gives_way_at_once(views: ScanViews) -> None:
    over = [opened(views, epoch, keep_s=LAST_PAGE_S) for epoch in range(MOST_EPOCHS)]
    assert opened(views, MOST_EPOCHS)
    assert sum(is_there(views, view) for view in over) == MOST_EPOCHS - 1
    for _ in range(2 * MOST_VIEWS):
        opened(views, MOST_EPOCHS, keep_s=LAST_PAGE_S)
    assert len(views) <= MOST_VIEWS


def test_a_view_in_use_does_not_give_way(views: ScanViews, clock: Clock) -> None:
    used = [views.open("committed", lambda epoch=epoch: Scan(epoch)) for epoch in range(MOST_EPOCHS)]  # type: ignore[misc]
    clock.now += 2 * IDLE_S
    with pytest.raises(Overloaded):
        opened(views, MOST_EPOCHS)
    assert all(isinstance(view.scan, Scan) and view.scan.is_open for view in used)
