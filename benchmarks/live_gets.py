"""P8 and P8b: gets from a job that runs, for the client as people make it and for one that asks only the proxy.

Rules of this module: the temperature alert job (heap, parallelism 2) gets rows all the time. In P8 the next
micro-batches always wait, so the job saturates both processors. In P8b it gets `live_rows_per_s` rows, once a second.
The client is a process of its own on the same machine; in each round, each kind of client asks for `live_s` seconds,
for keys in one seeded order. The client without options is the one that counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from threading import Event

import psutil

from benchmarks.alert_job import STATE
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.latencies import Window
from benchmarks.live_client import LiveClient
from benchmarks.micro_batches import FedQuery
from benchmarks.pipelines import alert_query
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import say, turns
from benchmarks.sizes import Sizes
from benchmarks.targets import TARGETS

__all__ = ["run"]

#: Name of the client -> its `direct`.
CLIENTS = {"client without options": None, "direct=False": False}
THE_ONE_THAT_COUNTS = "client without options"
IN_FLIGHT = (1, 64, 256)
#: Micro-batches before anything is measured; each key has a value then.
WARM_BATCHES = 2
#: Different files of rows. The job reads them again and again.
FILES = 4
#: Micro-batches that are not finished while the job is saturated: the one that runs, and the next.
WAITING = 3
LOOK_EVERY_S = 0.1

#: (name of the client, gets in flight) -> one window a round
Windows = Mapping[tuple[str, int], Sequence[Window]]


def run(bench: Bench) -> Findings:
    """P8 and P8b, whichever are wanted."""
    sizes = bench.sizes
    large = ReadingFiles(bench.directory("readings"), rows=sizes.live_rows, keys=sizes.live_keys)
    small = ReadingFiles(bench.directory("readings"), rows=sizes.live_rows_per_s, keys=sizes.live_keys)
    findings = Findings()
    with ExitStack() as stack:
        job = stack.enter_context(bench.job("heap"))
        query = stack.enter_context(alert_query(bench, job, large))
        query.write_ahead(FILES)
        query.feed(WARM_BATCHES)
        client = stack.enter_context(LiveClient(job.proxy_address, job.name, STATE, sizes.live_keys))
        if bench.wants("p8"):
            findings.add(_saturated(query, large, client, sizes))
        if bench.wants("p8b"):
            findings.add(_steady(query, small, client, sizes))
    return findings


def _saturated(query: FedQuery, files: ReadingFiles, client: LiveClient, sizes: Sizes) -> Findings:
    waiting = cycle([files.file(number) for number in range(FILES)])

    def feed() -> None:
        while query.waiting < WAITING:
            query.offer(next(waiting))

    with _Rows(query, feed, LOOK_EVERY_S, sizes.live_s) as rows:
        windows = _windows(client, sizes)
    comparisons = [
        *_compared("P8 one, p99", windows, 1, lambda window: window.p99_ms),
        *_compared("P8 64, gets/s", windows, 64, lambda window: window.calls_per_s),
        *_compared("P8 64, p99", windows, 64, lambda window: window.p99_ms),
    ]
    return Findings(comparisons, [*_figures("P8", windows), *rows.figures("P8", files.rows)])


def _steady(query: FedQuery, files: ReadingFiles, client: LiveClient, sizes: Sizes) -> Findings:
    next_second = cycle([files.file(number) for number in range(FILES)])
    with _Rows(query, lambda: query.offer(next(next_second)), 1.0, sizes.live_s) as rows:
        windows = _windows(client, sizes)
    comparisons = [
        *_compared("P8b 64, gets/s", windows, 64, lambda window: window.calls_per_s),
        *_compared("P8b 256, gets/s", windows, 256, lambda window: window.calls_per_s),
    ]
    return Findings(comparisons, [*_figures("P8b", windows), *rows.figures("P8b", files.rows)])


def _figures(target: str, windows: Windows) -> list[Figure]:
    return [
        Figure(f"{target}, {gets} in flight, {name}, {what}", unit, [getattr(window, field) for window in found])
        for (name, gets), found in windows.items()
        for what, unit, field in (("gets/s", "gets/s", "calls_per_s"), ("p50", "ms", "p50_ms"), ("p99", "ms", "p99_ms"))
    ]


def _windows(client: LiveClient, sizes: Sizes) -> Windows:
    """One window of gets per round, client and number in flight, after a round that does not count."""
    contenders = [(name, gets) for gets in IN_FLIGHT for name in CLIENTS]
    found: dict[tuple[str, int], list[Window]] = {contender: [] for contender in contenders}
    for number, (name, gets) in turns(contenders, rounds=1 + sizes.live_rounds):
        window = client.ask(gets, sizes.live_s, direct=CLIENTS[name])
        if number:
            found[name, gets].append(window)
        rate, p99 = window.calls_per_s, window.p99_ms
        say(f"  {'round' if number else 'warm '} {number}: {gets} in flight, {name}: {rate:,.0f}/s, p99 {p99:.2f} ms")
    return found


def _compared(target: str, windows: Windows, in_flight: int, figure: Callable[[Window], float]) -> list[Comparison]:
    return [
        Comparison(
            target,
            TARGETS[target].unit,
            [figure(window) for window in windows[name, in_flight]],
            detail=name,
            counts=name == THE_ONE_THAT_COUNTS,
        )
        for name in CLIENTS
    ]


class _Rows:
    """Rows that come while something else is measured: a thread feeds them. Use it as a context manager.

    For the first `alone_s` seconds the job has the machine to itself.
    """

    def __init__(self, query: FedQuery, feed: Callable[[], None], every_s: float, alone_s: float) -> None:
        self._query = query
        self._feed = feed
        self._every_s = every_s
        self._alone_s = alone_s
        self._ending = Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> _Rows:
        self._fed_before, self._began = self._query.fed, time.monotonic()
        self._feeding = self._pool.submit(self._keep_feeding)
        self._busy_percent = psutil.cpu_percent(self._alone_s)
        return self

    def _keep_feeding(self) -> None:
        self._feed()
        while not self._ending.wait(self._every_s):
            self._feed()

    def __exit__(self, *exc_info: object) -> None:
        self._ending.set()
        self._pool.shutdown()
        self._feeding.result()
        self._query.finish()
        self._took_s = time.monotonic() - self._began

    def figures(self, target: str, rows_per_file: int) -> list[Figure]:
        """What the job did: without it, the gets say nothing."""
        rows = (self._query.fed - self._fed_before) * rows_per_file
        return [
            Figure(f"{target}, the job beside the gets", "rows/s", [rows / self._took_s]),
            Figure(f"{target}, processors busy with the job alone", "%", [self._busy_percent]),
        ]
