"""Earlier layouts go when nothing is read from them any more, and at no moment does anything read wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.file_names import removal_order
from qstate.checkpoint.manifest import JobManifest, operator_directory, write_final
from qstate.checkpoint.sources.history import JobHistory, OutrunCheckpoint
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.checkpoint.sources.superseded_layouts import remove_layout, superseded_layouts, without_unused_layouts
from qstate.checkpoint.sources.verification import verify
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import DamagedCheckpoint
from qstate.keys import KeyGroupRange
from tests.checkpoint.book_reader import read_checkpoint
from tests.checkpoint.checkpoints import EVERY, MAX_PARALLELISM, QUERY, SCHEMAS, UID, StoredJob, held, state_after
from tests.checkpoint.mortal_directory import Crash


def rescaled(job: StoredJob, parallelism: int, first_epoch: int) -> None:
    """All subtasks of another layout have begun and sealed an epoch."""
    job.rescale(parallelism, first_epoch, range(parallelism))
    job.logs = [
        EpochLog.open(job.directory(subtask), job.identity(subtask), lambda _: SCHEMAS)
        for subtask in range(parallelism)
    ]
    job.run([first_epoch])


def superseded(job: StoredJob, final: int) -> list[str]:
    found = superseded_layouts(DurableDirectory(job.root), job.manifest, UID, final)
    return [str(directory.path).rpartition("/")[2] for directory in found]


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(3))
    return job


def test_layout_stays_as_long_as_one_subtask_has_not_begun_the_next(job: StoredJob) -> None:
    job.rescale(3, 3, [0, 2])
    assert superseded(job, 9) == []
    job.rescale(1, 3, [])
    assert superseded(job, 9) == []


def test_layout_stays_until_the_next_one_has_a_final_epoch_of_its_own(job: StoredJob) -> None:
    job.rescale(3, 3, range(3))
    assert superseded(job, 2) == []
    logs = [EpochLog.open(job.directory(subtask), job.identity(subtask), lambda _: SCHEMAS) for subtask in range(3)]
    for log in logs[:2]:
        log.seal(3, [])
    assert superseded(job, 3) == []
    logs[2].seal(3, [])
    assert superseded(job, 2) == []
    assert superseded(job, 3) == ["000"]


def test_only_layouts_below_the_newest_whole_one_go(job: StoredJob) -> None:
    rescaled(job, 3, 3)
    job.rescale(4, 4, [1])
    assert superseded(job, 3) == ["000"]


def test_snapshots_alone_are_as_good_as_epochs(job: StoredJob) -> None:
    rescaled(job, 3, 3)
    job.run([4])
    job.snapshot(retained=1)
    assert superseded(job, 4) == ["000"]


def test_removal_leaves_what_there_is_or_what_is_refused() -> None:
    names = ["000000000002.log", "000000000003-1.output", "000000000002.snapshot", "000000000001.log", "x.tmp"]
    assert removal_order(names) == [
        "000000000002.snapshot",
        "000000000001.log",
        "000000000002.log",
        "000000000003-1.output",
        "x.tmp",
    ]


def test_crash_at_any_file_reads_right_and_the_rest_goes_later(job: StoredJob, tmp_path: Path) -> None:
    job.snapshot()
    rescaled(job, 3, 3)
    write_final(job.root, {QUERY: 3})
    files = sum(1 for path in (operator_directory(job.root, UID) / "000").rglob("*") if path.is_file())
    assert files > 4
    for survived in range(files + 1):
        root = Path(shutil.copytree(job.root, tmp_path / f"crash {survived}"))
        calls = iter([False] * survived)

        def die(calls: Iterator[bool] = calls) -> bool:
            for call in calls:
                return call
            raise Crash

        layout = operator_directory(root, UID) / "000"
        if survived < files:
            with pytest.raises(Crash):
                remove_layout(DurableDirectory(layout), die)
            assert sum(1 for path in layout.rglob("*") if path.is_file()) == files - survived
            _check_old_layout(layout)
        source = open_source(str(root))
        assert source.operators()[UID].epoch == 3
        assert held(source, 3) == read_checkpoint(root, UID, 3) == state_after(3)
        assert {found.damage for found in verify(str(root))} == {None}
        for directory in superseded_layouts(DurableDirectory(root), job.manifest, UID, 3):
            remove_layout(directory)
        assert [path.name for path in operator_directory(root, UID).iterdir()] == ["001"]
        assert held(open_source(str(root)), 3) == state_after(3)


def _check_old_layout(layout: Path) -> None:
    """What is left of it is its last state, or nothing, or refused: never an older state."""
    for subtask in layout.iterdir():
        try:
            chain = read_chain(DurableDirectory(subtask))
        except DamagedCheckpoint:
            continue
        assert chain is None or chain.latest() == 2


class Moved(JobHistory):
    """During the read, the job restarts with another parallelism and removes the layout that is read."""

    def __init__(self, job: StoredJob) -> None:
        super().__init__(job.root, job.manifest)
        self._job = job
        self.moved = 0

    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Any = iter) -> Iterator[Change]:
        found = super().state(operator, groups, upto, prepare)
        if not self.moved:
            self.moved += 1
            rescaled(self._job, 3, 3)
            (directory,) = superseded_layouts(DurableDirectory(self._job.root), self._job.manifest, UID, 3)
            remove_layout(directory)
        return found


def test_savepoint_starts_again_when_the_job_has_replaced_its_epoch(job: StoredJob, tmp_path: Path) -> None:
    source = Moved(job)
    savepoint = write_savepoint(source, tmp_path / "savepoint")
    assert (source.moved, savepoint.operators()[UID].epoch) == (1, 3)
    assert held(savepoint, 3) == state_after(3)


@pytest.mark.parametrize("left", [0, 1])
def test_reader_of_a_removed_layout_is_told_to_try_again(job: StoredJob, left: int) -> None:
    before = open_source(str(job.root))
    rescaled(job, 3, 3)
    begun = before.state(UID, EVERY, 2)
    next(begun)  # the first subtask's files are open, the second's are not
    files = iter([False] * 5 * (3 - left))
    (directory,) = superseded_layouts(DurableDirectory(job.root), job.manifest, UID, 3)
    remove_layout(directory, lambda: next(files, left > 0))
    with pytest.raises(OutrunCheckpoint):
        list(begun)
    with pytest.raises(OutrunCheckpoint, match="try again"):
        list(before.state(UID, EVERY, 2))
    with pytest.raises(OutrunCheckpoint):
        before.operator_states(UID, 2)
    before.look_again()
    assert held(before, 3) == state_after(3)


def test_last_layouts_in_which_no_log_has_begun_are_unused(job: StoredJob) -> None:
    files = DurableDirectory(job.root)
    assert without_unused_layouts(files, job.manifest) == job.manifest
    for parallelism in (3, 1):
        job.rescale(parallelism, 3, [])
        job.directory(0).mkdir(parents=True)
        assert without_unused_layouts(files, job.manifest).layouts == (2,)
    job.rescale(3, 3, [2])
    assert without_unused_layouts(files, job.manifest) == job.manifest


def test_layouts_of_which_none_is_used_stay(tmp_path: Path) -> None:
    manifest = JobManifest("job", MAX_PARALLELISM, (2, 3), {UID: QUERY})
    assert without_unused_layouts(DurableDirectory(tmp_path), manifest) == manifest
