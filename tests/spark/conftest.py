"""Fixtures of the Spark tests: one session at a time per master, and jobs and clients that are always closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.spark import Job
from qstate.spark.sessions.catalog import session_of
from tests.spark.connect_server import connect_server, remote_session
from tests.spark.streams import LOCAL, LOCAL_CLUSTER, FileStream, start_spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    return start_spark(LOCAL)


@pytest.fixture(scope="module")
def cluster_spark() -> Iterator[SparkSession]:
    """Two executors, two processes: Spark moves partitions between them."""
    session = start_spark(LOCAL_CLUSTER)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def connect_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of Spark Connect, to a server of its own that logs all events.

    PySpark goes by the environment: from here on, `pyspark.sql.functions` make expressions of Spark Connect.
    """
    log = tmp_path_factory.mktemp("events")
    with (
        pytest.MonkeyPatch.context() as environment,
        connect_server(
            LOCAL, spark_eventLog_enabled="true", spark_eventLog_compress="false", spark_eventLog_dir=f"file:{log}"
        ) as url,
        remote_session(url) as session,
    ):
        environment.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session.range(1).collect()  # starts threads that stay as long as the session
        yield session


@pytest.fixture
def stream_of(tmp_path: Path) -> Callable[..., FileStream]:
    """`stream_of(session, table, ...)`: a stream with these tables as micro-batches."""
    made: list[FileStream] = []

    def make(session: SparkSession, *tables: pa.Table) -> FileStream:
        stream = FileStream(session, tmp_path / f"input-{len(made)}")
        made.append(stream)
        for table in tables:
            stream.add(table)
        return stream

    return make


@pytest.fixture
def job_of() -> Iterator[Callable[..., Job]]:
    """`job_of(session, name, **settings)`: a job on ports of its own that is stopped after the test."""
    jobs: list[Job] = []
    sessions: list[SparkSession] = []

    def make(session: SparkSession, name: str = "job", **settings: Any) -> Job:
        sessions.append(session)
        job = Job(session, name, **{"proxy_ports": "0", "server_ports": "0", "parallelism": 2, **settings})
        jobs.append(job)
        return job

    yield make
    for session in sessions:
        for query in session_of(session).active_queries():
            query.stop()
    for job in jobs:
        job.stop()


@pytest.fixture
def client_of() -> Iterator[Callable[[Job], QueryableStateClient]]:
    clients: list[QueryableStateClient] = []

    def connect(job: Job, **settings: Any) -> QueryableStateClient:
        client = QueryableStateClient(*job.proxy_address, **settings)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()
