"""Cached gets: committed gets of a client with a cache, against the same without, while a job commits epochs.

Rules of this module: one task manager (heap) without Spark. A thread of this process commits an epoch every tenth of a
second, which changes a part of the keys; both kinds of clients are in this process, so it disturbs both. Each value is
the number of its epoch. So an answer's age is known: the time since the next epoch of its key was committed. What the
polls cost is measured apart: the processor time that a client takes for the changes of keys that it does not hold.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.latencies import Window, durations_us, percentile
from benchmarks.optional_packages import run_async
from benchmarks.results import Figure, Findings
from benchmarks.rounds import interleaved, say
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.client import AsyncQueryableStateClient, ClientCache, QueryableStateClient

__all__ = ["run"]

BOUND_S = 1.0
EPOCH_S = 0.1
#: How many keys each epoch changes, and how many are asked for.
CHANGED, HELD = 100, 1_000
#: How often the loop has a turn.
AT_ONCE = 64


def run(bench: Bench) -> Findings:
    """Gets a second, latency and age of the answers, and the price of changes."""
    sizes = bench.sizes
    keys = [sensor_name(number) for number in range(HELD)]
    findings = Findings()
    with ServedJob(pa.int64()) as job:
        job.hold(dict.fromkeys(keys, 0))
        job.finalize()
        with _Writer(job, keys) as writer:
            for name, measure in (("sync", _sync), ("asyncio", _asyncio)):
                reads = {kind: _Reads(writer) for kind in ("servers", "cache")}
                contenders = {
                    kind: partial(measure, job.proxy, keys, kind == "cache", found, sizes.cached_get_s)
                    for kind, found in reads.items()
                }
                samples = interleaved(contenders, rounds=sizes.cached_get_rounds)
                for kind, found in reads.items():
                    findings.figures += found.figures(f"{name}, {kind}", samples[kind])
        findings.figures.append(_price(job, sizes.subscribed_keys, sizes.cached_get_rounds))
    return findings


class _Writer(threading.Thread):
    """Commits epochs. `committed` has the time of each, `changes` the epochs of each key."""

    def __init__(self, job: ServedJob, keys: list[str]) -> None:
        super().__init__(name="writer")
        self._job = job
        self._parts = [keys[at : at + CHANGED] for at in range(0, len(keys), CHANGED)]
        self._stopping = threading.Event()
        self.committed: list[float] = [time.monotonic()]
        self.period = len(self._parts)

    def run(self) -> None:
        while not self._stopping.wait(EPOCH_S):
            epoch = len(self.committed)
            self._job.hold(dict.fromkeys(self._parts[epoch % self.period], epoch))
            self._job.finalize()
            self.committed.append(time.monotonic())

    def age_s(self, part: int, epoch: int, asked_at: float) -> float:
        """How long before `asked_at` a value of this epoch of a key in this part was replaced; 0 when it was not."""
        after = epoch + 1 + (part - epoch - 1) % self.period
        return max(0.0, asked_at - self.committed[after]) if after < len(self.committed) else 0.0

    def __enter__(self) -> _Writer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self.join()


class _Reads:
    """The latencies and ages of all reads of one contender."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self.windows: list[Window] = []
        self.ages_ms: list[float] = []
        self.hits: list[float] = []

    def note(self, number: int, epoch: int, asked_at: float) -> None:
        """A get of a key gave the value of this epoch."""
        self.ages_ms.append(self._writer.age_s(number // CHANGED, epoch, asked_at) * 1000)

    def figures(self, name: str, rates: list[float]) -> Iterator[Figure]:
        """What is reported of them."""
        yield Figure(f"cached gets, {name}, rate", "gets/s", rates)
        yield Figure(f"cached gets, {name}, p50", "us", [one.p50_ms * 1000 for one in self.windows])
        yield Figure(f"cached gets, {name}, p99", "us", [one.p99_ms * 1000 for one in self.windows])
        yield Figure(f"cached gets, {name}, age of answers, p99", "ms", [percentile(self.ages_ms, 99)])
        yield Figure(f"cached gets, {name}, age of answers, most", "ms", [max(self.ages_ms)])
        if any(self.hits):
            yield Figure(f"cached gets, {name}, answered by the cache", "x", self.hits)


def _settings(cached: bool) -> ClientCache | None:
    return ClientCache(max_staleness_s=BOUND_S) if cached else None


def _sync(proxy: tuple[str, int], keys: list[str], cached: bool, reads: _Reads, seconds: float) -> float:
    with QueryableStateClient(*proxy, direct=True, cache=_settings(cached)) as client:

        def ask(number: int) -> None:
            asked_at = time.monotonic()
            view = client.get(JOB, STATE, keys[number], isolation="committed")
            reads.note(number, view.value(), asked_at)

        for number in range(len(keys)):
            ask(number)
        return _measured(reads, seconds, lambda numbers: durations_us(ask, numbers), lambda: _hits(client, cached))


def _asyncio(proxy: tuple[str, int], keys: list[str], cached: bool, reads: _Reads, seconds: float) -> float:
    async def measure() -> float:
        async with await AsyncQueryableStateClient.connect(*proxy, direct=True, cache=_settings(cached)) as client:
            taken: list[float] = []

            async def ask(number: int) -> None:
                began, asked_at = time.perf_counter(), time.monotonic()
                view = await client.get(JOB, STATE, keys[number], isolation="committed")
                taken.append((time.perf_counter() - began) * 1e6)
                reads.note(number, view.value(), asked_at)

            numbers, until, began = cycle(range(len(keys))), time.monotonic() + seconds, time.monotonic()
            await asyncio.gather(*map(ask, range(len(keys))))
            while time.monotonic() < until:
                await asyncio.gather(*(ask(next(numbers)) for _ in range(AT_ONCE)))
            return _window(reads, taken, time.monotonic() - began, _hits(client, cached))

    return float(run_async(measure()))


def _measured(
    reads: _Reads, seconds: float, ask: Callable[[list[int]], list[float]], hits: Callable[[], float]
) -> float:
    taken: list[float] = []
    numbers, began = cycle(range(HELD)), time.monotonic()
    while time.monotonic() < began + seconds:
        taken += ask([next(numbers) for _ in range(100)])
    return _window(reads, taken, time.monotonic() - began, hits())


def _window(reads: _Reads, taken_us: list[float], seconds: float, hits: float) -> float:
    reads.hits.append(hits)
    reads.windows.append(
        Window(len(taken_us) / seconds, percentile(taken_us, 50) / 1000, percentile(taken_us, 99) / 1000)
    )
    return len(taken_us) / seconds


def _hits(client: QueryableStateClient | AsyncQueryableStateClient, cached: bool) -> float:
    if not cached:
        return 0.0
    found = client.cache_statistics()
    return found.hits / (found.hits + found.misses)


def _price(job: ServedJob, changes: int, rounds: int) -> Figure:
    """The processor time of a client for each change of a key that it does not hold."""
    others = {f"other-{number}": 0 for number in range(changes)}
    found = []
    with QueryableStateClient(*job.proxy, direct=True, cache=_settings(True)) as client:
        key = sensor_name(0)

        def epoch_of_hit() -> int:
            while True:
                before = client.cache_statistics().hits
                view = client.get(JOB, STATE, key, isolation="committed")
                if client.cache_statistics().hits > before:
                    return int(view.epoch)
                time.sleep(0.001)

        for _ in range(rounds):
            held = epoch_of_hit()
            job.hold(others)
            job.finalize()
            began = time.thread_time()
            while epoch_of_hit() == held:
                pass
            found.append((time.thread_time() - began) / changes * 1e6)
    say(f"  a change that the client does not hold: {min(found):.2f} us of its processor")
    return Figure("cached gets, a change of another key at the client", "us", found)
