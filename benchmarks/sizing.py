"""Memory and disk for each key: of task managers, of a standby, of epochs and of snapshots.

Rules of this module: real processes (a task manager, and a standby that follows its checkpoints), filled through the
real relay. What it reports is the difference between two sizes, divided by the keys, and what a process has without
keys. It measures no time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.process_memory import MIB, resident_mib
from benchmarks.results import Figure, Findings
from benchmarks.rounds import say
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.client import QueryableStateClient

__all__ = ["run"]

TEXT = "a value of a hundred characters, which differs from key to key in the number at its end and its beginning"
BACKENDS = ("heap", "rocksdb")


def run(bench: Bench) -> Findings:
    """Bytes for each key, for numbers and for texts of a hundred characters."""
    keys = bench.sizes.sized_keys
    findings = Findings()
    for kind, kind_type, value in (("a number", pa.float64(), _number), ("100 characters", pa.string(), _text)):
        values = {sensor_name(number): value(number) for number in range(keys)}
        for backend in BACKENDS:
            findings.figures += _sizes(bench.directory(f"sizing-{backend}"), f"{backend}, {kind}", values, kind_type)
    return findings


def _number(number: int) -> float:
    return number * 0.37


def _text(number: int) -> str:
    return f"{number:07}{TEXT[7:93]}{number:07}"


def _sizes(directory: Path, name: str, values: Mapping[str, Any], kind: pa.DataType) -> Iterator[Figure]:
    backend = name.partition(",")[0]
    few = dict(list(values.items())[:1])
    with ServedJob(kind, backend=backend, checkpoint_dir=str(directory), snapshot_interval=0) as job:
        job.hold(few)
        job.finalize()
        (pid,) = job.pids
        memory, disk = resident_mib(pid), _bytes_of(directory)
        job.hold(values)
        job.finalize()
        job.hold(few)  # frees what belongs to the large epoch
        yield _figure(f"{name}, task manager without keys", "MiB", memory)
        yield _figure(f"{name}, task manager", "bytes a key", (resident_mib(pid) - memory) * MIB / len(values))
        yield _figure(f"{name}, epoch on disk", "bytes a change", (_bytes_of(directory) - disk) / len(values))
        with _standby(directory, backend) as (pid, address):
            with QueryableStateClient(*address) as client:
                key = list(values)[-1]
                assert client.get(JOB, STATE, key, isolation="committed", timeout_s=60.0, wait_s=60.0) is not None
            total = resident_mib(pid)
        with _standby(_empty(directory), backend) as (pid, _):
            alone = resident_mib(pid)
        yield _figure(f"{name}, standby without keys", "MiB", alone)
        yield _figure(f"{name}, standby", "bytes a key", (total - alone) * MIB / len(values))


def _empty(directory: Path) -> Path:
    found = directory.with_name(f"{directory.name}-empty")
    found.mkdir()
    return found


@contextmanager
def _standby(directory: Path, backend: str) -> Iterator[tuple[int, tuple[str, int]]]:
    """`qstate serve` of a checkpoint directory: its process and its address."""
    command = [sys.executable, "-m", "qstate", "serve", str(directory), "--port", "0", "--server-port", "0"]
    command += ["--backend", backend]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        host, _, port = line.split(" at ")[1].split(";")[0].strip().rpartition(":")
        yield process.pid, (host, int(port))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30.0)


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _figure(name: str, unit: str, value: float) -> Figure:
    say(f"  {name}: {value:,.1f} {unit}")
    return Figure(f"size, {name}", unit, [value])
