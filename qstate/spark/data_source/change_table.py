"""The changes of some epochs as a table.

Rules of this module: it plans which epochs are read of which key groups. `changes` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from qstate.errors import ConfigError
from qstate.spark.data_source.changes import ChangeFeed, FeedPart
from qstate.spark.data_source.live import LiveState
from qstate.spark.data_source.options import SourceOptions
from qstate.spark.data_source.table import batches_of

__all__ = ["ChangeTable"]

GONE = "Give a later changeStartEpoch"


class ChangeTable(DataSourceReader):
    """The committed changes from an epoch on, up to another one or the newest at the first action."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises what `LiveState` raises."""
        if options.isolation == "live":
            raise ConfigError("only committed changes are kept: leave isolation out")
        if options.keys:
            raise ConfigError("the change feed takes a prefix or a namespace; select keys with where(...)")
        begin = options.number("changestartepoch")
        if begin is None:
            raise ConfigError("give the first epoch: .option('changeStartEpoch', ...); or use spark.readStream")
        self._options, self._wanted = options, wanted
        self._begin, self._end = begin, options.number("changeendepoch")
        state = LiveState(options)
        self._groups, self._serializer = state.groups, state.table.serializer
        self._own = state.table.schema(options.key_names, changes=True)
        self._feed = ChangeFeed(options.job, options.state, state.selection, options.seconds_of_patience, GONE)

    def partitions(self) -> Sequence[InputPartition]:
        client = self._options.client(self._serializer)
        with client:
            place = client.committed(self._options.job, self._options.state, self._groups)
        parts = []
        for span in place.spans:
            until = span.epoch if self._end is None else min(span.epoch, self._end + 1)
            if self._begin < until:
                parts.append(FeedPart(span.start, span.stop, self._begin, until, place.history))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FeedPart)
        client = self._options.client(self._serializer)
        with client:
            yield from batches_of(self._feed.rows(client, partition), self._wanted, self._own)
