"""Laws of the checkpoint directory: one job at a time, one query per operator, and settings that cannot work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint.manifest import JobManifest, read_final
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.config import JobConfig
from qstate.errors import CheckpointError, ConfigError, JobError
from qstate.runtime.job.directory_owner import OwnerByLock
from qstate.runtime.job.job_directory import JobDirectory
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, rows_batch

JobOf = Callable[..., RunningJob]


def job_directory_of(setting: str, job: str = "job", **settings: Any) -> JobDirectory:
    return JobDirectory(job, JobConfig(checkpoint_dir=setting, **settings), 1)


def test_two_jobs_cannot_have_one_directory_at_a_time(tmp_path: Path) -> None:
    directory = job_directory_of(str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="in use by another running job"):
        job_directory_of(str(tmp_path / "checkpoint"))
    directory.close()
    directory.close()
    job_directory_of(str(tmp_path / "checkpoint")).close()


def test_a_query_that_was_refused_and_stopped_is_refused_again(tmp_path: Path) -> None:
    """Its other tasks may bind when Spark knows it no more."""
    known = iter([str(tmp_path)])
    config = JobConfig(checkpoint_dir=str(tmp_path))
    directory = JobDirectory("job", config, 2, location_of=lambda query: next(known, None))
    try:
        for _ in range(2):
            with pytest.raises(JobError, match="checkpointLocation"):
                directory.bind("it", "query", {"it"})
        assert directory.manifest.operators == {}
    finally:
        directory.close()


def test_a_directory_stays_with_its_job_and_its_number_of_key_groups(tmp_path: Path) -> None:
    job_directory_of(str(tmp_path)).close()
    with pytest.raises(ConfigError, match="belongs to job 'job' with max_parallelism 128, but this is job 'other'"):
        job_directory_of(str(tmp_path), "other")
    with pytest.raises(ConfigError, match="but this is job 'job' with 64"):
        job_directory_of(str(tmp_path), max_parallelism=64)
    job_directory_of(str(tmp_path)).close()


def test_every_flipped_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    directory = job_directory_of(str(tmp_path))
    directory.bind("it", "query", {"it"})
    directory.close()
    path = tmp_path / "job.json"
    sound = path.read_bytes()
    found = JobManifest.read(tmp_path)
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << (position % 7)
        path.write_bytes(damaged)
        try:
            assert JobManifest.read(tmp_path) == found, "only what does not change the meaning may pass"
        except CheckpointError as exc:
            assert str(path) in str(exc)


def test_a_damaged_record_of_committed_epochs_is_ignored(tmp_path: Path) -> None:
    directory = job_directory_of(str(tmp_path))
    directory.finalize("query", 3)
    directory.finalize("query", 2)
    directory.close()
    assert read_final(tmp_path) == {"query": 3}
    (tmp_path / "final.json").write_bytes(b"{")
    assert read_final(tmp_path) == {}
    job_directory_of(str(tmp_path)).close()


def test_a_relative_path_and_a_tilde_are_resolved_in_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for setting, expected in [("state/here", tmp_path / "state" / "here"), ("~/state", tmp_path / "home" / "state")]:
        directory = job_directory_of(setting)
        assert directory.path == expected
        directory.close()
        assert expected.is_dir(), "a directory that the user named is kept"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("s3:/bucket/state", "'s3:/bucket/state' is no location: expected a path, or a URL such as s3://"),
        ("memory://state", "in the memory of one process"),
        ("nothing://bucket/state", "nothing:// is no protocol that fsspec knows"),
        ("ftp://me:secret@host/state", r"^checkpoint_dir 'ftp://me:\.{3}@host/state' .* password((?!secret@).)*$"),
        ("{tmp_path}/file/below", "below' cannot be made"),
        ("~no-such-user/x", "cannot be made"),
        ("{tmp_path}/locked", "locked cannot be written"),
    ],
)
def test_impossible_directory_is_named(setting: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked" / "job.lock").mkdir(parents=True)
    with pytest.raises(ConfigError, match=complaint):
        job_directory_of(setting.format(tmp_path=tmp_path))


def test_a_temporary_directory_is_removed_with_the_job() -> None:
    directory = job_directory_of("")
    assert directory.path.is_dir()
    directory.close()
    assert not directory.path.exists()


def test_a_lock_does_not_pass_to_processes_that_the_driver_starts(tmp_path: Path) -> None:
    lock = OwnerByLock(DurableDirectory(tmp_path))
    try:
        assert not os.get_inheritable(lock.fileno())
    finally:
        lock.close()


def test_a_job_continues_where_the_one_before_was_stopped(job_of: JobOf) -> None:
    job = job_of(Totals())
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
    job.stop()
    job = job_of(Totals())
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)], "Spark may ask again for the last epoch"
    assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]
    assert job.totals("a") == {"a": 3}


def test_epochs_of_another_query_are_refused(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)), query="one")
    job.stop()
    job = job_of(Totals())
    with pytest.raises(JobError, match=r"state of operator 'it'.*made by streaming query one.*driven by other"):
        job.epoch(0, rows_batch(("a", 1000)), query="other")
    assert job.epoch(1, rows_batch(("a", 2)), query="one") == [("a", 3)]


def test_an_old_query_over_an_empty_directory_is_refused(job_of: JobOf) -> None:
    job = job_of(Totals())
    with pytest.raises(JobError, match="checkpointLocation whose state this job does not have"):
        job.epoch(7, rows_batch(("a", 1)))
    assert job.totals("a") == {"a": None}
