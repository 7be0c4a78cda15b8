"""The demo's data set, prepared once for all tests, a winter of it, and one Spark session to compute with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from qstate.demo.data import DataSet, prepare
from qstate.demo.session import open_session
from tests.browser import browser, page

__all__ = ["browser", "data_set", "page", "spark", "winter"]

#: More than one epoch at full speed.
WINTER_DAYS = 40


@pytest.fixture(scope="session")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return prepare(tmp_path_factory.mktemp("nycflights"))


@pytest.fixture(scope="session")
def winter(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """The first days of the data set, for tests that need not wait for a year."""
    return prepare(tmp_path_factory.mktemp("winter"), first_days=WINTER_DAYS)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = open_session(tmp_path_factory.mktemp("spark"), cores=2)
    yield session
    session.stop()
