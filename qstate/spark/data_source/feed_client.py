"""The client of the data source.

Rules of this module: it adds one request to the client, which only a stream of changes needs.
"""

from __future__ import annotations

from qstate.client import QueryableStateClient
from qstate.protocol import Poll
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.runtime.client.arguments import query_of
from qstate.runtime.client.owner_operations import PollOperation
from qstate.runtime.client.query import COMMITTED
from qstate.runtime.client.subscriptions import Span

__all__ = ["FeedClient"]

#: A poll from here on finds nothing, and its answer tells the newest committed epoch.
_NEVER = (1 << 62) - 1


class FeedClient(QueryableStateClient):
    """A client that also asks how far a state is committed."""

    def committed(self, job: str, state: str, groups: int) -> list[Span]:
        """For each range of key groups, by its owner, the epoch after the newest committed one.

        Raises the `QueryError` of the failure, also when one range has no owner.
        """
        spans, start = [], 0
        query = query_of(job, state, None, COMMITTED)
        while start < groups:
            poll = Poll(1, 0, (job, state), (), (), None, start, groups, _NEVER, b"", 0, DEFAULT_MAX_FRAME)
            (found,) = self._finish(PollOperation(self._links, query, poll, self._deadline(None)))
            stop = min(found.stop_group, groups)
            spans.append(Span(start, stop, found.committed + 1))
            start = stop
        return spans
