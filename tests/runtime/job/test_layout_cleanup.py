"""A rescaled job removes the directories of its earlier parallelism, and keeps its state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint.log.file_names import removal_order
from qstate.checkpoint.sources.verification import verify
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import QUERY, RunningJob, until
from tests.runtime.job.test_checkpoints import KEYS, Renamed, all_are, epoch_of_all

JobOf = Callable[..., RunningJob]
#: Earlier layouts stay for as many epochs as there are between snapshots, and for one without snapshots.
AT_ONCE: dict[str, Any] = {"snapshot_interval": 0}


def layouts(job: RunningJob, uid: str = "it") -> list[str]:
    (directory,) = job.manager.checkpoint_dir.glob(f"{uid}-*")
    return sorted(path.name for path in directory.iterdir())


def damages(job: RunningJob) -> set[str | None]:
    return {found.damage for found in verify(str(job.manager.checkpoint_dir))}


def test_earlier_layout_is_removed_with_the_first_final_epoch_of_the_next(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2, **AT_ONCE)
    for epoch in range(2):
        epoch_of_all(job, epoch)
    job.stop()
    job = job_of(Totals(), parallelism=3, **AT_ONCE)
    epoch_of_all(job, 2)
    assert layouts(job) == ["000", "001"], "epoch 2 may have to be done again, by another parallelism"
    job.manager.finalize(QUERY, 2)
    until(lambda: layouts(job) == ["001"], "the old layout is removed")
    assert job.totals(*KEYS) == all_are(3)
    job.stop()
    assert damages(job) == {None}
    job = job_of(Totals(), parallelism=3, **AT_ONCE)
    assert epoch_of_all(job, 3) == all_are(4)
    job.stop()
    job = job_of(Totals(), parallelism=2, **AT_ONCE)
    assert epoch_of_all(job, 4) == all_are(5)
    epoch_of_all(job, 5)
    until(lambda: layouts(job) == ["002"], "the next one is removed")
    assert job.totals(*KEYS) == all_are(6)
    assert damages(job) == {None}


def test_operator_that_has_not_begun_keeps_its_state(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2, **AT_ONCE)
    job.add_operator("other", Renamed())
    epoch_of_all(job, 0)
    epoch_of_all(job, 0, query="query-2", operator="other")
    job.stop()
    job = job_of(Totals(), parallelism=1, **AT_ONCE)
    job.add_operator("other", Renamed())
    epoch_of_all(job, 1)
    job.manager.finalize(QUERY, 1)
    until(lambda: layouts(job) == ["001"], "the old layout is removed")
    assert layouts(job, "other") == ["000"]
    assert damages(job) == {None}


@pytest.mark.parametrize("removed", [1, 3])
def test_removal_that_was_cut_short_is_finished_by_the_next_run(job_of: JobOf, removed: int) -> None:
    job = job_of(Totals(), parallelism=2, **AT_ONCE)
    epoch_of_all(job, 0)
    job.stop()
    job = job_of(Totals(), parallelism=3, **AT_ONCE)
    epoch_of_all(job, 1)
    job.stop()
    (old,) = job.manager.checkpoint_dir.glob("it-*/000/00000")
    for name in removal_order([path.name for path in old.iterdir()])[:removed]:
        (old / name).unlink()
    assert damages(job) == {None}
    job = job_of(Totals(), parallelism=3, **AT_ONCE)
    assert epoch_of_all(job, 2) == all_are(3)
    until(lambda: layouts(job) == ["001"], "the rest of the old layout is removed")
    assert job.totals(*KEYS) == all_are(3)


def test_layout_that_cannot_be_removed_blocks_nothing(job_of: JobOf) -> None:
    """Another program has created a directory where only files belong."""
    job = job_of(Totals(), parallelism=2, **AT_ONCE)
    epoch_of_all(job, 0)
    job.stop()
    (old,) = job.manager.checkpoint_dir.glob("it-*/000/00000")
    Path(old / "mine").mkdir()
    job = job_of(Totals(), parallelism=1, **AT_ONCE)
    for epoch in (1, 2, 3):
        assert epoch_of_all(job, epoch) == all_are(epoch + 1)
    job.stop()
    assert layouts(job) == ["000", "001"]
    assert damages(job) == {None}


def test_earlier_layout_stays_for_as_many_epochs_as_there_are_between_snapshots(job_of: JobOf) -> None:
    """Subscribers read its last epochs."""
    job = job_of(Totals(), parallelism=2)
    epoch_of_all(job, 0)
    job.stop()
    settings = {"parallelism": 3, "snapshot_interval": 3}
    job = job_of(Totals(), **settings)
    for epoch in (1, 2, 3):
        epoch_of_all(job, epoch)
    assert layouts(job) == ["000", "001"]
    for epoch in (4, 5, 6, 7):
        epoch_of_all(job, epoch)
    until(lambda: layouts(job) == ["001"], "the old layout is removed")
