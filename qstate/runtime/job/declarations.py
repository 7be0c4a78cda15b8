"""The operators that the program has declared: of each uid the last declaration counts.

Rules of this module: plain bookkeeping, told by the driver. A program declares an operator again when a cell of a
notebook is run once more, or when it builds a query anew for another run. Each declaration has a token, which its tasks
show: so a query that was made of an earlier one is found out before it touches the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qstate.errors import JobError

__all__ = ["Declaration", "Declarations"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration of an operator: its token, and the pickled `OperatorSpec`."""

    token: str
    spec: bytes


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
        """Make an operator known, or put another declaration in the place of an earlier one.

        `query` is the streaming query that drives it, None for none yet; `running` are those that run, with their
        names. Raises `JobError` when it runs: its next micro-batch would be another program's.
        """
        if uid in self._declared and query is not None and query in running:
            name = running[query]
            raise JobError(
                f"operator {uid!r} cannot be declared again while its streaming query "
                f"{f'{name!r} ({query})' if name else query} runs: stop it first (query.stop()); started again with "
                "its checkpointLocation, it goes on with the state. Give another operator a uid of its own"
            )
        self._declared[uid] = declaration

    def newest(self, uid: str) -> Declaration:
        """The declaration that counts. Raises `JobError` for an operator that the job does not have."""
        if uid not in self._declared:
            raise JobError(f"job {self._job!r} has no operator {uid!r}")
        return self._declared[uid]

    def current(self, uid: str, token: str) -> Declaration:
        """The same, which has to be the one with this token. Raises `JobError` when it is not."""
        found = self.newest(uid)
        if found.token != token:
            raise JobError(
                f"operator {uid!r} has been declared again since this query was made: start a query of the result that "
                "the last process() or as_queryable_state() of this uid gave. Two operators need a uid each"
            )
        return found
