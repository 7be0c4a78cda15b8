"""P17: the longest gap in committed answers when a task manager of a running job is killed.

Rules of this module: the temperature alert job (heap, parallelism 2) gets `live_rows_per_s` rows, once a second. One
client, as people make it, gets committed values one at a time, for keys of all task managers, and asks again when the
connection broke under a get. In each round one task manager is killed (SIGKILL), and a sample is the longest time
between two answers until its successor answers for its keys. It is measured with a standby and without.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from random import Random
from threading import Event, Thread

from benchmarks.alert_job import STATE
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.pipelines import alert_query
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import say
from benchmarks.sizes import Sizes
from qstate.errors import Unavailable
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.spark import Job

__all__ = ["run"]

TARGET_OF = {1: "P17 standby", 0: "P17 alone"}
HOST = "127.0.0.1"
#: Ports for two task managers, a standby, and a successor that starts before the port of the lost one is free.
PROXIES = 4
#: Micro-batches before anything is measured; each key has a value then.
WARM_BATCHES = 2
#: Different files of rows. The job reads them again and again.
FILES = 4
FEED_EVERY_S = 1.0
#: How long gets go on after the successor of a killed task manager answers.
AFTER_S = 1.0
PATIENCE_S = 60.0
#: So many random keys are of all task managers.
SENSORS = 100


def run(bench: Bench) -> Findings:
    """P17."""
    sizes = bench.sizes
    findings = Findings()
    for standbys, target in TARGET_OF.items():
        gaps, quiet = _gaps(bench, standbys)
        detail = f"{sizes.live_rows_per_s:,} rows/s, {sizes.live_keys:,} keys, heap"
        findings.comparisons.append(Comparison(target, "s", gaps, detail=detail))
        findings.figures.append(Figure(f"{target}, the worst of all losses", "s", [max(gaps)]))
        findings.figures.append(Figure(f"{target}, longest gap while nothing is lost", "s", [quiet]))
    return findings


def _gaps(bench: Bench, standbys: int) -> tuple[list[float], float]:
    """The longest gap of each round, and the longest without a loss."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.live_rows_per_s, keys=sizes.live_keys)
    every_key = ReadingFiles(bench.directory("readings"), rows=sizes.live_rows, keys=sizes.live_keys)
    with ExitStack() as stack:
        ports = _free_ports(PROXIES)
        job = stack.enter_context(bench.job("heap", standbys=standbys, proxy_ports=",".join(map(str, ports))))
        query = stack.enter_context(alert_query(bench, job, every_key))
        query.feed(WARM_BATCHES)
        _await_standbys(job, standbys, WARM_BATCHES - 1)
        next_second = cycle([files.file(number) for number in range(FILES)])
        stack.enter_context(_Repeating(lambda: query.offer(next(next_second)), FEED_EVERY_S))
        # A successor may take another port than the process that was killed.
        proxies = [(HOST, port) for port in ports]
        client = stack.enter_context(QueryableStateClient(*proxies[0], proxies=proxies[1:]))
        getting = _Getting(client, job.name, files, sizes)
        stack.enter_context(getting)
        getting.longest_s(sizes.live_s)
        quiet = getting.longest_s(sizes.live_s)
        gaps = [_gap_of_a_loss(job, getting, number) for number in range(sizes.live_rounds)]
        for number, gap in enumerate(gaps):
            say(f"  round {number + 1}: {standbys} standbys, longest gap {gap:.3f} s")
        return gaps, quiet


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def _await_standbys(job: Job, standbys: int, epoch: int) -> None:
    def serving() -> int:
        found = [one.standby for one in job.statistics().processes if one.standby is not None]
        return sum(any(served >= epoch for _, served in one.epochs) for one in found)

    _await(lambda: serving() == standbys, "the standby serves the job's state")


def _gap_of_a_loss(job: Job, getting: _Getting, number: int) -> float:
    lost = job.manager.task_managers()[number % 2]
    getting.begin()
    os.kill(lost.pid, signal.SIGKILL)

    def came() -> bool:
        return any(
            one.index == lost.index and one.incarnation > lost.incarnation for one in job.manager.task_managers()
        )

    _await(came, "another task manager registers")
    getting.await_owners()
    return getting.longest_s(AFTER_S)


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, Event()
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}")
        pause.wait(0.02)


class _Repeating:
    """Calls a function again and again on a thread. Use it as a context manager."""

    def __init__(self, call: Callable[[], None], every_s: float) -> None:
        self._call = call
        self._every_s = every_s
        self._ending = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self._call()

    def __enter__(self) -> _Repeating:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ending.set()
        self._thread.join()


class _Getting(_Repeating):
    """A thread that gets committed values, one at a time, and keeps the longest time between two answers."""

    def __init__(self, client: QueryableStateClient, job: str, files: ReadingFiles, sizes: Sizes) -> None:
        super().__init__(self._get, 0.0)
        self._client = client
        self._job = job
        self._files = files
        self._random = Random(17)
        self._keys = sizes.live_keys
        self._answered_at = time.monotonic()
        self._longest_s = 0.0

    def begin(self) -> None:
        """Forget the gaps so far."""
        self._longest_s = 0.0

    def await_owners(self) -> None:
        """Wait until all keys can be got live: then every task manager has its state again."""
        sensors = [self._files.sensor(self._random.randrange(self._keys)) for _ in range(SENSORS)]
        self._client.get_many(self._job, STATE, sensors, timeout_s=PATIENCE_S)

    def longest_s(self, for_s: float) -> float:
        """Go on for so many seconds; the longest gap since `begin`, and begin again."""
        Event().wait(for_s)
        longest_s = max(self._longest_s, time.monotonic() - self._answered_at)
        self.begin()
        return longest_s

    def _get(self) -> None:
        key = self._files.sensor(self._random.randrange(self._keys))
        try:
            self._client.get(self._job, STATE, key, isolation="committed", timeout_s=PATIENCE_S)
        except Unavailable:
            return
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._answered_at)
        self._answered_at = now
