"""What a job of ten thousand subtasks costs its driver, its proxies and its clients, without the subtasks.

Rules of this module: one job manager in this process, and the control connections of its task managers and relays in
another (`many_task_managers`), all on one machine: real sockets, TLS, threads and messages. What the driver pays is its
own processor time and memory. The tables of a proxy and of a client are measured in this process alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from benchmarks.bench import Bench
from benchmarks.many_task_managers import OPERATOR, STATE, ManyTaskManagers, allow_many_files, description, owner_of
from benchmarks.process_memory import MIB, resident_mib
from benchmarks.results import Figure, Findings
from benchmarks.rounds import say
from qstate.config import JobConfig
from qstate.protocol.codec import decode, encode
from qstate.protocol.messages import Location
from qstate.runtime.client.proxies import Proxies
from qstate.runtime.client.state_cache import StateCache, Way
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.job.location_registry import LocationRegistry
from qstate.runtime.routing.location import LocationTable

__all__ = ["run"]

JOB = "large"
#: The largest number of key groups.
GROUPS = 32_768
#: How many task managers start at the same time. With many more, a machine of two cores does not get through the
#: handshakes in time.
WAVE = 250
PROXY = ("127.0.0.1", 9069)


def run(bench: Bench) -> Findings:
    """Tables of all owners, and the job manager's control plane, by the number of task managers."""
    findings = Findings()
    for count in bench.sizes.large_job_managers:
        findings.figures += _tables(count)
        findings.figures += _control_plane(bench.directory(f"large-{count}"), count)
    return findings


def _tables(count: int) -> Iterator[Figure]:
    """The location service's tables: at the job manager, on the wire, at a client."""
    registry = LocationRegistry(JOB, GROUPS)
    state = description(GROUPS)
    registry.register(OPERATOR, [state])
    owners = [owner_of(index, count, GROUPS) for index in range(count)]
    for index, owner in enumerate(owners):
        registry.publish(state, index, index, owner)
    table = registry.locate(STATE)
    frame = encode(table.message(1))

    def move() -> None:
        registry.withdraw(count - 1)
        registry.publish(state, count - 1, count - 1, owners[-1])
        registry.pickled(STATE)

    def learn() -> StateCache:
        cache = StateCache(Proxies([PROXY], Random(1)), way=Way.REACHED, serializers={})
        message = decode(frame)
        assert isinstance(message, Location)
        cache.learn(JOB, STATE, message, 0.0)
        return cache

    cache = learn()
    known = cache.find(JOB, STATE)
    assert known is not None
    unreached = cache.unreached(known, 0.0)
    began = time.thread_time()
    for address in unreached:
        cache.reached(address)
    reached_s = time.thread_time() - began
    known = cache.find(JOB, STATE)
    assert known is not None
    keys = [f"sensor-{number}" for number in range(100)]
    yield from (
        _figure(count, "a Locate's answer on the wire", "bytes", len(frame)),
        _figure(count, "the answer to a proxy", "bytes", len(registry.pickled(STATE))),
        _figure(count, "a moved owner: the new table, pickled, once for all that ask", "ms", _best_ms(move)),
        _figure(count, "a proxy encodes a Location", "ms", _best_ms(lambda: encode(table.message(1)))),
        _figure(count, "a client builds its table from a Location", "ms", _best_ms(learn)),
        _figure(count, "a client takes up each owner that it has reached", "ms", reached_s / len(unreached) * 1000),
        _figure(count, "the owner of one key", "us", _best_ms(lambda: known.table.split(keys[:1]), 1000) * 1000),
        _figure(count, "the owners of 100 keys", "us", _best_ms(lambda: known.table.split(keys), 100) * 1000),
        _figure(count, "a table in memory", "MiB", _table_mib(table)),
    )


def _table_mib(table: LocationTable) -> float:
    """Copies as of other proxies: nothing is shared."""
    message = encode(table.message(1))
    before = resident_mib()
    copies = []
    for _ in range(10):
        found = decode(message)
        assert isinstance(found, Location)
        copies.append(LocationTable.from_message(JOB, found))
    return (resident_mib() - before) / len(copies)


class _Driver:
    """The job manager of this process, and the processor time that it takes."""

    def __init__(self, manager: JobManager, others: ManyTaskManagers, count: int) -> None:
        self.manager = manager
        self._others = others
        self._count = count

    def took_ms(self, order: str, shares: int) -> float:
        """The processor time of this process for one of so many parts of what the others do."""
        before = time.process_time()
        self._others.obey(order)
        return (time.process_time() - before) / shares * 1000

    def figures(self) -> Iterator[Figure]:
        count = self._count
        memory = resident_mib()
        began = time.perf_counter()
        start = self.took_ms(f"start {min(WAVE, count)}", count)
        took_s = time.perf_counter() - began
        held = (resident_mib() - memory) * MIB / 1024 / count
        yield _figure(count, "start of all, from the first connection to the last registration", "s", took_s)
        yield _figure(count, "driver, a start", "ms of processor", start)
        yield _figure(count, "driver, memory for a task manager", "KiB", held)
        yield _figure(count, "driver, a relay of a micro-batch", "ms of processor", self.took_ms("epoch", count))
        yield _figure(
            count, "driver, a heartbeat when all send at once", "ms of processor", self.took_ms("beat", count)
        )
        asked = min(count, 200)
        yield _figure(count, "driver, a Locate of a proxy", "ms of processor", self.took_ms(f"locate {asked}", asked))
        yield _figure(count, "driver, a moved owner", "ms of processor", self.took_ms("move", 1))
        yield _figure(count, "driver, an epoch becomes final: all are told", "ms", self._finalized_ms())

    def _finalized_ms(self) -> float:
        self.manager._directory.bind(OPERATOR, "query", [OPERATOR])
        began = time.perf_counter()
        self.manager.finalize("query", 0)
        return (time.perf_counter() - began) * 1000


def _control_plane(directory: Path, count: int) -> list[Figure]:
    allow_many_files()
    config = JobConfig(
        max_parallelism=GROUPS, checkpoint_dir=str(directory), lease_s=600.0, start_timeout_s=600.0, parallelism=count
    )
    manager = JobManager(JOB, config, parallelism=count, host="127.0.0.1", local=True)
    try:
        manager.declare(OPERATOR, Declaration("token", b""), {})
        with ManyTaskManagers(manager.address, manager.secret, count, GROUPS) as others:
            return list(_Driver(manager, others, count).figures())
    finally:
        manager.stop()


def _figure(count: int, name: str, unit: str, value: float) -> Figure:
    say(f"  {count} task managers, {name}: {value:,.3f} {unit}")
    return Figure(f"large job, {count} task managers, {name}", unit, [value])


def _best_ms(work: Callable[[], object], repetitions: int = 5) -> float:
    """The least processor time of several."""
    found = []
    for _ in range(repetitions):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found) * 1000
