"""The subscription of a cache to one state: polls for all changes of it, and what they prove about the values held.

Rules of this module: no sockets, no threads, no asyncio. It sends polls and changes the values that are held; the cache
decides what a get is answered. Nothing is sent for a cache that no get asks: the next poll of a range of key groups is
sent when a get has asked since the one before.

**What an answer proves.** A range is at an epoch: it has had every change before. When an answer ends with the newest
epoch that its server knows to be committed, the values held were current when the poll was sent, less what the server
may lack. That moment is `current_at`; nothing later is known. While polls fail, or do not reach the newest epoch, it
stays where it is, and the values become too old for every get.

**When everything is forgotten.** When a value held might be of another history of the state than the changes are:
another owner answers, who may be that of a job that began again from nothing; the description or the number of key
groups is another one; or the changes that come next are not stored any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from qstate.errors import FailureCode, QStateError, QueryCancelled, QueryError, Retry
from qstate.keys import Key, Namespace, key_grouper, key_identity
from qstate.protocol.fields import MAX_INT64
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.protocol.messages import Changes, Poll, Run
from qstate.protocol.range_messages import OWNER, STALENESS
from qstate.runtime.client.caching.kept_values import KeptValues
from qstate.runtime.client.operations import LearnOperation, Links, Operation, Terms
from qstate.runtime.client.owner_operations import PollOperation
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.routing.location import UNSOUND_KEY
from qstate.runtime.routing.routed_get import backoff_s

__all__ = ["Following", "mark_of"]

#: How much longer than its wait a poll may take.
GRACE_S = 2.0
#: How long a state is left alone that has no changes to give, or none for this client.
REFUSED_S = 10.0
#: The longest wait of a poll. It is a third of the bound of the gets: an answer proves what was when its poll was sent.
LONGEST_WAIT_S = 5.0
PART_OF_BOUND = 3
_PUT, _DELETE = 1, 2
_FORGETTING = frozenset(
    (FailureCode.COMPACTED, FailureCode.TOO_LARGE, FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE)
)
_PASSING = frozenset((FailureCode.UNAVAILABLE, FailureCode.DEADLINE_EXCEEDED, *_FORGETTING))
#: When nothing is due: `on_time` may be called for nothing once an hour.
_IDLE_S = 3600.0
_lives = count()
_PLAIN = (str, int, bytes)


def mark_of(key: Namespace) -> Any:
    """What tells a key from others in a dictionary."""
    return key if type(key) in _PLAIN or key is None else key_identity(key)


@dataclass(slots=True, eq=False)
class _Range:
    """A range of key groups. `epoch` comes next, None before it is known; `position` is the place within it.

    `owner` stands for who answered, None for one that does not say it.
    """

    start: int
    stop: int
    epoch: int | None = None
    position: bytes = b""
    owner: Any = None
    current_at: float = -math.inf
    sent_at: float = -math.inf
    operation: Operation | None = None
    failures: int = 0
    due: float = -math.inf


class Following(Operation):
    """The changes of one state, for the values of it that are held. Not thread-safe, as its links."""

    def __init__(self, links: Links[Any], names: tuple[str, str], values: KeptValues) -> None:
        super().__init__(links, links.terms.observer, math.inf)
        self._query = Query(*names, None, COMMITTED, {"isolation": COMMITTED})
        self._values = values
        #: None until the state is known. Then each range has the key groups that one owner has, or had.
        self.known: CachedState | None = None
        self._group_of: Any = None
        self._ranges = [_Range(0, 1)]
        self._asked = False
        self._bound_s = math.inf
        #: Part of the places of the values: those of earlier lives are found no more.
        self._life = next(_lives)

    # For the cache

    def ask(self, bound_s: float, now: float) -> None:
        """A get has asked for a value of at most this age."""
        self._asked = True
        self._bound_s = min(self._bound_s, bound_s)
        for one in self._ranges:
            if one.operation is None and now >= one.due:
                self._advance(now)
                return

    def place(self, namespace: Namespace, key: Key) -> Hashable:
        """Where the value of a key is held. Raises for what is no key."""
        return self._life, mark_of(namespace), mark_of(key)

    def current(self, key: Key) -> tuple[float, int] | None:
        """When the values of this key's group were current for certain, and the epoch that they are from."""
        one = self._range_of(key)
        return None if one is None or one.epoch is None else (one.current_at, one.epoch - 1)

    def met(self, known: CachedState) -> None:
        """A server has answered by this description. If it is another one, nothing is held of the state any more."""
        held = self.known
        if held is None or (known.fingerprint, known.max_parallelism) != (held.fingerprint, held.max_parallelism):
            self._begin(known)

    def keep(self, namespace: Namespace, keys: Sequence[Key], epochs: Sequence[int], results: Sequence[Any]) -> None:
        """Hold the answers of a get, unless they are of earlier epochs than changes have been applied of."""
        for key, epoch, result in zip(keys, epochs, results, strict=True):
            one = None if isinstance(result, int) else self._range_of(key)
            if one is None or one.epoch is None or epoch < one.epoch - 1:
                continue
            place = self.place(namespace, key)
            kept = self._values.find(place)
            if kept is None or kept.epoch < epoch:
                self._values.put(place, result, epoch)

    # For the links

    @property
    def wake_at(self) -> float:
        operations = (one.operation.wake_at for one in self._ranges if one.operation is not None)
        return min(operations, default=time.monotonic() + _IDLE_S)

    def start(self) -> None:
        """Nothing: `ask` sends the first poll."""

    def on_time(self, now: float) -> None:
        for one in list(self._ranges):
            if one.operation is not None and now >= one.operation.wake_at:
                one.operation.on_time(now)

    def results(self) -> list[Any]:
        """It has none: it goes on until the client is closed."""
        return []

    # `Observer` of the polls.

    def on_progress(self, operation: Operation) -> None:
        self._observer.on_progress(self)

    def on_finished(self, operation: Operation) -> None:
        now = time.monotonic()
        one = next((each for each in self._ranges if each.operation is operation), None)
        if one is None or self.finished:
            return
        one.operation = None
        try:
            if isinstance(operation, PollOperation):
                (changes,) = operation.results()
                self._take(one, changes, operation.known)
            else:
                (known,) = operation.results()
                self._begin(known)
        except QStateError as error:
            self._failed(one, error, now)
        else:
            one.failures, one.due = 0, now
        if self._asked:
            self._advance(now)

    # Sending

    def _advance(self, now: float) -> None:
        if self.known is not None and "ttl_ms" in self.known.location.state:
            return  # its values expire without a change
        terms = Terms(self, self._links.states)
        for one in list(self._ranges):
            if one.operation is not None or now < one.due:
                continue
            if self.known is None:
                one.operation = LearnOperation(self._links, self._query, now + GRACE_S, terms)
            else:
                wait_s = self._wait_s(one, now)
                one.sent_at = now
                deadline = now + wait_s + GRACE_S
                one.operation = PollOperation(self._links, self._query, self._poll(one, wait_s), deadline, terms)
            self._asked, self._bound_s = False, math.inf
            one.operation.start()
        self._observer.on_progress(self)

    def _wait_s(self, one: _Range, now: float) -> float:
        """How long a poll may wait. One that can only prove known values does not wait."""
        if one.epoch is None or one.position or now - one.current_at > self._bound_s:
            return 0.0
        return min(LONGEST_WAIT_S, self._bound_s / PART_OF_BOUND)

    def _poll(self, one: _Range, wait_s: float) -> Poll:
        # From the last epoch that there can be, nothing comes: the answer says which one is committed.
        place = (one.start, one.stop, MAX_INT64 if one.epoch is None else one.epoch, one.position)
        target = (self._query.job, self._query.state)
        return Poll(1, 0, target, (), (), None, *place, int(wait_s * 1000), DEFAULT_MAX_FRAME)

    # What polls bring

    def _begin(self, known: CachedState) -> None:
        """The state is known: nothing is held of it yet."""
        self.known = known
        self._group_of = key_grouper(known.max_parallelism)
        self._forget()

    def _forget(self) -> None:
        """Find no value any more, and begin with the newest epoch."""
        assert self.known is not None
        self._life = next(_lives)
        ranges, self._ranges = self._ranges, [_Range(0, self.known.max_parallelism)]
        for one in ranges:
            if one.operation is not None:
                one.operation.fail(QueryCancelled())

    def _take(self, one: _Range, changes: Changes, known: CachedState) -> None:
        self.met(known)
        if one not in self._ranges:
            return
        self.known = known
        if changes.stop_group < one.stop:
            self._divide(one, changes.stop_group)
            if one.position:  # it is of more key groups than this owner has: begin the epoch again
                one.position = b""
                return
        owner = changes.attributes.get(OWNER)
        if one.epoch is None:
            one.epoch, one.owner = changes.committed + 1, owner
        elif owner != one.owner or changes.committed < one.epoch - 1:
            self._forget()
            return
        else:
            for run in changes.runs:
                self._apply(run, partial=bool(changes.position) and run.epoch == changes.next_epoch)
            one.epoch, one.position = changes.next_epoch, changes.position
        staleness_ms = changes.attributes.get(STALENESS, 0)
        if not one.position and one.epoch == changes.committed + 1 and isinstance(staleness_ms, int):
            one.current_at = max(one.current_at, one.sent_at - staleness_ms / 1000)

    def _apply(self, run: Run, *, partial: bool) -> None:
        """Change the values that are held. Of an epoch that is not complete, and of parts of values: hold none."""
        values, life, namespace, epoch = self._values, self._life, mark_of(run.namespace), run.epoch
        replaces = run.operation in (_PUT, _DELETE) and not partial
        results = run.values if run.operation == _PUT and run.values is not None else (None,) * len(run.keys)
        for key, result in zip(run.keys, results, strict=False):
            place = (life, namespace, mark_of(key))
            kept = values.find(place)
            if kept is not None and kept.epoch < epoch:
                if replaces:
                    values.put(place, result, epoch)
                else:
                    values.drop(place)

    def _divide(self, one: _Range, stop: int) -> None:
        rest = _Range(stop, one.stop, one.epoch, owner=one.owner, current_at=one.current_at)
        self._ranges.insert(self._ranges.index(one) + 1, rest)
        one.stop = stop

    def _failed(self, one: _Range, error: QStateError, now: float) -> None:
        code = error.code if isinstance(error, QueryError) else None
        if code in _FORGETTING and self.known is not None:
            self._forget()
            one = self._ranges[0]
        passing = code in _PASSING or (isinstance(error, QueryError) and error.retry is not Retry.FATAL)
        one.failures += 1
        one.due = now + (backoff_s(one.failures, self._links.random) if passing else REFUSED_S)

    def _range_of(self, key: Key) -> _Range | None:
        if self.known is None:
            return None
        if len(self._ranges) == 1:
            return self._ranges[0]
        try:
            group = self._group_of(key)
        except UNSOUND_KEY:
            return None
        return next((one for one in self._ranges if one.start <= group < one.stop), None)
