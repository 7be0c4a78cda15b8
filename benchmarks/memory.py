"""P11: the resident memory of a task manager whose rocksdb backend holds more and more keys.

Rules of this module: a real task manager process, filled through the real relay, epoch by epoch; it is asked for its
memory between epochs, and for its keys at the end. How many keys is `Sizes.memory_keys`, which the command line can
set: memory that is bounded shows at any number, and 20 million take minutes.
"""

from __future__ import annotations

import psutil
import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.process_memory import peak_mib, resident_mib
from benchmarks.results import Comparison, Curve, Figure, Findings
from benchmarks.rounds import say
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.runtime.client.sync_client import QueryableStateClient

__all__ = ["run"]


def run(bench: Bench) -> Findings:
    """P11."""
    keys, step = bench.sizes.memory_keys, bench.sizes.memory_epoch_keys
    line: list[tuple[float, float]] = []
    with ServedJob(pa.float64(), backend="rocksdb") as job:
        job.hold({_key(0): 0.0})  # task managers start with the first epoch
        pid = _listening_on(job.proxy[1])
        first = resident_mib(pid)
        for start in range(0, keys, step):
            held = min(start + step, keys)
            job.hold({_key(number): number * 0.5 for number in range(start, held)})
            line.append((held, resident_mib(pid)))
            say(f"  {held:,} keys: {line[-1][1]:,.0f} MiB")
        _check(job, keys)
        line.append((keys, resident_mib(pid)))
        peak = max(peak_mib(pid), *(mib for _, mib in line))
    curve = dict(line)  # one point per number of keys
    return Findings(
        [Comparison("P11", "MiB", [peak], detail=f"{keys:,} keys, the most it ever had")],
        [Figure("task manager whose rocksdb backend holds one key", "MiB", [first])],
        [Curve("resident memory against keys", "keys", "MiB, one task manager", {"rocksdb": sorted(curve.items())})],
    )


def _key(number: int) -> str:
    return f"key-{number}"


def _listening_on(port: int) -> int:
    """The process whose proxy this is: the task manager."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return int(connection.pid)
    raise RuntimeError(f"no process of this user listens on port {port}")


def _check(job: ServedJob, keys: int) -> None:
    wanted = [_key(number) for number in range(0, keys, max(1, keys // 1000))]
    with QueryableStateClient(*job.proxy) as client:
        found = client.get_many(JOB, STATE, wanted)
    missing = sum(view is None for view in found.values())
    if missing:
        raise RuntimeError(f"{missing} of {len(wanted)} keys are not there")
