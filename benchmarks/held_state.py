"""The state of one subtask without its task manager: a backend and the epoch log that it is sealed in.

Rules of this module: it opens, fills, seals and restores as `qstate.runtime.tasks.subtask` does, with the same parts,
and takes times. One value state, a number for each text key.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.inputs import sensor_name
from qstate.backends.catalog import open_backend
from qstate.backends.change_blocks import chained
from qstate.backends.contract import StateBackend
from qstate.checkpoint.log.chain import LogIdentity
from qstate.checkpoint.log.segment import SegmentWriter
from qstate.checkpoint.sources.opening import DeclaredStates, open_epoch_log
from qstate.descriptors import ValueStateDescriptor
from qstate.keys import ColumnType

__all__ = ["HeldState", "SnapshotCost", "open_again", "restore_s", "snapshot_cost", "value_of"]

STATE = ValueStateDescriptor("last", float)
IDENTITY = LogIdentity("benchmark", "held", 0, 1, 128)
MIB = 2**20
#: How often a snapshot process is asked for its memory.
LOOK_EVERY_S = 0.005


def value_of(number: int) -> float:
    """The value of a key as it was first put."""
    return number * 0.37


class HeldState:
    """A backend that holds `keys` keys, all sealed. Close it; the log stays."""

    def __init__(self, backend: str, directory: Path, keys: int) -> None:
        self.directory = directory
        self.keys = [sensor_name(number) for number in range(keys)]
        self._log = open_epoch_log(directory / "log", IDENTITY, lambda _: _declared())
        self._backend = _opened(backend, directory / "backend")
        self._table = self._backend.table(STATE)
        self._epoch = -1
        self.commit_s(range(keys))

    @property
    def log_directory(self) -> Path:
        return self.directory / "log"

    @property
    def epoch(self) -> int:
        """The newest sealed epoch."""
        return self._epoch

    def commit_s(self, changed: Sequence[int]) -> float:
        """Put the keys of these numbers, then commit and seal. Returns the seconds of commit and seal."""
        self._epoch += 1
        self._backend.begin(self._epoch)
        keys = [self.keys[number] for number in changed]
        self._table.put_many(keys, [value_of(number) + self._epoch for number in changed])
        gc.collect()
        began = time.perf_counter()
        self._log.seal(self._epoch, self._backend.commit(self._epoch))
        return time.perf_counter() - began

    def dump_s(self) -> float:
        """The seconds to write all entries to a file as durable as an epoch's."""
        gc.collect()
        path = self.directory / "dump"
        began = time.perf_counter()
        with path.open("wb") as file:
            writer = SegmentWriter(file, {})
            writer.write_changes(self._backend.entries(IDENTITY.key_groups))
            writer.write_footer()
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        path.unlink()
        return took

    def close(self) -> None:
        self._backend.close()


def open_again(log: Path) -> None:
    """Open the log as a restarted task manager does: the next snapshot is whole."""
    open_epoch_log(log, IDENTITY, lambda _: _declared())


def restore_s(backend: str, log: Path, scratch: Path, keys: int) -> float:
    """The seconds to open the log as its new writer and to fill an empty backend from it.

    Raises `RuntimeError` when the state is not there afterwards.
    """
    opened = _opened(backend, scratch)
    table = opened.table(STATE)
    declared = _declared()
    gc.collect()
    began = time.perf_counter()
    history = open_epoch_log(log, IDENTITY, lambda _: declared)
    parts = list(declared.prepare(history.parts(history.bases[0])))
    opened.restore(parts[-1].epoch, chained(part.changes for part in parts))
    took = time.perf_counter() - began
    held = sum(table.get(sensor_name(number)) is not None for number in range(0, keys, max(1, keys // 1000)))
    opened.close()
    shutil.rmtree(scratch)
    if held < min(keys, 1000):
        raise RuntimeError(f"{backend}: only {held} of 1000 keys were restored")
    return took


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """The cost of one snapshot process."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    written_mib: float


def snapshot_cost(log: Path, epoch: int) -> SnapshotCost:
    """Make a snapshot in a process, as a task manager does. Raises `RuntimeError` when that fails."""
    arguments = [sys.executable, "-m", "qstate.checkpoint.log.snapshot_process", str(log), str(epoch), "2", "none"]
    before = set(log.glob("*.snapshot"))
    began = time.perf_counter()
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps({}))  # no storage options
    process.stdin.flush()
    watched, peak = psutil.Process(process.pid), 0
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        # The system's own maximum begins with that of the process that forked.
        with suppress(psutil.Error):
            peak = max(peak, watched.memory_info().rss)
        time.sleep(LOOK_EVERY_S)
    _, status, used = ended
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stdin is not None
    process.stdin.close()
    made = set(log.glob("*.snapshot")) - before
    if process.returncode or not made:
        raise RuntimeError(f"the snapshot process ended with status {process.returncode}")
    written = sum(path.stat().st_size for path in made)
    return SnapshotCost(took, used.ru_utime + used.ru_stime, peak / MIB, written / MIB)


def _declared() -> DeclaredStates:
    return DeclaredStates(IDENTITY.operator, [STATE], [ColumnType.STRING])


def _opened(backend: str, directory: Path) -> StateBackend:
    directory.mkdir(parents=True)
    return open_backend(
        backend,
        key_groups=IDENTITY.key_groups,
        max_parallelism=IDENTITY.max_parallelism,
        directory=directory,
        options={},
    )
