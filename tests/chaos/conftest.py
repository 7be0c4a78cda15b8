"""The seed of the chaos tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.spark.conftest import client_of, job_of, stream_of

__all__ = ["client_of", "job_of", "seed", "stream_of"]

SEED_VARIABLE = "QSTATE_CHAOS_SEED"
DEFAULT_SEED = 1238


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help=f"seed of the chaos tests; else {SEED_VARIABLE}")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """What makes a run again what it was: it is printed with every run."""
    given: Any = request.config.getoption("--seed", default=None)
    return int(given if given is not None else os.environ.get(SEED_VARIABLE, DEFAULT_SEED))
