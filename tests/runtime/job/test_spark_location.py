"""Laws of two directories: Spark's of a query and qstate's of a job must not share names."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.config import JobConfig
from qstate.errors import ConfigError, JobError
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.job.spark_location import check_apart


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a directory `real`, and `link` to it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    return tmp_path


@pytest.mark.parametrize(
    ("own", "sparks"),
    [
        ("{root}/real", "file:{root}/real"),
        ("{root}/real", "file://{root}/real/"),
        ("{root}/real/", "{root}/real"),
        ("{root}/real", "file:{root}/link"),
        ("{root}/link/x", "file:{root}/real/../real/x"),
        ("{root}/real/state", "file:{root}/real"),
        ("{root}/link/offsets/deep", "file:{root}/real"),
        ("{root}/real", "file:{root}/real/logs"),
        ("{root}/real", "file:{root}/real/totals-b570182d6801a823/x"),
        ("s3://bucket/state", "s3a://bucket/state/"),
        ("s3://bucket/job/commits", "s3a://bucket/job"),
    ],
)
def test_one_directory_for_both_is_refused_however_it_is_written(root: Path, own: str, sparks: str) -> None:
    with pytest.raises(JobError, match=r"checkpointLocation .* and checkpoint_dir .* give each a directory of its own"):
        check_apart(own.format(root=root), sparks.format(root=root))


@pytest.mark.parametrize(
    ("own", "sparks"),
    [
        ("{root}/real", "file:{root}/other"),
        ("{root}/real", "file:{root}/real-2"),
        ("{root}/real/qstate", "file:{root}/real"),
        ("{root}/real", "file:{root}/real/spark"),
        ("{root}/real", "hdfs://name-node:9000{root}/real"),
        ("s3://bucket/state", "s3a://other/state"),
        ("s3://bucket/state", "gs://bucket/state"),
        ("{root}/with space", "file:{root}/with%20space"),
    ],
)
def test_separate_directories_are_accepted(root: Path, own: str, sparks: str) -> None:
    check_apart(own.format(root=root), sparks.format(root=root))


def sparks_directory(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).mkdir(parents=True)
    (path / "metadata").touch()
    return path


@pytest.mark.parametrize("name", ["offsets", "commits"])
def test_a_checkpoint_location_is_no_checkpoint_dir(tmp_path: Path, name: str) -> None:
    path = sparks_directory(tmp_path / "query", name)
    before = sorted(path.iterdir())
    with pytest.raises(ConfigError, match=r"is the checkpointLocation of a streaming query.*a directory of its own"):
        JobDirectory("job", JobConfig(checkpoint_dir=str(path)), 1)
    assert sorted(path.iterdir()) == before


def test_a_query_that_keeps_its_offsets_in_the_checkpoint_dir_binds_nothing(tmp_path: Path) -> None:
    directory = JobDirectory(
        "job", JobConfig(checkpoint_dir=str(tmp_path)), 1, location_of=lambda _: f"file:{tmp_path}"
    )
    try:
        with pytest.raises(JobError, match="are the same directory"):
            directory.bind("it", "query", {"it"})
        assert directory.bound() == [] and directory.manifest.operators == {}
    finally:
        directory.close()


def test_a_directory_that_spark_does_not_know_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    JobDirectory("job", JobConfig(checkpoint_dir=str(tmp_path)), 1).close()
    assert "metadata" in DurableDirectory(tmp_path).names()
