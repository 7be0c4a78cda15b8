"""The data source `qstate`, as Spark sees it.

Rules of this module: it turns Spark's calls into those of `live`, `stored`, `change_table` and `stream`, and rows into
batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from qstate.spark.data_source.change_table import ChangeTable
from qstate.spark.data_source.live import LiveState
from qstate.spark.data_source.options import SourceOptions
from qstate.spark.data_source.stored import StoredState
from qstate.spark.data_source.stream import ChangeStream
from qstate.spark.data_source.table import batches_of

__all__ = ["StateDataSource"]


class StateDataSource(DataSource):
    """A state of a running job or, with a path, of a checkpoint directory or savepoint, as a table.

    Raises the error of the client or the source; Spark shows it with its text.
    """

    @classmethod
    def name(cls) -> str:
        return "qstate"

    def schema(self) -> StructType:
        options = SourceOptions.of(self.options)
        return _state(options).table.schema(options.key_names, changes=options.changes)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options)
        if options.changes:
            return ChangeTable(options, schema)
        return _Reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangeStream(SourceOptions.of(self.options), schema)


def _state(options: SourceOptions) -> LiveState | StoredState:
    return StoredState(options) if options.path else LiveState(options)


class _Reader(DataSourceReader):
    """Spark makes one for each `load`, at the first query of it, and pickles it."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self._state = _state(options)
        self._own = self._state.table.schema(options.key_names)
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        return self._state.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._state.rows(partition), self._wanted, self._own)
