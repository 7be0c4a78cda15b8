"""A job that goes back makes epochs again, with other rows: its followers do not take them for those they know."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source, write_savepoint
from qstate.checkpoint.manifest import JobManifest
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.checkpoint.storage.locations import directory_of
from qstate.client import ClientCache, QueryableStateClient
from qstate.config import JobConfig
from qstate.errors import Compacted, ConfigError
from qstate.runtime.job.directory_owner import OwnerByLock
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.job.new_history import begin_new_history
from qstate.standby import serve_checkpoint
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, RunningJob, until
from tests.runtime.standby.asked import KEYS, feed, reached

JobOf = Callable[..., RunningJob]
STATE, KEY = "totalAmount", KEYS[0]
LOOKS: dict[str, Any] = {"proxy_ports": "0", "server_ports": "0", "interval_s": 0.05}


def client_of(job: RunningJob, **options: Any) -> QueryableStateClient:
    return QueryableStateClient(*job.manager.wait_for_proxy(20.0), **options)


def token_after(client: QueryableStateClient, epoch: int, token: str | None = None) -> str:
    """The token of a subscription that has every epoch from 1 up to this one."""
    begin: dict[str, Any] = {"from_epoch": 1} if token is None else {"token": token}
    with client.subscribe(JOB, STATE, **begin) as subscription:
        for batch in subscription:
            if batch.complete >= epoch and batch.token is not None:
                return batch.token
    raise AssertionError("unreachable")


@pytest.mark.parametrize("way", ["copies", "savepoint"])
def test_followers_notice_that_the_job_went_back(job_of: JobOf, tmp_path: Path, way: str) -> None:
    root, copy = tmp_path / "checkpoint", tmp_path / "copy"
    job = job_of(Totals())
    feed(job, 0)
    if way == "savepoint":
        write_savepoint(open_source(str(root)), directory_of(copy))
    job.stop()
    if way == "copies":
        shutil.copytree(root, copy)
    job = job_of(Totals())
    for epoch in (1, 2):
        feed(job, epoch)
    port = job.manager.wait_for_proxy(20.0)[1]
    standby = serve_checkpoint(root, **LOOKS)
    with standby, client_of(job, cache=ClientCache(max_staleness_s=30.0)) as caching:
        until(lambda: caching.get(JOB, STATE, KEY, isolation="committed").get() == 3, "the client has the third total")
        with client_of(job) as client:
            token = token_after(client, 2)
        job.stop()
        shutil.rmtree(root)
        if way == "copies":
            shutil.copytree(copy, root)
            begin_new_history(directory_of(root))
        settings = {"restore_from": str(copy)} if way == "savepoint" else {}
        job = job_of(Totals(), proxy_ports=f"{port},0", **settings)
        for epoch in range(1, 4):
            feed(job, epoch, 7)
        until(lambda: caching.get(JOB, STATE, KEY, isolation="committed").get() == 22, "the cache has begun again")
        with client_of(job) as client, pytest.raises(Compacted, match="begun again"):
            token_after(client, 3, token)
        until(lambda: "another history" in str(standby.status().failure), "the standby reports it")
        with QueryableStateClient(*standby.address) as client:
            assert client.get(JOB, STATE, KEY, isolation="committed").epoch == 2, "it keeps serving what it has"
            with pytest.raises(Compacted):
                token_after(client, 2)
    with client_of(job) as client:
        token = token_after(client, 3)
    with serve_checkpoint(root, **LOOKS) as standby:
        reached(standby, 3)
        feed(job, 4)
        with QueryableStateClient(*standby.address) as client:
            token_after(client, 4, token)


def job_directory_of(root: Path) -> JobDirectory:
    return JobDirectory("job", JobConfig(checkpoint_dir=str(root)), 1)


def history_in(root: Path) -> str | None:
    manifest = JobManifest.read(root)
    assert manifest is not None
    return manifest.history


def test_each_new_directory_has_a_history_which_its_job_keeps(tmp_path: Path) -> None:
    found = set()
    for name in ("one", "other"):
        for _ in range(2):
            directory = job_directory_of(tmp_path / name)
            directory.bind("it", "query", ["it"])
            directory.close()
            found.add(history_in(tmp_path / name))
    assert len(found) == 2 and None not in found


def test_history_of_an_older_directory_is_its_query_alone(tmp_path: Path) -> None:
    manifest = JobManifest("job", 128, (1,), {"it": "query"})
    manifest.write(tmp_path)
    before = (tmp_path / "job.json").read_bytes()
    job_directory_of(tmp_path).close()
    assert (tmp_path / "job.json").read_bytes() == before
    assert (manifest.history_of("it"), manifest.history_of("other")) == ("query", None)


def test_new_history_leaves_the_rest_of_the_manifest(tmp_path: Path) -> None:
    job_directory_of(tmp_path).close()
    before = JobManifest.read(tmp_path)
    written = begin_new_history(directory_of(tmp_path))
    assert before is not None and JobManifest.read(tmp_path) == written
    assert written.history != before.history
    assert replace(written, history=before.history) == before
    job_directory_of(tmp_path).close()
    assert history_in(tmp_path) == written.history


def test_directory_that_a_job_uses_gets_no_new_history(tmp_path: Path) -> None:
    directory = job_directory_of(tmp_path)
    before = history_in(tmp_path)
    with pytest.raises(ConfigError, match="in use by another running job; stop that job"):
        begin_new_history(directory_of(tmp_path))
    assert history_in(tmp_path) == before
    directory.close()
    begin_new_history(directory_of(tmp_path))
    OwnerByLock(DurableDirectory(tmp_path)).close()  # it is nobody's again


def test_directory_without_a_job_is_left_alone(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "no such directory"):
        with pytest.raises(ConfigError, match=r"has no job\.json: name the checkpoint_dir of a job"):
            begin_new_history(directory_of(root))
    assert list(tmp_path.iterdir()) == []
