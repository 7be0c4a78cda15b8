"""The changes of some epochs as a table.

Rules of this module: it plans which epochs are read of which key groups. `changes` reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from qstate.errors import ConfigError
from qstate.spark.data_source.changes import FeedPart, FeedReader
from qstate.spark.data_source.options import SourceOptions

__all__ = ["ChangeTable"]

GONE = "Give a later changeStartEpoch"


class ChangeTable(FeedReader, DataSourceReader):
    """The committed changes from an epoch on, up to another one or the newest at the first action."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises what `LiveState` raises."""
        if options.isolation == "live":
            raise ConfigError("only committed changes are kept: leave isolation out")
        if options.keys:
            raise ConfigError("the change feed takes a prefix or a namespace; select keys with where(...)")
        if options.maxepochspertrigger:
            raise ConfigError("maxEpochsPerTrigger is for a stream: give changeEndEpoch")
        begin = options.number("changestartepoch")
        if begin is None:
            raise ConfigError("give the first epoch: .option('changeStartEpoch', ...); or use spark.readStream")
        super().__init__(options, wanted, GONE)
        self._begin, self._end = begin, options.number("changeendepoch")

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.client(self._serializer) as client:
            place = client.committed(self._options.job, self._options.state, self._groups)
        parts = []
        for span in place.spans:
            until = span.epoch if self._end is None else min(span.epoch, self._end + 1)
            if self._begin < until:
                parts.append(FeedPart(span.start, span.stop, self._begin, until, place.history))
        # Spark plans a partition of its own where a reader has none.
        return parts or [FeedPart(0, 0, self._begin, self._begin, None)]
