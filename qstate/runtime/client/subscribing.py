"""A subscription: where each range of key groups is, what to ask for next, and what to give to the caller.

Rules of this module: no sockets, no threads, no asyncio. It starts operations over `Links` and takes their results;
the synchronous and the asyncio client wait for a `NextBatch`. Requests are in flight only for a caller that waits or
has waited: who does not ask for the next batch gets nothing more, and holds one answer for each owner at most.

    learn the state --> history and snapshot, unless the caller says where to begin --> poll each range, again and again

**Histories.** A job that begins again, from nothing or from a savepoint, counts its epochs from 0. So the first poll
asks which history of the state there is, before the snapshot; a token has it too. Changes of another history are never
taken for those that come next.

**Ranges.** An answer may be about fewer key groups than were asked for, because their owners have changed. Then the
range is divided there. So each range has its own place, and a place never depends on who owns what.

**Failures.** A poll that fails is sent again from the same place, after a pause. While the job does not answer, the
fallbacks are asked: a standby gives the same changes. When nothing has answered for `patience_s`, the last failure is
raised.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from qstate.errors import (
    Compacted,
    ConfigError,
    FailureCode,
    NoCommittedEpoch,
    QStateError,
    QueryError,
    Retry,
    ScanExpired,
    TooLarge,
)
from qstate.keys import MAX_PARALLELISM_LIMIT, key_group
from qstate.protocol.fields import MAX_INT64
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.protocol.messages import NO_EPOCH, Changes, Poll
from qstate.protocol.range_messages import HISTORY
from qstate.runtime.client.operations import GetOperation, LearnOperation, Links, Operation, RoutedOperation, Terms
from qstate.runtime.client.owner_operations import PollOperation, ScanOperation
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.client.subscriptions import (
    OF_OTHER_KEYS,
    ChangeBatch,
    ChangeKind,
    Place,
    SnapshotScan,
    Span,
    StateChange,
    Wanted,
    changes_of,
)
from qstate.runtime.routing.routed_get import ANY_NUMBER, backoff_s

__all__ = ["NextBatch", "Subscribing"]

#: How much longer than its wait a poll may take.
GRACE_S = 5.0
#: With fallbacks, the time for a poll of a job that has failed.
PROBE_S = 1.0
#: How long the job is not asked after it has failed, if there are fallbacks.
DOWN_S = 1.0
#: The most changes of an epoch that is not complete yet, for each range.
MOST_PENDING = 5_000_000
#: Failures of a job that starts, ends or moves, besides those that may be retried.
_PASSING = frozenset(
    (FailureCode.UNAVAILABLE, FailureCode.DEADLINE_EXCEEDED, FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE)
)
#: With fallbacks, a failure ends a poll after so many tries.
_TRIES: Mapping[int, int] = dict.fromkeys(FailureCode, 2)
_BEGUN_AGAIN = "the job has begun again or gone back to a copy, or the token is of another job"
_UNKNOWN = frozenset((FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE))


@dataclass(slots=True, eq=False)
class _Range:
    """A range of key groups, and the place where its next poll begins. `pending` are the changes of that epoch."""

    start: int
    stop: int
    epoch: int
    position: bytes = b""
    pending: list[StateChange] = field(default_factory=list)
    operation: RoutedOperation | None = None
    endpoint: int = 0
    failures: int = 0
    #: Why there has been no answer since the last one.
    failure: QueryError | None = None
    due: float = -math.inf

    @property
    def span(self) -> Span:
        return Span(self.start, self.stop, self.epoch)


class _SnapshotOperation(GetOperation):
    """The committed values of keys, with the epoch of each."""

    __slots__ = ()

    @property
    def epochs(self) -> Sequence[int]:
        assert self._answer is not None
        return self._answer.epochs

    @property
    def known(self) -> CachedState:
        assert self._known is not None
        return self._known


class NextBatch(Operation):
    """The wait for the next batch of a subscription. Its one result is the batch."""

    __slots__ = ("_subscribing",)

    def __init__(self, subscribing: Subscribing, links: Links[Any]) -> None:
        super().__init__(links, links.terms.observer, math.inf)
        self._subscribing = subscribing

    @property
    def wake_at(self) -> float:
        return self._subscribing.wake_at

    def start(self) -> None:
        self._subscribing.begin_wait(self)

    def on_time(self, now: float) -> None:
        self._subscribing.on_time(now)

    def results(self) -> list[ChangeBatch]:
        if self.error is not None:
            raise self.error
        return [self._subscribing.take()]

    def ready(self) -> None:
        """There is a batch."""
        self._finish()

    def abandon(self) -> None:
        """The caller waits no longer."""
        if not self.finished:
            self._subscribing.end_wait()
            self._finish()


class Subscribing:
    """One subscription. Not thread-safe: the links let one thread at a time in."""

    def __init__(self, links: Links[Any], wanted: Wanted) -> None:
        self._links = links
        self._wanted = wanted
        self._batches: deque[ChangeBatch] = deque()
        self._ranges = [] if wanted.begin is None else [_Range(*span) for span in wanted.begin.spans]
        #: The step before the first poll.
        self._first = _Range(0, MAX_PARALLELISM_LIMIT, 0)
        self._begun = False
        self._snapshot_due = wanted.begin is None
        #: Whether a server has said which history there is, as far as it knows; and which one it is.
        self._asked_history = False
        self._history = None if wanted.begin is None else wanted.begin.history
        self._selection = wanted.selection
        self._scan: SnapshotScan | None = None
        self._waiting: NextBatch | None = None
        self._job_down_until = -math.inf
        self._fallback = 0
        #: When there was an answer last, and when the caller began to do other things.
        self._answered_at = self._idle_since = time.monotonic()
        self._job_failed = False
        self._patience_s = wanted.timeout_s
        self._complete = NO_EPOCH
        self._error: QStateError | None = None

    def next_batch(self) -> NextBatch:
        """The operation that waits for the next batch."""
        return NextBatch(self, self._links)

    def take(self) -> ChangeBatch:
        """The next batch, which is there."""
        return self._batches.popleft()

    def begin_wait(self, waiting: NextBatch) -> None:
        """Finish the wait as soon as there is a batch."""
        now = time.monotonic()
        self._answered_at += now - self._idle_since  # while the caller was busy, no server had time to answer
        self._waiting = waiting
        self._advance(now)

    def end_wait(self) -> None:
        """No caller waits any more."""
        self._waiting = None
        self._idle_since = time.monotonic()

    def close(self) -> None:
        """No caller wants a batch any more: servers need not answer what they have been asked for."""
        for one in self._steps:
            operation, one.operation = one.operation, None
            if operation is not None:
                operation.withdraw()

    @property
    def wake_at(self) -> float:
        return min((one.due if one.operation is None else one.operation.wake_at for one in self._steps), default=0.0)

    @property
    def failure(self) -> QueryError | None:
        """Why a range of keys has had no answer since its last one; None while all have."""
        return next((one.failure for one in self._steps if one.failure is not None), None)

    @property
    def _steps(self) -> list[_Range]:
        return self._ranges if self._begun else [self._first]

    def on_time(self, now: float) -> None:
        for one in self._steps:
            if one.operation is not None and now >= one.operation.wake_at:
                one.operation.on_time(now)
        self._advance(now)

    # `Observer` of the operations.

    def on_progress(self, operation: Operation) -> None:
        if self._waiting is not None:
            self._links.on_progress(self._waiting)

    def on_finished(self, operation: Operation) -> None:
        now = time.monotonic()
        one = next((step for step in self._steps if step.operation is operation), None)
        if one is None:
            return
        one.operation = None
        try:
            self._take(one, operation)
        except QueryError as error:
            self._failed(one, error, now)
        except QStateError as error:
            self._error = error
        else:
            self._answered(one, now)
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Send what is due, and end the wait if there is something for the caller."""
        waiting = self._waiting
        if waiting is None:
            return
        if waiting.finished:
            self.end_wait()
        elif self._error is not None:
            self.end_wait()
            waiting.fail(self._error)
        elif self._batches:
            self.end_wait()
            waiting.ready()
        else:
            for one in self._steps:
                if one.operation is None and now >= one.due:
                    self._start(one, now)
            self._links.on_progress(waiting)

    def _start(self, one: _Range, now: float) -> None:
        caches, wanted = self._links.endpoints.caches, self._wanted
        others = len(caches) - 1
        endpoint = 1 + self._fallback % others if others and now < self._job_down_until else 0
        terms = Terms(self, caches[endpoint], _TRIES if others else ANY_NUMBER)
        known = terms.states.find(wanted.job, wanted.state)
        if self._begun:
            hurried = bool(others) and self._job_failed and endpoint == 0
            wait_s, left_s = (0.0, PROBE_S) if hurried else (wanted.progress_s, wanted.progress_s + GRACE_S)
            poll = self._poll(one, int(wait_s * 1000))
            one.operation = PollOperation(self._links, wanted.query, poll, now + left_s, terms)
        elif known is None:
            one.operation = LearnOperation(self._links, wanted.query, now + GRACE_S, terms)
        elif self._snapshot_due and not self._asked_history:
            poll = self._poll(_Range(0, known.max_parallelism, MAX_INT64), 0)
            one.operation = PollOperation(self._links, wanted.query, poll, now + GRACE_S, terms)
        elif self._snapshot_due and wanted.keys is not None:
            one.operation = _SnapshotOperation(self._links, wanted.query, wanted.keys, now + GRACE_S, terms)
        elif self._snapshot_due:
            self._scan = self._scan or SnapshotScan(wanted, known.max_parallelism)
            one.operation = ScanOperation(self._links, wanted.query, self._scan.request, now + GRACE_S, terms)
        else:
            try:
                self._begin_polls(known)
            except ConfigError as error:
                self._error = error
            self._advance(now)
            return
        one.endpoint = endpoint
        one.operation.start()

    def _poll(self, one: _Range, wait_ms: int) -> Poll:
        wanted = self._wanted
        place = (one.start, one.stop, one.epoch, one.position)
        target = (wanted.job, wanted.state)
        return Poll(
            1, 0, target, wanted.namespaces, wanted.keys or (), wanted.prefix, *place, wait_ms, DEFAULT_MAX_FRAME
        )

    # What operations bring.

    def _take(self, one: _Range, operation: Operation) -> None:
        if isinstance(operation, PollOperation):
            (changes,) = operation.results()
            self._check_history(one, changes)
            if self._begun:
                self._take_changes(one, changes, operation.known)
        elif isinstance(operation, _SnapshotOperation):
            self._take_values(operation)
        elif isinstance(operation, ScanOperation):
            self._take_page(operation)
        else:
            operation.results()  # the cache has it now

    def _check_history(self, one: _Range, changes: Changes) -> None:
        """Raises `Compacted` when the changes are of another history than what the caller has."""
        history = changes.attributes.get(HISTORY)
        self._asked_history = True
        if not isinstance(history, int):
            return  # the server does not say it
        if self._history is None:
            self._history = history
        elif history != self._history:
            raise Compacted(job=self._wanted.job, state=self._wanted.state, epoch=one.epoch, reason=_BEGUN_AGAIN)

    def _begin_polls(self, known: CachedState) -> None:
        """Make the ranges those of the wanted key groups. Raises `ConfigError` if the place to begin lacks some."""
        groups = known.max_parallelism
        wanted = self._wanted.keys
        of_keys = set(range(groups)) if wanted is None else {key_group(key, groups) for key in wanted}
        found = {group for one in self._ranges for group in range(one.start, min(one.stop, groups))}
        if not (self._wanted.parts or of_keys <= found):
            raise ConfigError(OF_OTHER_KEYS)
        if wanted is not None:
            for one in self._ranges:
                inside = [group for group in of_keys if one.start <= group < one.stop]
                one.start, one.stop = min(inside, default=0), max(inside, default=-1) + 1
        for one in self._ranges:
            one.stop = min(one.stop, groups)
        self._ranges = [one for one in self._ranges if one.start < one.stop]
        self._begun = True

    def _take_values(self, operation: _SnapshotOperation) -> None:
        """The snapshot: a range for the neighbours that are of one epoch, which have one owner."""
        wanted = self._wanted
        assert wanted.keys is not None
        try:
            views, epochs = operation.results(), operation.epochs
        except NoCommittedEpoch:
            views, epochs = [None] * len(wanted.keys), [NO_EPOCH] * len(wanted.keys)
        known = operation.known
        failed = next((view for view in views if isinstance(view, QueryError)), None)
        if failed is not None:
            raise failed
        groups = [key_group(key, known.max_parallelism) for key in wanted.keys]
        if len(set(zip(groups, epochs, strict=True))) > len(set(groups)):
            return  # a key group was read twice, with a commit in between: read again
        rows = sorted(zip(groups, epochs, wanted.keys, views, strict=True), key=itemgetter(0))
        made = []
        for epoch, of_epoch in groupby(rows, itemgetter(1)):
            found = list(of_epoch)
            self._ranges.append(_Range(found[0][0], found[-1][0] + 1, epoch + 1))
            space = wanted.query.namespace
            made.append(
                [
                    StateChange(epoch, ChangeKind.PUT, key, space, None, view)
                    for _, _, key, view in found
                    if view is not None
                ]
            )
        self._snapshot_due = False
        for one, changes in zip(self._ranges[:-1], made[:-1], strict=True):
            # Only the last batch completes the snapshot, so only that one has a place to continue from.
            self._batches.append(ChangeBatch(one.epoch - 1, changes, True, NO_EPOCH, None))
        self._give(self._ranges[-1].epoch - 1, made[-1], snapshot=True)

    def _take_page(self, operation: ScanOperation) -> None:
        """A page of the snapshot: the ranges begin when it is complete."""
        assert self._scan is not None
        try:
            (page,) = operation.results()
        except NoCommittedEpoch:
            if self._scan.begun:
                raise
            self._scan.nothing()
        except ScanExpired:
            self._scan.forget_view()
            return
        else:
            changes = self._scan.take(page, operation.known.maker)
            if changes and not self._scan.over:
                self._batches.append(ChangeBatch(page.epoch, changes, True, NO_EPOCH, None))
                return
        if self._scan.over:
            self._snapshot_due = False
            self._ranges = [_Range(*span) for span in self._scan.spans]
            self._give(self._ranges[-1].epoch - 1, self._scan.last, snapshot=True)

    def _take_changes(self, one: _Range, answer: Changes, known: CachedState) -> None:
        if answer.stop_group < one.stop:
            self._divide(one, answer.stop_group)
            if one.position:  # it is of more key groups than this owner has: begin the epoch again
                one.position, one.pending = b"", []
                return
        found: list[tuple[int, list[StateChange]]] = [(one.epoch, one.pending)] if one.pending else []
        for run in answer.runs:
            if not found or found[-1][0] != run.epoch:
                found.append((run.epoch, []))
            found[-1][1].extend(changes_of(run, known.maker))
        one.pending = []
        if answer.position and found and found[-1][0] == answer.next_epoch:
            one.pending = found.pop()[1]
            if len(one.pending) > MOST_PENDING:
                raise TooLarge(field="epoch", limit=MOST_PENDING)
        for epoch, changes in found:
            one.epoch = epoch + 1
            self._give(epoch, changes)
        one.epoch, one.position = answer.next_epoch, answer.position
        if min(each.epoch for each in self._ranges) - 1 > self._complete:
            self._give(one.epoch - 1, [])

    def _divide(self, one: _Range, stop: int) -> None:
        at = self._ranges.index(one) + 1
        self._ranges.insert(at, _Range(stop, one.stop, one.epoch))
        one.stop = stop

    def _give(self, epoch: int, changes: list[StateChange], *, snapshot: bool = False) -> None:
        self._complete = min(one.epoch for one in self._ranges) - 1
        place = Place(tuple(one.span for one in self._ranges), self._history, self._selection)
        self._batches.append(ChangeBatch(epoch, changes, snapshot, self._complete, place))

    def _answered(self, one: _Range, now: float) -> None:
        one.failures, one.failure, one.due = 0, None, now
        self._answered_at = now
        if one.endpoint == 0:
            self._job_failed = False
        if self._begun:
            self._patience_s = self._wanted.patience_s

    def _failed(self, one: _Range, error: QueryError, now: float) -> None:
        if error.code == FailureCode.OVERLOADED:
            self._answered_at = now
        else:
            one.failure = error
        passing = error.code in _PASSING or error.retry is not Retry.FATAL
        others = len(self._links.endpoints.caches) > 1
        existed = self._begun or self._history is not None  # as a token may say, while the job restarts
        unknown = error.code in _UNKNOWN and not existed and not others
        if not passing or unknown or now - self._answered_at > self._patience_s:
            self._error = error
            return
        if one.endpoint == 0:
            self._job_failed = True
            self._job_down_until = now + DOWN_S
        else:
            self._fallback += 1
        one.due = now + backoff_s(one.failures, self._links.random)
        one.failures += 1
