"""Short turns: every row, in its order, and the interpreter's lock let go in between where that is asked for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from qstate.runtime.short_turns import FIRST_ROWS, MOST_ROWS, SCHEDSTAT, ShortTurns, _is_crowded, _turns

LONG_S = 30.0


def _no_beat() -> None:
    """For those who look at the rows."""


@pytest.mark.parametrize("count", [1, FIRST_ROWS - 1, FIRST_ROWS, FIRST_ROWS + 1, 3 * MOST_ROWS])
def test_all_rows_come_in_their_order(count: int) -> None:
    assert list(chain.from_iterable(_turns(iter(range(count)), count, _no_beat))) == list(range(count))


def test_a_slow_row_makes_the_next_turns_short() -> None:
    sizes = []
    rows = iter(range(4 * MOST_ROWS))
    for turn in _turns(rows, 4 * MOST_ROWS, _no_beat):
        sizes.append(len(list(turn)))
        if len(sizes) < 3:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
    assert sizes[:3] == [FIRST_ROWS, 1, 1]
    assert sum(sizes) == 4 * MOST_ROWS


def test_what_is_wrong_with_the_rows_is_still_found() -> None:
    count = 2 * FIRST_ROWS
    rows = zip(range(count), range(count + 1), strict=True)
    with pytest.raises(ValueError, match="longer"):
        list(chain.from_iterable(_turns(rows, count, _no_beat)))


@pytest.mark.parametrize(("count", "asked_s_ago"), [(MOST_ROWS, 1.0), (FIRST_ROWS, 0.0)], ids=["not asked", "few rows"])
def test_rows_that_nobody_has_to_wait_for_are_given_on_as_they_are(
    monkeypatch: pytest.MonkeyPatch, count: int, asked_s_ago: float
) -> None:
    monkeypatch.setattr("qstate.runtime.short_turns._is_crowded", lambda: True)
    rows = iter(range(count))
    beats: list[int] = []
    in_turns = ShortTurns(lambda: time.monotonic() - asked_s_ago, lambda: beats.append(threading.get_ident()))
    assert in_turns(rows, count) is rows
    assert not beats


def test_every_turn_asks_for_beats_where_the_rows_are_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.short_turns._is_crowded", lambda: True)
    beats: list[int] = []
    in_turns = ShortTurns(time.monotonic, lambda: beats.append(threading.get_ident()))
    count = 3 * MOST_ROWS
    assert list(in_turns(iter(range(count)), count)) == list(range(count))
    assert len(beats) > 2
    assert set(beats) == {threading.get_ident()}


@pytest.fixture
def lock_kept_for_long() -> Iterator[None]:
    """No thread is made to let the interpreter's lock go."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LONG_S)
    yield
    sys.setswitchinterval(interval)


def test_another_thread_gets_the_lock_between_turns(lock_kept_for_long: None) -> None:
    done, ran_at = threading.Event(), []

    def note() -> None:
        while not done.is_set():
            ran_at.append(len(seen))
            time.sleep(0)

    seen: list[int] = []
    thread = threading.Thread(target=note)
    thread.start()
    for row in chain.from_iterable(_turns(iter(range(200_000)), 200_000, _no_beat)):
        seen.append(row)
    done.set()
    thread.join(LONG_S)
    assert any(0 < count < 200_000 for count in ran_at)


BETWEEN_TWO = """
import os, subprocess, sys, time
from qstate.runtime.short_turns import _is_crowded

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    until = time.monotonic() + 20
    while not _is_crowded() and time.monotonic() < until:
        pass
    print(_is_crowded())
finally:
    other.kill()
    other.wait()
"""


@pytest.mark.skipif(not Path(SCHEDSTAT).exists(), reason="the kernel does not count")
def test_a_thread_that_shares_its_processor_is_crowded() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN_TWO], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_thread_is_not_crowded_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.short_turns.SCHEDSTAT", "/nowhere/schedstat")
    assert not _is_crowded()
