"""The operators that the program has declared. Of each uid, the last declaration counts.

Rules of this module: bookkeeping for the driver, without I/O. A program declares an operator again when a notebook cell
is run again, or when the program builds a query again. Each declaration has a token, and its tasks send the token: so
a query that was built from an earlier declaration is refused before it touches the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qstate.errors import JobError
from qstate.operators.time.epoch_time import EventTime

__all__ = ["Declaration", "Declarations"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration of an operator: its token, and the pickled `OperatorSpec` with what it says about time."""

    token: str
    spec: bytes
    event_times: tuple[EventTime, ...] = ()
    keeps_time: bool = False


class Declarations:
    """Not thread-safe: the job manager holds its lock."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._declared: dict[str, Declaration] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._declared

    def uids(self) -> list[str]:
        return list(self._declared)

    def declare(self, uid: str, declaration: Declaration, query: str | None, running: Mapping[str, str | None]) -> None:
        """Add an operator, or replace an earlier declaration of it.

        `query` is the id of the streaming query that drives the operator, None for none yet; `running` maps the ids of
        the running queries to their names. Raises `JobError` when `query` is running: its next micro-batch would run
        another program.
        """
        if uid in self._declared and query is not None and query in running:
            name = running[query]
            raise JobError(
                f"operator {uid!r} cannot be declared again while its streaming query "
                f"{f'{name!r} ({query})' if name else query} runs: stop it first (query.stop()); started again with "
                "its checkpointLocation, it continues with the state. Give another operator a uid of its own"
            )
        self._declared[uid] = declaration

    def newest(self, uid: str, token: str | None = None) -> Declaration:
        """The declaration that counts. Raises `JobError` when there is none, or it has another token than this one."""
        found = self._declared.get(uid)
        if found is None:
            raise JobError(f"job {self._job!r} has no operator {uid!r}")
        if token is not None and found.token != token:
            raise JobError(
                f"operator {uid!r} has been declared again since this query was built: start a query on the result of "
                "the last process() or as_queryable_state() with this uid. Two operators need a uid each"
            )
        return found
