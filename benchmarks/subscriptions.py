"""P15: what subscribers get, how soon, and what they cost the job.

Rules of this module: one task manager (heap) without Spark, whose epochs change `subscribed_keys` keys each; the
subscribers are another process on the same machine, so what they burn is part of the cost. Throughput: subscribers of
all keys read epochs that are committed already. Latency: from the report of a commit to the delivery of the epoch's
changes, one epoch at a time. Cost: rows/s of the epochs with subscribers of one key each, against without, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.latencies import percentile
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved, say
from benchmarks.served_job import JOB, STATE, ServedJob
from benchmarks.subscriber import Subscribers

__all__ = ["run"]

#: So many subscribers; of the cost only one counts.
MANY, MOST = 100, 1000
#: After subscribers have gone, so that the server has closed their connections before the next ones are measured.
REST_S = 2.0
#: Between two epochs whose delivery is timed, as in a job with a trigger of a second.
TRIGGER_S = 1.0


def run(bench: Bench) -> Findings:
    """P15."""
    sizes = bench.sizes
    findings = Findings()
    keys = [sensor_name(number) for number in range(sizes.subscribed_keys)]
    with ServedJob(pa.int64()) as job:
        commits = _Commits(job, keys)
        commits.commit(sizes.subscribed_epochs)
        with Subscribers(job.proxy, JOB, STATE) as subscribers:
            for count, target in ((1, "P15 one"), (MANY, "P15 hundred")):
                rates = [_throughput(commits, subscribers, count) for _ in range(sizes.subscribed_rounds)]
                findings.comparisons.append(Comparison(target, "changes/s", rates, detail=_detail(keys)))
                say(f"  {count} subscribers: {percentile(rates, 50):,.0f} changes/s")
            delays = _delays_ms(commits, subscribers, sizes.timed_epochs)
            findings.comparisons.append(Comparison("P15 p99", "ms", [percentile(delays, 99)], detail=_detail(keys)))
            findings.figures.append(Figure("P15, commit to delivery, p50", "ms", [percentile(delays, 50)]))
            say(f"  commit to delivery: p50 {percentile(delays, 50):.1f}, p99 {percentile(delays, 99):.1f} ms")
            findings.add(_cost(commits, subscribers, sizes.subscribed_rounds))
    return findings


def _detail(keys: list[str]) -> str:
    return f"{len(keys):,} changes an epoch, heap"


class _Commits:
    """Makes epochs, each of which changes all keys."""

    def __init__(self, job: ServedJob, keys: list[str]) -> None:
        self._job = job
        self.keys = keys
        self.newest = -1

    def commit(self, epochs: int) -> float:
        """Seal and commit epochs; gives the rows/s."""
        began = time.monotonic()
        for _ in range(epochs):
            self.newest += 1
            self._job.hold(dict.fromkeys(self.keys, self.newest))
            self._job.finalize()
        return epochs * len(self.keys) / (time.monotonic() - began)


def _throughput(commits: _Commits, subscribers: Subscribers, count: int) -> float:
    """Changes/s to so many subscribers of all keys, together. A hundred read a tenth of the epochs."""
    first = 0 if count == 1 else commits.newest - commits.newest // 10
    began = time.monotonic()
    subscribers.follow(count, None, first)
    changes, _ = subscribers.until(commits.newest)
    rate = changes / (time.monotonic() - began)
    subscribers.stop()
    return rate


def _delays_ms(commits: _Commits, subscribers: Subscribers, epochs: int) -> list[float]:
    """How long after each commit one subscriber of all keys has its changes."""
    subscribers.follow(1, None, commits.newest)
    subscribers.until(commits.newest)
    found: list[float] = []
    for _ in range(epochs):
        time.sleep(TRIGGER_S)
        commits.commit(1)
        committed_at = time.time()
        _, arrivals = subscribers.until(commits.newest)
        found += [max(0.0, at - committed_at) * 1000 for at in arrivals.get(commits.newest, ())]
    subscribers.stop()
    return found


def _cost(commits: _Commits, subscribers: Subscribers, rounds: int) -> Findings:
    """Rows/s beside subscribers of one key each."""

    def beside(count: int) -> Callable[[], float]:
        def measure() -> float:
            if count:
                subscribers.follow(count, commits.keys, commits.newest)
                subscribers.until(commits.newest)
            rate = commits.commit(20)
            if count:
                subscribers.until(commits.newest)
                subscribers.stop()
                time.sleep(REST_S)
            return rate

        return measure

    samples = interleaved({str(count): beside(count) for count in (0, 1, MANY)}, rounds=rounds)
    # Last: the server closes so many connections for longer than the rest.
    samples |= interleaved({str(MOST): beside(MOST)}, rounds=rounds)
    figures = [Figure(f"rows/s beside {count} subscribers of a key", "rows/s", samples[count]) for count in samples]
    comparison = Comparison("P15 cost", "rows/s", samples[str(MANY)], samples["0"], "no subscribers")
    return Findings([comparison], figures)
