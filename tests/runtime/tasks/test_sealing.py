"""Laws of sealing: an epoch is in the log completely or not at all, also when another attempt interferes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qstate.checkpoint import EpochLog, LogIdentity
from qstate.descriptors import ReducingStateDescriptor
from qstate.errors import CheckpointError, FencedError, JobError
from qstate.serializers import MessagePackSerializer
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Hold, Once, Totals
from tests.runtime.job.running_job import JOB, Background, RunningJob, many_rows, rows_batch, until

JobOf = Callable[..., RunningJob]


class HoldsInDumps(MessagePackSerializer):
    """Holds the seal: values are serialized when the epoch is committed."""

    def __init__(self, hold: Callable[[], None]) -> None:
        self._hold = hold

    def dumps(self, value: Any) -> bytes:
        self._hold()
        return super().dumps(value)


class TotalsHeldAtTheSeal(Totals):
    def open(self, context: Any) -> None:
        assert self._mischief is not None
        serializer = HoldsInDumps(self._mischief)
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add, serializer=serializer).queryable("totalAmount")
        )


def test_an_epoch_that_is_sealed_while_a_newer_attempt_waits_counts_once(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(TotalsHeldAtTheSeal(Once(tmp_path / "flag", Hold(tmp_path))))
    older = Background(lambda: job.epoch(0, rows_batch(("a", 1)), attempt=1))
    until((tmp_path / "reached").exists, "the seal is under way")
    newer = Background(lambda: job.epoch(0, rows_batch(("a", 1)), attempt=2))
    with pytest.raises(FencedError):
        older.result()
    (tmp_path / "go").touch()
    assert newer.result() == [("a", 1)]
    assert job.totals("a") == {"a": 1}
    assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_full_disk_fails_the_epoch_and_harms_no_other(backend: str, job_of: JobOf) -> None:
    job = job_of(Totals(), backend=backend)
    job.epoch(0, rows_batch(("a", 1)))
    task_manager = psutil.Process(job.task_manager().pid)
    unlimited = task_manager.rlimit(resource.RLIMIT_FSIZE)
    log_size = sum(file.stat().st_size for file in job.logs())
    task_manager.rlimit(resource.RLIMIT_FSIZE, (log_size + 4_000, unlimited[1]))
    for _ in range(2):
        # RocksDB cannot be opened either as long as the disk is full
        with pytest.raises((CheckpointError, JobError), match="File too large"):
            job.epoch(1, many_rows(30_000, keys=30_000))
        if backend == "heap":
            assert job.totals("a", "k1") == {"a": 1, "k1": None}, "queryable as it was"
    task_manager.rlimit(resource.RLIMIT_FSIZE, unlimited)
    assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]
    assert job.totals("a", "k1") == {"a": 3, "k1": None}


def test_a_task_manager_whose_log_another_writer_has_taken_over_ends_and_the_epoch_continues(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    process = psutil.Process(job.task_manager().pid)
    EpochLog.open(job.epoch_log(), LogIdentity(JOB, "it", 0, 1, job.config.max_parallelism))
    assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]
    process.wait(15)
    assert job.totals("a") == {"a": 3}
