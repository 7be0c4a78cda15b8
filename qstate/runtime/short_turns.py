"""Short turns of an operator's thread on a crowded machine, while single gets come in.

Rules of this module: it gives rows on as they are and in their order, and decides when the thread that works on them
pauses, and asks for beats. It knows nothing of what is in them.

Where more threads are busy than there are processors, the kernel takes an operator's processor away at a tick of its
clock and gives it back at another, 4 ms later. The operator has the interpreter's lock then, for which a query's
thread waits all that time. One that sleeps for a moment, without the lock, after every turn of less than a millisecond
is let in again at once as long as it has not had its share, and else waits without the lock. Measured with two
operators and two tasks of Spark on two processors, the p99 of a live get is 3.6 ms instead of 5.3, the p95 1.4.

That costs the job a tenth of its rows per second, so an operator pauses only where it pays: gets of one key come
in, for each of which somebody waits (who sends them by the hundred is after throughput), and close upon each other;
and the operator often has to wait for a processor anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

__all__ = ["ShortTurns"]

Row = TypeVar("Row")

#: Processor time of a turn. With half of it the p99 was 3.4 ms, but a micro-batch took 18 % longer; with half as much
#: again, 3.7 to 4.1 ms and 6 %.
TURN_S = 600e-6
#: The kernel adds the thread's timer slack, which is 50 us. From 2 us in all nothing was gained.
PAUSE_S = 10e-6
#: Gets come close upon each other when the last one is no longer ago than this: a few batches of rows.
LATELY_S = 0.05
#: A thread is crowded when it has waited for a processor for this part of the time that it had one.
CROWDED = 0.1
FIRST_ROWS, MOST_ROWS = 64, 4096
#: Of the calling thread, in nanoseconds: how long it has run, how long it was ready to but did not; and a count.
SCHEDSTAT = "/proc/thread-self/schedstat"


class ShortTurns:
    """Gives rows on, in turns with pauses in between while that lets gets be answered sooner.

    `asked_at` says when the last get of one key came in, by `time.monotonic`. `beat` is called by the thread that works
    on the rows, once a turn, for that its processor is given out more often: see `qstate.runtime.metronome`.
    """

    def __init__(self, asked_at: Callable[[], float], beat: Callable[[], None]) -> None:
        self._asked_at = asked_at
        self._beat = beat

    def __call__(self, rows: Iterator[Row], count: int) -> Iterator[Row]:
        """The rows, of which there are `count`, for the calling thread. Whether it pauses is decided here, once."""
        if count <= FIRST_ROWS or time.monotonic() - self._asked_at() > LATELY_S or not _is_crowded():
            return rows
        return chain.from_iterable(_turns(rows, count, self._beat))


def _turns(rows: Iterator[Row], count: int, beat: Callable[[], None]) -> Iterator[Iterator[Row]]:
    """Rows for about `TURN_S` each; whoever asks for the next ones pauses first."""
    size = FIRST_ROWS
    while True:
        beat()
        began = time.thread_time()
        yield islice(rows, size)
        count -= size
        if count <= 0:
            yield rows
            return
        took = time.thread_time() - began
        time.sleep(PAUSE_S)
        size = MOST_ROWS if took * MOST_ROWS <= size * TURN_S else max(1, int(size * TURN_S / took))


def _is_crowded() -> bool:
    """Whether the calling thread, in its life so far, has often been ready to run without a processor to run on."""
    try:
        had, lacked, _ = map(int, Path(SCHEDSTAT).read_text("ascii").split())
    except (OSError, ValueError):
        return False  # another system, or a kernel that does not count
    return lacked > had * CROWDED
