"""The streaming queries that run in the sessions of a job.

Rules of this module: it asks Spark each time. A stopped session has no queries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from qstate.spark.plan.event_time import MARK

__all__ = ["StreamingQueries"]

log = logging.getLogger(__name__)

#: Other listeners of the program may be slow.
REPORTS_TIMEOUT_S = 10.0


class StreamingQueries:
    """The queries of the job's session and of its streams' sessions, because a session only knows its own queries."""

    def __init__(self, session: SparkSession) -> None:
        self._sessions = [session]
        #: The name of the job's operators in Spark's plans; no other job has it.
        self.mark = f"{MARK}{uuid4().hex}"

    def include(self, session: SparkSession) -> None:
        """Ask this session as well."""
        if not any(one is session for one in self._sessions):
            self._sessions.append(session)

    def running(self) -> dict[str, str | None]:
        """The names of the running queries, by id. A query keeps its id when it is restarted."""
        return {str(query.id): query.name for query in self._active()}

    def running_with_mark(self) -> dict[str, str | None]:
        """`running`, but only the queries of the job's operators, also before their first data."""
        return {str(query.id): query.name for query in self._active() if self.mark in _plan_of(query)}

    def stop_with_mark(self) -> None:
        """Stop the running queries of the job's operators."""
        for query in self._active():
            if self.mark in _plan_of(query):
                query.stop()

    def checkpoint_location(self, query_id: str) -> str | None:
        """The checkpointLocation of a running query, as Spark writes locations; None for an unknown query."""
        for query in self._active():
            if str(query.id) == query_id:
                return str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # not part of PySpark's API
        return None

    def await_reports(self) -> None:
        """Wait until Spark has reported all micro-batches that it has committed so far, at most `REPORTS_TIMEOUT_S`."""
        for session in self._sessions:
            context = session.sparkContext._jsc
            if context is None:
                continue
            try:
                context.sc().listenerBus().waitUntilEmpty(int(REPORTS_TIMEOUT_S * 1000))  # not part of PySpark's API
            except Py4JJavaError as exc:
                log.warning("Spark's listeners are behind, so the last epochs may be missing: %s", exc.java_exception)

    def _active(self) -> Iterator[StreamingQuery]:
        for session in self._sessions:
            if session.sparkContext._jsc is not None:  # the session has not been stopped
                yield from session.streams.active


def _plan_of(query: StreamingQuery) -> str:
    return str(query._jsq.streamingQuery().analyzedPlan().toString())  # not part of PySpark's API
