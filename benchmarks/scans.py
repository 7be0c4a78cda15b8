"""P16: a scan of a whole state through the query port, against reading the same state offline.

Rules of this module: one task manager without Spark, which holds `scan_keys` keys, all committed. The scan is the
client's, direct, committed, and reads each value; offline, the entries of the checkpoint directory are decoded in this
process, as `qstate checkpoint dump` does before it prints them.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved, rate, say
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.checkpoint import open_source
from qstate.checkpoint.sources.entries import read_entries
from qstate.client import QueryableStateClient

__all__ = ["run"]

BACKENDS = ("heap", "rocksdb")
TIMEOUT_S = 60.0


def run(bench: Bench) -> Findings:
    """P16."""
    findings = Findings()
    keys, rounds = bench.sizes.scan_keys, bench.sizes.scan_rounds
    for backend in BACKENDS:
        directory = bench.directory(f"scans-{backend}")
        with ServedJob(pa.int64(), backend=backend, checkpoint_dir=str(directory)) as job:
            job.hold({sensor_name(number): number for number in range(keys)})
            job.finalize()
            with QueryableStateClient(*job.proxy, direct=True, timeout_s=TIMEOUT_S) as client:
                contenders = {
                    "scan": rate(partial(_scanned, client), keys),
                    "keys only": rate(partial(_keys, client), keys),
                    "count": rate(partial(client.count, JOB, STATE, isolation="committed"), keys),
                    "offline": rate(partial(_dumped, str(directory)), keys),
                }
                samples = interleaved(contenders, rounds=rounds)
        ours, theirs = samples.pop("scan"), samples.pop("offline")
        detail = f"{backend}, {keys:,} keys"
        findings.comparisons.append(Comparison("P16", "entries/s", ours, theirs, "an offline dump", detail))
        findings.figures += [Figure(f"P16, {backend}, {name}", "keys/s", rates) for name, rates in samples.items()]
        say(f"  {detail}: {max(ours):,.0f} entries/s, offline {max(theirs):,.0f}")
    return findings


def _scanned(client: QueryableStateClient) -> int:
    return sum(entry.view.value() is not None for entry in client.scan(JOB, STATE, isolation="committed"))


def _keys(client: QueryableStateClient) -> int:
    return sum(1 for _ in client.scan(JOB, STATE, isolation="committed", values=False))


def _dumped(directory: str) -> int:
    source = open_source(directory, {})
    return sum(entry.value is not None for entry in read_entries(source, STATE))
