"""Jobs without Spark that are always stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.host.line_limit import count_again
from qstate.operators.functions import StreamFunction
from tests.runtime.job.running_job import RunningJob


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """`job_of(function, **settings)`: a running job with that operator, over `tmp_path / "checkpoint"` and "logs"."""
    jobs: list[RunningJob] = []

    def make(function: StreamFunction, **settings: Any) -> RunningJob:
        places = {"checkpoint_dir": str(tmp_path / "checkpoint"), "log_dir": str(tmp_path / "logs")}
        jobs.append(RunningJob(function, **{**places, **settings}))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()


@pytest.fixture(autouse=True)
def lines_of_other_tests_do_not_count() -> None:
    """What a test looks for in the log must not be withheld because tests before it logged the same."""
    count_again()
