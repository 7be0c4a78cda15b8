"""An S3 server for the session, and a place in it for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import open_directory
from qstate.operators.functions import StreamFunction
from tests.remote.s3_server import BUCKET, S3Server
from tests.runtime.job.running_job import RunningJob
from tests.runtime.standby.conftest import standby_of

__all__ = ["standby_of"]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    fsspec.filesystem("s3", **server.options).mkdir(BUCKET)
    yield server
    server.stop()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The location of a directory that is not there yet."""
    return f"s3://{BUCKET}/{request.node.name.replace('[', '/').rstrip(']')}"


@pytest.fixture
def files(s3: S3Server, url: str) -> Directory:
    """That directory."""
    return open_directory(url, s3.options)


@pytest.fixture
def job_of(s3: S3Server, url: str, tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """`job_of(function, **settings)`: a running job with that operator, over `url`."""
    jobs: list[RunningJob] = []

    def make(function: StreamFunction, **settings: Any) -> RunningJob:
        common = {"checkpoint_dir": url, "checkpoint_storage_options": s3.options, "log_dir": str(tmp_path / "logs")}
        jobs.append(RunningJob(function, **{**common, **settings}))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()
