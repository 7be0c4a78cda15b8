"""Laws of files that are sound and not in their place: the error says whose the file is, and asks for the right one."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qstate.checkpoint import open_source, read_entries, verify, write_savepoint
from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import CheckpointError, DamagedCheckpoint
from tests.checkpoint.checkpoints import MAX_PARALLELISM, UID, StoredJob, changes_of, state_after
from tests.checkpoint.logs import IDENTITY, change, held, open_log

LAST = 4
ADVICE = "bring the right one back from a copy of the checkpoint directory"


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(LAST + 1))
    return job


def file_of(job: StoredJob, subtask: int, number: int, suffix: str = ".log") -> Path:
    return Path(job.directory(subtask)) / f"{number:012d}{suffix}"


def damage_of(job: StoredJob, path: Path) -> str:
    """What `verify` says of a file, which has to be what reading says of it as well."""
    (damage,) = {one.damage for one in verify(str(job.root)) if one.damage is not None and one.path == str(path)}
    with pytest.raises(DamagedCheckpoint) as failed:
        list(read_entries(open_source(str(job.root)), UID))
    assert str(failed.value) == damage
    return damage


def test_a_file_of_another_subtask_is_said_to_be_one(job: StoredJob) -> None:
    path = file_of(job, 0, 3)
    shutil.copy(file_of(job, 1, 3), path)
    said = damage_of(job, path)
    assert f"{path} is a file of job 'job', operator 'totals', subtask 1 of 2 (max_parallelism 8)" in said
    assert "in the place of one of subtask 0" in said and ADVICE in said


def test_a_file_of_another_operator_is_said_to_be_one(job: StoredJob, tmp_path: Path) -> None:
    other = EpochLog.open(tmp_path / "other", replace(job.identity(0), operator="another"))
    other.seal(0, [])
    other.seal(1, [])
    path = file_of(job, 0, 3)
    shutil.copy(tmp_path / "other" / "000000000003.log", path)
    said = damage_of(job, path)
    assert "is a file of job 'job', operator 'another', subtask 0 of 2" in said
    assert "in the place of one of operator 'totals'" in said and ADVICE in said


def test_a_file_of_another_job_is_said_to_be_one(job: StoredJob, tmp_path: Path) -> None:
    other = StoredJob(tmp_path / "other", job="other")
    other.run(range(LAST + 1))
    path = file_of(job, 0, 3)
    shutil.copy(file_of(other, 0, 3), path)
    said = damage_of(job, path)
    assert "is a file of job 'other'" in said and "in the place of one of job 'job'" in said and ADVICE in said


def test_a_file_of_another_number_is_said_to_be_one(job: StoredJob) -> None:
    path = file_of(job, 0, 3)
    shutil.copy(file_of(job, 0, 4), path)
    assert f"{path} is file 4 of its log (epoch), under another name: {ADVICE}" in damage_of(job, path)


def test_a_snapshot_under_the_name_of_an_epoch_is_said_to_be_one(job: StoredJob) -> None:
    job.snapshot(retained=3)
    path = file_of(job, 0, 3)
    shutil.copy(file_of(job, 0, LAST + 2, ".snapshot"), path)
    (damage,) = [one.damage for one in verify(str(job.root)) if one.damage is not None and one.path == str(path)]
    assert damage == f"{path} is file {LAST + 2} of its log (snapshot), under another name: {ADVICE}"


def test_the_newest_file_of_another_subtask_is_left_out_as_a_damaged_one(job: StoredJob) -> None:
    path = file_of(job, 0, LAST + 2)
    shutil.copy(file_of(job, 1, LAST + 2), path)
    chain = read_chain(DurableDirectory(Path(job.directory(0))), job.identity(0))
    assert chain is not None and chain.damaged == str(path)
    assert open_source(str(job.root)).operators()[UID].epoch == LAST - 1
    job.restart()
    job.logs[0].seal(LAST, [one for one in changes_of(LAST) if one.group < MAX_PARALLELISM // 2])
    assert len(list(read_entries(open_source(str(job.root)), UID))) == len(state_after(LAST))


def test_output_of_another_file_is_said_to_be_none_of_this(tmp_path: Path) -> None:
    log, other = open_log(tmp_path / "one"), open_log(tmp_path / "other", replace(IDENTITY, operator="another"))
    for each in (log, other):
        each.seal(0, [change("a")], [b"frame"])
    name = "000000000002-000000000001.output"
    shutil.copy(tmp_path / "other" / name, tmp_path / "one" / name)
    with pytest.raises(DamagedCheckpoint, match=rf"{name} is not the file that was sealed.*operator 'another'"):
        list(log.output(0))


def test_a_savepoints_file_of_another_savepoint_is_said_to_be_none_of_this(job: StoredJob, tmp_path: Path) -> None:
    write_savepoint(open_source(str(job.root)), tmp_path / "one")
    job.run([LAST + 1])
    write_savepoint(open_source(str(job.root)), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "0001.savepoint", tmp_path / "one" / "0001.savepoint")
    (damage,) = [one.damage for one in verify(str(tmp_path / "one")) if one.damage is not None]
    assert re.search(rf"is not the file that was sealed.*operator 'totals', epoch {LAST + 1}", damage)


def test_a_whole_log_of_another_identity_is_refused_and_nothing_is_changed(job: StoredJob, tmp_path: Path) -> None:
    shutil.rmtree(job.directory(0))
    shutil.copytree(job.directory(1), job.directory(0))
    before = sorted(Path(job.directory(0)).iterdir())
    with pytest.raises(
        CheckpointError, match=r"belongs to job 'job', operator 'totals', subtask 1 of 2.*but was opened"
    ):
        EpochLog.open(job.directory(0), job.identity(0))
    assert sorted(Path(job.directory(0)).iterdir()) == before
    assert held(open_log(tmp_path / "new")) == []
