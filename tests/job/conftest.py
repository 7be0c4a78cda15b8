"""Jobs without Spark that are always stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.operators.functions import KeyedFunction
from tests.job.running_job import RunningJob


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """`job_of(function, **settings)`: a running job with that operator, over `tmp_path / "checkpoint"`."""
    jobs: list[RunningJob] = []

    def make(function: KeyedFunction, **settings: Any) -> RunningJob:
        jobs.append(RunningJob(function, **{"checkpoint_dir": str(tmp_path / "checkpoint"), **settings}))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()
