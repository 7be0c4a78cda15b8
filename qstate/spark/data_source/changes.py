"""The change feed of a running job as rows: the snapshot as of an epoch, and the changes between two epochs.

Rules of this module: it asks the client for one range of key groups. It must not know how Spark numbers its batches.

**The snapshot.** Spark fixes the epoch of a batch before it reads the batch, and may read it again. But a job shows
only the epoch that it has committed last. So the snapshot as of epoch n is read as of a later epoch m, without what the
changes of n + 1 to m have touched: those keys, entries of maps and elements of lists come with the changes, in the next
batches. A key that was deleted or written whole has no row in the snapshot. A reader that applies the snapshot and then
all changes has the state, and has had each change once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from qstate.errors import Compacted, JobError, NoCommittedEpoch
from qstate.keys import key_identity
from qstate.runtime.client.query import COMMITTED
from qstate.runtime.client.subscriptions import ChangeKind, Place, Span, StateChange
from qstate.spark.data_source.feed_client import FeedClient
from qstate.spark.data_source.live import LiveState
from qstate.spark.data_source.options import SourceOptions
from qstate.spark.data_source.table import StateRow, batches_of

__all__ = ["FeedPart", "FeedReader", "started_over"]

#: How long a poll waits whose epochs are committed already.
PROGRESS_S = 0.02
_WHOLE = (ChangeKind.PUT, ChangeKind.DELETE)


class FeedReader:
    """The feed of one state, and how a part of it is read: what a batch and a stream of changes have in common."""

    def __init__(self, options: SourceOptions, wanted: StructType, advice: str) -> None:
        """`advice` is for those who ask for changes that are gone. Raises what `LiveState` raises."""
        self._options, self._wanted, self._advice = options, wanted, advice
        state = LiveState(options)
        self._groups, self._serializer, self._selection = state.groups, state.table.serializer, state.selection
        self._own = state.table.schema(options.key_names, changes=True)
        #: How long a stream waits for a job that does not answer.
        self._patience_s = options.seconds("patience_s")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FeedPart)
        with self._options.client(self._serializer) as client:
            yield from batches_of(self._rows(client, partition), self._wanted, self._own)

    def _rows(self, client: FeedClient, part: FeedPart) -> Iterator[StateRow]:
        """The rows of a part. Raises what the client raises, and `JobError`."""
        if part.begin is None:
            return self._snapshot(client, Span(part.start, part.stop, part.until), part.history)
        if part.begin == part.until:
            return iter(())
        return self._changes(client, Span(part.start, part.stop, part.begin), part.history, part.until)

    def _snapshot(self, client: FeedClient, span: Span, history: int | None) -> Iterator[StateRow]:
        """What the changes from `span.epoch` on are changes of."""
        before, reached = span.epoch - 1, span.epoch - 1
        later: dict[Any, list[StateChange]] = {}
        entries = client.scan(
            self._options.job,
            self._options.state,
            self._selection.prefix,
            COMMITTED,
            namespace=self._selection.namespace,
            key_groups=(span.start, span.stop),
            min_epoch=before if before >= 0 else None,
        )
        try:
            with entries:
                for key, namespace, view in entries:
                    if view.epoch > reached:
                        for change in self._between(client, span._replace(epoch=reached + 1), history, view.epoch + 1):
                            later.setdefault((key_identity(change.namespace), change.key), []).append(change)
                        reached = view.epoch
                    value = _before(view.contents(), later.get((key_identity(namespace), key), ()))
                    if value is not None:
                        yield StateRow(key, namespace, value, before, ChangeKind.PUT.value)
        except NoCommittedEpoch:
            return

    def _changes(self, client: FeedClient, span: Span, history: int | None, until: int) -> Iterator[StateRow]:
        """The rows of the epochs from `span.epoch` to `until` (exclusive)."""
        for change in self._between(client, span, history, until):
            value = change.value
            if change.map_key is not None:
                value = {change.map_key: value}
            yield StateRow(change.key, change.namespace, value, change.epoch, change.kind.value)

    def _between(self, client: FeedClient, span: Span, history: int | None, until: int) -> Iterator[StateChange]:
        """The changes of these epochs, which are committed."""
        subscription = client.follow(
            (self._options.job, self._options.state),
            Place((span,), history),
            prefix=self._selection.prefix,
            namespace=self._selection.namespace,
            progress_s=PROGRESS_S,
            patience_s=self._patience_s,
        )
        try:
            with subscription:
                for batch in subscription:
                    yield from (change for change in batch if change.epoch < until)
                    if batch.complete >= until - 1:
                        return
        except Compacted as exc:
            if "oldest_epoch" not in exc.details:
                raise started_over(self._options.job) from exc
            raise JobError(
                f"changes of epoch {span.epoch} of state {self._options.state!r} are asked for, and job "
                f"{self._options.job!r} has those since epoch {exc.details.get('oldest_epoch')} only. {self._advice}. "
                "With a higher snapshot_interval or retained_snapshots the job keeps changes longer"
            ) from exc


class FeedPart(InputPartition):
    """A range of key groups: its snapshot as of the epoch before `until`; or the changes from an epoch on, up to it."""

    def __init__(self, start: int, stop: int, begin: int | None, until: int, history: int | None) -> None:
        super().__init__(None)
        self.start, self.stop, self.begin, self.until, self.history = start, stop, begin, until, history


def started_over(job: str) -> JobError:
    """The epochs of the job are not those of the stream any more."""
    return JobError(
        f"job {job!r} has started over since this stream began: start the stream with a new checkpointLocation, too"
    )


def _before(value: Any, changes: Sequence[StateChange]) -> Any:
    """What the changes have left untouched of a value; None: nothing that is known."""
    if not changes:
        return value
    if any(change.kind in _WHOLE for change in changes):
        return None
    if isinstance(value, Mapping):
        touched = {change.map_key for change in changes}
        return {key: entry for key, entry in value.items() if key not in touched} or None
    added = sum(len(change.value) for change in changes if isinstance(change.value, list))
    return value[: len(value) - added] or None
