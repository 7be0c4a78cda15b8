"""The streaming queries that run in the sessions of a job.

Rules of this module: it asks Spark each time. A stopped session has no queries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from uuid import uuid4

from qstate.spark.plan.event_time import MARK
from qstate.spark.progress import EpochListener
from qstate.spark.sessions.catalog import session_of
from qstate.spark.sessions.contract import JobSession

__all__ = ["StreamingQueries"]

#: Other listeners of the program may be slow.
REPORTS_TIMEOUT_S = 10.0


class StreamingQueries:
    """The queries of the job's session and of its streams' sessions, because a session only knows its own queries.

    `bound` returns the ids of the queries that are known to drive operators of the job.
    """

    def __init__(self, session: Any, bound: Callable[[], Collection[str]]) -> None:
        self._sessions = [session]
        self._bound = bound
        #: The name of the job's operators in Spark's plans; no other job has it.
        self.mark = f"{MARK}{uuid4().hex}"

    def include(self, session: Any) -> None:
        """Ask this session as well."""
        if not any(one is session for one in self._sessions):
            self._sessions.append(session)

    def running(self) -> dict[str, str | None]:
        """The names of the running queries, by id. A query keeps its id when it is restarted."""
        return {str(query.id): query.name for _, query in self._active()}

    def running_with_mark(self) -> dict[str, str | None]:
        """`running`, but only the queries of the job's operators, where Spark tells it also before their first data."""
        return {str(query.id): query.name for query in self._with_mark()}

    def stop_with_mark(self) -> None:
        """Stop the running queries of the job's operators."""
        for query in self._with_mark():
            query.stop()

    def checkpoint_location(self, query_id: str) -> str | None:
        """The checkpointLocation of a running query, as Spark writes locations; None for an unknown one."""
        for session, query in self._active():
            if str(query.id) == query_id:
                return session.checkpoint_location(query)
        return None

    def await_reports(self, listener: EpochListener) -> None:
        """Wait until the listener knows all micro-batches that are committed so far, at most `REPORTS_TIMEOUT_S`."""
        for session in self._sessions:
            session_of(session).await_reports(listener, REPORTS_TIMEOUT_S)

    def _with_mark(self) -> Iterator[Any]:
        for session, query in self._active():
            plan = session.plan_of_query(query)
            if str(query.id) in self._bound() if plan is None else self.mark in plan:
                yield query

    def _active(self) -> Iterator[tuple[JobSession, Any]]:
        for session in map(session_of, self._sessions):
            for query in session.active_queries():
                yield session, query
