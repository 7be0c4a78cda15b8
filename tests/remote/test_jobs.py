"""Whole jobs, without Spark, whose checkpoints are in an object store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source, write_savepoint
from qstate.checkpoint.manifest import subtask_directory
from qstate.checkpoint.storage.locations import open_directory
from qstate.config import JobConfig
from qstate.errors import CheckpointError, ConfigError, JobError
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.job.new_history import begin_new_history
from qstate.standby import Standby
from tests.closed_port import closed_port
from tests.remote import careless
from tests.remote.s3_server import S3Server
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, kill, rows_batch, until
from tests.runtime.standby.asked import feed, reached, total

JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]


def job_directory_of(url: str, options: dict[str, Any], job: str = "job") -> JobDirectory:
    return JobDirectory(job, JobConfig(checkpoint_dir=url, checkpoint_storage_options=options), 1)


def test_a_job_is_killed_and_restarted_with_its_state(job_of: JobOf, url: str, s3: S3Server, tmp_path: Path) -> None:
    job = job_of(Totals(), snapshot_interval=2)
    for epoch in range(6):
        assert job.epoch(epoch, rows_batch(("a", 1))) == [("a", epoch + 1)]
    job.wait_for_snapshots()
    kill(job.task_manager())
    assert job.epoch(6, rows_batch(("a", 1), ("b", 5))) == [("a", 7), ("b", 5)]
    job.stop()
    log = subtask_directory(open_directory(url, s3.options), "it", 0, 0)
    assert any(name.endswith(".snapshot") for name in log.names())
    again = job_of(Totals())
    assert again.epoch(6, rows_batch(("a", 1), ("b", 5))) == [("a", 7), ("b", 5)], "the last epoch is replayed"
    assert again.epoch(7, rows_batch(("a", 1))) == [("a", 8)]
    assert again.totals("a", "b") == {"a": 8, "b": 5}
    (restored,) = again.manager.restored()
    assert restored.source.startswith(f"{url}/it-")
    assert "INFO" in again.log_text(), "logs are on the hosts"
    assert s3.options["secret"] not in again.log_text()


def test_a_job_begins_with_a_savepoint_in_the_store(job_of: JobOf, url: str, s3: S3Server) -> None:
    job = job_of(Totals(), checkpoint_dir=f"{url}/one")
    job.epoch(0, rows_batch(("a", 3)))
    job.manager.finalize("query-1", 0)
    write_savepoint(open_source(f"{url}/one", s3.options), open_directory(f"{url}/saved", s3.options))
    job.stop()
    again = job_of(Totals(), checkpoint_dir=f"{url}/two", restore_from=f"{url}/saved", parallelism=2)
    rows = [row for subtask in range(2) for row in again.epoch(0, subtask=subtask, query="new")]
    assert rows == []
    assert again.totals("a") == {"a": 3}
    assert open_source(f"{url}/two", s3.options).manifest.restored_from == f"{url}/saved"  # type: ignore[attr-defined]


def test_a_standby_follows_a_job_by_url(job_of: JobOf, standby_of: StandbyOf, url: str, s3: S3Server) -> None:
    job = job_of(Totals(), parallelism=2, snapshot_interval=2)
    standby = standby_of(url, checkpoint_storage_options=s3.options)
    for epoch in range(4):
        feed(job, epoch)
        reached(standby, epoch)
        assert total(standby.address, min_epoch=epoch) == (epoch + 1, epoch)
    status = standby.status()
    assert (status.failure, status.failures) == (None, 0)
    job.wait_for_snapshots()
    job.stop()
    assert total(standby.address) == (4, 3)


def test_second_driver_fences_the_first_one(job_of: JobOf, url: str, caplog: pytest.LogCaptureFixture) -> None:
    first = job_of(Totals())
    first.epoch(0, rows_batch(("a", 1)))
    with caplog.at_level(logging.WARNING):
        second = job_of(Totals())
    assert f"{url} was opened by process" in caplog.text
    assert second.epoch(1, rows_batch(("a", 1))) == [("a", 2)]
    with pytest.raises(JobError, match=f"another job has opened {url}"):
        first.epoch(1, rows_batch(("a", 1000)))
    assert second.epoch(2, rows_batch(("a", 1))) == [("a", 3)]
    first.add_operator("other", Totals())
    with pytest.raises(JobError, match=f"another job has opened {url}"):
        first.epoch(1, rows_batch(("a", 1000)), operator="other")
    first.stop()
    assert second.epoch(3, rows_batch(("a", 1))) == [("a", 4)], "the first one has taken nothing along"


def test_a_driver_that_ends_gives_up_its_ownership(s3: S3Server, url: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        directory = job_directory_of(url, s3.options)
        directory.bind("it", "query", {"it"})
        directory.close()
        directory.close()
    assert "was opened by" not in caplog.text
    assert open_directory(url, s3.options).names() == ["job.json"]
    with pytest.raises(ConfigError, match=f"checkpoint_dir {url} belongs to job 'job'"):
        job_directory_of(url, s3.options, "other")


def test_directory_that_no_driver_has_closed_gets_no_new_history(s3: S3Server, url: str) -> None:
    files = open_directory(url, s3.options)
    directory = job_directory_of(url, s3.options)
    with pytest.raises(ConfigError, match=f"{url} was opened by process .*: stop that job.* job.lock"):
        begin_new_history(files)
    directory.bind("it", "query", {"it"})  # it is still the owner
    directory.close()
    assert begin_new_history(files).history != directory.manifest.history
    assert files.names() == ["job.json"]


def test_missing_store_is_a_clear_error(s3: S3Server, url: str) -> None:
    with closed_port() as port:
        with pytest.raises(ConfigError, match=rf"checkpoint_dir {url} cannot be read: .*Could not connect.*:{port}"):
            job_directory_of(url, {**s3.options, "endpoint_url": f"http://127.0.0.1:{port}"})
        with pytest.raises(ConfigError, match=r"checkpoint_dir s3://no-bucket/x cannot be written: .*bucket"):
            job_directory_of("s3://no-bucket/x", s3.options)


def test_store_without_conditional_writes_is_refused_as_checkpoint_dir(s3: S3Server, url: str) -> None:
    assert careless.CarelessFileSystem.protocol == "careless"
    with pytest.raises(ConfigError, match="two writers could overwrite"):
        job_directory_of(f"careless{url[2:]}", s3.options)


def test_epoch_fails_while_the_store_pauses_and_is_replayed_afterwards(job_of: JobOf, s3: S3Server) -> None:
    job = job_of(Totals(), checkpoint_storage_options=s3.impatient)
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
    s3.pause()
    try:
        with pytest.raises(CheckpointError, match=r"cannot (?:write|seal)"):
            job.epoch(1, rows_batch(("a", 1)))
    finally:
        s3.resume()
    # What the store had taken in before still arrives; an attempt that meets it is cut off, and Spark tries again.
    found: list[Any] = []

    def done() -> bool:
        try:
            found.append(job.epoch(1, rows_batch(("a", 1))))
        except Exception as exc:
            found.append(exc)
        return isinstance(found[-1], list)

    until(done, "the epoch is there")
    assert found[-1] == [("a", 2)]
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 3)]


def test_options_come_from_the_spark_conf_and_are_not_shown() -> None:
    config = JobConfig.from_spark(
        {
            "spark.qstate.checkpoint.storage.secret": "s3-secret",
            "spark.qstate.checkpoint.storage.anon": "false",
            "spark.qstate.checkpoint.storage.client_kwargs": '{"region_name": "eu-central-1"}',
            "spark.qstate.checkpoint.dir": "s3://bucket/x",
        },
        checkpoint_storage_options={"key": "qstate"},
    )
    assert config.checkpoint_dir == "s3://bucket/x"
    assert config.checkpoint_storage_options == {
        "secret": "s3-secret",
        "anon": False,
        "client_kwargs": {"region_name": "eu-central-1"},
        "key": "qstate",
    }
    assert "s3-secret" not in repr(config)
