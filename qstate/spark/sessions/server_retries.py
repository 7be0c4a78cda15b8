"""The retries of PySpark's calls to a Spark Connect server: they end when the server is gone.

Rules of this module: it takes the place of the retry policies of a PySpark client. It knows no job and no session, and
imports no part of `pyspark.sql.connect`.

PySpark repeats a call that does not reach the server for more than ten minutes, because the server may still have the
session. A host that refuses connections has no such server any more, and sessions end with their server. So a further
repetition cannot succeed; it would only keep the caller waiting: `query.awaitTermination()`, `spark.stop()`, and the
threads that PySpark has in the background.

Nothing else watches the server. The listener of a job has a call open as long as its session lives, and that call is
the first to find out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

__all__ = ["ServerRetries"]

#: What the system says, and gRPC repeats, when no process listens at the server's address.
REFUSED = "Connection refused"
#: How long the host may refuse. PySpark's default policy calls again after 0.05, 0.25 and 1.05 s, so the last decides.
GRACE_S = 0.5


class ServerRetries:
    """A retry policy of PySpark that follows other policies, until the server is gone."""

    name = "qstate: as long as the server is there"

    def __init__(self, policies: Iterable[Any]) -> None:
        self._policies = tuple(policies)
        #: Why the server counts as gone; empty as long as it does not.
        self.loss = ""

    @classmethod
    def of(cls, client: Any) -> ServerRetries:
        """The one of this client of PySpark; it gets one that follows its own policies."""
        policies = client.get_retry_policies()
        if len(policies) == 1 and isinstance(policies[0], cls):
            return policies[0]
        retries = cls(policies)
        client.set_retry_policies([retries])
        return retries

    def to_state(self) -> _CallRetries:
        """PySpark asks for one for each call."""
        return _CallRetries(self, [policy.to_state() for policy in self._policies])


class _CallRetries:
    """The retries of one call."""

    name = ServerRetries.name

    def __init__(self, retries: ServerRetries, policies: list[Any]) -> None:
        self._retries = retries
        self._policies = policies
        self._refused_at: float | None = None

    def can_retry(self, exception: BaseException) -> bool:
        """Whether PySpark calls again after this exception."""
        if not any(policy.can_retry(exception) for policy in self._policies):
            return False
        if REFUSED in str(exception):
            now = time.monotonic()
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at >= GRACE_S:
                self._retries.loss = REFUSED
        return not self._retries.loss

    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        """Milliseconds until PySpark calls again; None when it gives up."""
        policy = next(one for one in self._policies if exception is None or one.can_retry(exception))
        wait_ms: int | None = policy.next_attempt(exception)
        if wait_ms is None:
            self._retries.loss = "PySpark has given up"
        return wait_ms
