"""The streaming queries that run in the sessions that a job works with.

Rules of this module: it asks Spark, each time. A session that was stopped has no queries.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamingQueries"]


class StreamingQueries:
    """Of the job's session, and of those that its streams came from: each session knows its own queries only."""

    def __init__(self, session: SparkSession) -> None:
        self._sessions = [session]

    def include(self, session: SparkSession) -> None:
        """Ask this session, too."""
        if not any(one is session for one in self._sessions):
            self._sessions.append(session)

    def running(self) -> dict[str, str | None]:
        """The names of the queries that run, by id. The id outlives a query that is started again."""
        return {str(query.id): query.name for query in self._active()}

    def checkpoint_location(self, query_id: str) -> str | None:
        """Where a query that runs keeps its offsets, as Spark writes locations; None for one that is not known."""
        for query in self._active():
            if str(query.id) == query_id:
                return str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # PySpark does not show it
        return None

    def _active(self) -> Iterator[StreamingQuery]:
        for session in self._sessions:
            if session.sparkContext._jsc is not None:  # the session has not been stopped
                yield from session.streams.active
