"""The client of the data source.

Rules of this module: it adds to the client what only a stream of changes needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qstate.client import QueryableStateClient, Subscription
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.protocol.messages import Poll
from qstate.protocol.range_messages import HISTORY
from qstate.runtime.client.arguments import query_of
from qstate.runtime.client.owner_operations import PollOperation
from qstate.runtime.client.query import COMMITTED
from qstate.runtime.client.subscribing import Subscribing
from qstate.runtime.client.subscriptions import Place, Span, wanted_of

__all__ = ["FeedClient"]

#: A poll from here on finds nothing, and its answer tells the newest committed epoch.
_NEVER = (1 << 62) - 1


class FeedClient(QueryableStateClient):
    """A client that also asks how far a state is committed, and follows a part of its key groups."""

    def follow(self, names: tuple[str, str], begin: Place, **selection: Any) -> Subscription:
        """The changes of the key groups of `begin`, from there on. Takes and raises what `subscribe` does."""
        wanted = wanted_of(names, None, None, from_epoch=None, token=None, timeout_s=self._timeout_s, **selection)
        links = self._links_of_subscriptions()
        return Subscription(links, Subscribing(links, replace(wanted, begin=begin, parts=True)))

    def committed(self, job: str, state: str, groups: int) -> Place:
        """For each range of key groups, by its owner, the epoch after the newest committed one; and the history.

        Raises the `QueryError` of the failure, also when one range has no owner.
        """
        spans, history, start = list[Span](), None, 0
        query = query_of(job, state, None, COMMITTED)
        while start < groups:
            poll = Poll(1, 0, (job, state), (), (), None, start, groups, _NEVER, b"", 0, DEFAULT_MAX_FRAME)
            (found,) = self._finish(PollOperation(self._links, query, poll, self._deadline(None)))
            stop = min(found.stop_group, groups)
            spans.append(Span(start, stop, found.committed + 1))
            said: Any = found.attributes.get(HISTORY)
            history, start = said if history is None else history, stop
        return Place(spans, history)
