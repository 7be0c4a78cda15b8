"""The location oracle of a task manager's proxy: asks the job manager over the control connection.

Rules of this module: it never blocks. It answers by callback, on the control connection's reader thread.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from qstate.errors import InternalFailure, QueryError, UnknownKeyGroupLocation
from qstate.runtime.control.rpc import RpcPeer
from qstate.runtime.routing.location import LocationTable

__all__ = ["JobManagerOracle"]


class JobManagerOracle:
    """`LocationOracle` of one job."""

    def __init__(self, job_manager: RpcPeer) -> None:
        self._job_manager = job_manager

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        self._ask(lambda found: reply(pickle.loads(found) if isinstance(found, bytes) else found), "locate", state)

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        self._ask(reply, "describe")

    def _ask(self, reply: Callable[[Any], None], method: str, *args: Any) -> None:
        self._job_manager.submit(method, *args).add_done_callback(lambda done: reply(_outcome(done)))


def _outcome(done: Future[Any]) -> Any:
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, QueryError):
        return error
    if isinstance(error, OSError):  # the location is unknown at the moment; the client retries
        return UnknownKeyGroupLocation(reason="the job manager cannot be reached")
    return InternalFailure(reason=str(error))
