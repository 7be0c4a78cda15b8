"""The change feed as a stream of Spark's.

Rules of this module: offsets and partitions. `changes` reads. An offset is plain data, and all that a batch depends on:

    {"version": 1, "ranges": []}                              before the snapshot
    {"version": 1, "ranges": [[start, stop, epoch], ...], "history": number}
                                      of the key groups start to stop, `epoch` comes next, in this history of the state

So Spark, which stores the offsets of a batch before it reads it, reads the same epochs again after a failure. The
ranges are those of the owners at that moment; those of the next offset may be others.

With `maxEpochsPerTrigger`, an offset is at most so many epochs after the one before, in each range. Spark knows limits
of rows, bytes and files only. Here an epoch passes as a file, which it is in the job's epoch log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from qstate.errors import ConfigError, FailureCode, JobError, QueryError, Retry
from qstate.runtime.client.subscriptions import Place, Span
from qstate.spark.data_source.changes import FeedPart, FeedReader, started_over
from qstate.spark.data_source.feed_client import FeedClient
from qstate.spark.data_source.options import SourceOptions

__all__ = ["ChangeStream"]

#: Spark asks for the newest offset all the time; the job is asked so often at most.
PAUSE_S = 0.05
#: What to do when the changes of an epoch are not stored any more.
AWAY = "The stream was away for too long. Start it with a new checkpointLocation: it begins with a snapshot"
#: Failures of a job that starts, ends or moves, besides those that may be retried.
_PASSING = frozenset(
    (FailureCode.UNAVAILABLE, FailureCode.DEADLINE_EXCEEDED, FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE)
)


class ChangeStream(FeedReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that begins with a snapshot. While the job does not answer, no batch comes, for `patience_s`."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises what `LiveState` raises."""
        if options.path:
            raise ConfigError("a stream is of a running job: give job and address in place of a path")
        if not options.changes:
            raise ConfigError("a stream is the change feed: add .option('readChangeFeed', 'true')")
        if options.isolation == "live":
            raise ConfigError("a stream has committed changes only: leave isolation out")
        if options.changestartepoch or options.changeendepoch:
            raise ConfigError("a stream begins with a snapshot: leave changeStartEpoch and changeEndEpoch out")
        if options.keys:
            raise ConfigError("a stream takes a prefix or a namespace; select keys with where(...)")
        super().__init__(options, wanted, AWAY)
        self._client: FeedClient | None = None
        self._most = options.most_epochs
        #: Where a query that takes what is available ends; None: it goes on.
        self._target: Place | None = None
        self._reached: Place | None = None
        self._asked_at = time.monotonic()
        #: The first failure of those that have followed each other.
        self._failing_since: float | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        """Tasks have clients of their own."""
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, Any]:
        self._reached = Place(())
        return _offset(self._reached)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest()

    def latestOffset(self, start: Any = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Some releases of Spark call it without the start."""
        if start is not None:
            self._reached = _place(start)
        threading.Event().wait(max(0.0, self._asked_at + PAUSE_S - time.monotonic()))
        self._asked_at = time.monotonic()
        try:
            found = self._target or self._newest()
        except QueryError as error:
            passing = error.code in _PASSING or error.retry is not Retry.FATAL
            if self._reached is None or not passing or self._out_of_patience():
                raise
            return _offset(self._reached)
        self._failing_since = None
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        self._reached = _limited(self._reached or Place(()), self._forward(found), most)
        return _offset(self._reached)

    def _newest(self) -> Place:
        if self._client is None:
            self._client = self._options.client(self._serializer)
        return self._client.committed(self._options.job, self._options.state, self._groups)

    def _forward(self, found: Place) -> Place:
        """The newest epochs, and none before those that were reached: an owner that restarts may be one behind."""
        reached = self._reached or Place(())
        if None not in (found.history, reached.history) and found.history != reached.history:
            raise started_over(self._options.job)
        pieces = list(_overlaps(reached.spans, found.spans))
        if pieces and all(after <= before for _, _, before, after in pieces):
            return reached  # perhaps with other owners, but no epoch is new
        forward = [Span(start, stop, max(before, after)) for start, stop, before, after in pieces]
        return Place(forward or found.spans, found.history)

    def _out_of_patience(self) -> bool:
        self._failing_since = self._failing_since or self._asked_at
        return time.monotonic() - self._failing_since > self._patience_s

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = _place(start).spans, _place(end)
        if not first:
            return [FeedPart(span.start, span.stop, None, span.epoch, last.history) for span in last.spans]
        return [FeedPart(*one, last.history) for one in _overlaps(first, last.spans) if one[2] < one[3]]

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()


def _offset(place: Place) -> dict[str, Any]:
    return {"version": 1, "ranges": [list(span) for span in place.spans], "history": place.history}


def _place(offset: Mapping[str, Any]) -> Place:
    if offset.get("version") != 1:
        raise JobError(f"the stream's checkpoint is of another version of qstate: {offset!r:.200}; begin a new one")
    return Place([Span(*row) for row in offset["ranges"]], offset.get("history"))


def _limited(reached: Place, newest: Place, most: int | None) -> Place:
    """At most so many epochs after those that were reached. The snapshot, before which none was, is of the newest."""
    if most is None or not reached.spans:
        return newest
    pieces = _overlaps(reached.spans, newest.spans)
    return newest._replace(spans=[Span(start, stop, min(to, before + most)) for start, stop, before, to in pieces])


def _overlaps(first: Sequence[Span], last: Sequence[Span]) -> Iterator[tuple[int, int, int, int]]:
    """The pieces of two divisions of the key groups: start, stop, and the epoch in each."""
    for one in last:
        for other in first:
            start, stop = max(one.start, other.start), min(one.stop, other.stop)
            if start < stop:
                yield start, stop, other.epoch, one.epoch
