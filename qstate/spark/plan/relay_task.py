"""The function that Spark runs in its Python workers: reads the task's identity and calls the relay.

Rules of this module: it is the only code of qstate that runs inside Spark's workers and knows Spark; it keeps no state
between tasks. It is pickled into Spark's closure, with the job's ticket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from qstate.errors import JobError, QStateError
from qstate.runtime.relay.data_channel import SessionRequest
from qstate.runtime.relay.input_digest import HASH_COLUMN, ROWS_COLUMN
from qstate.runtime.relay.relay import JobTicket, relay

__all__ = ["SUBTASK_COLUMN", "RelayTask"]

#: The column with the subtask of a row. After the shuffle, it proves that the row came to the right task.
SUBTASK_COLUMN = "__qstate_subtask"
#: Local properties that Spark sets for every task of a micro-batch (MicroBatchExecution, StreamExecution).
BATCH_ID_PROPERTY = "streaming.sql.batchId"
QUERY_ID_PROPERTY = "sql.streaming.queryId"


class RelayTask:
    """The argument of `mapInArrow` for one declaration of an operator. `names` are the operator's column names.

    Spark's plans show it by `__name__`, which the job sets to find its queries.

    The input has these columns, then the subtask, the number of rows in each row if rows are `combined`, and the hash.
    """

    def __init__(
        self,
        ticket: JobTicket,
        operator: str,
        declaration: str,
        parallelism: int,
        names: Sequence[str],
        *,
        combined: bool = False,
    ) -> None:
        self.__name__ = type(self).__name__
        self._ticket = ticket
        self._operator = operator
        self._declaration = declaration
        self._parallelism = parallelism
        self._place = len(names)
        self._columns = [*names, ROWS_COLUMN, HASH_COLUMN] if combined else [*names, HASH_COLUMN]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            request = self._request()
            rows = map(self._without_ticks, batches)
            checked = (self._checked(batch, request.subtask) for batch in rows if batch.num_rows)
            first = next(checked, None)  # fails on misplaced rows before a session is open
            yield from relay(self._ticket, request, chain([] if first is None else [first], checked))
        except QStateError:
            # PySpark would show the relay's frames first; the text of the error has the frames of the user's function.
            # The worker ends with this error, so the setting hides no other traceback.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    def _request(self) -> SessionRequest:
        context = TaskContext.get()
        epoch = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
        query = context.getLocalProperty(QUERY_ID_PROPERTY) if context else None
        if context is None or epoch is None or query is None:
            raise JobError(
                f"operator {self._operator!r} runs in streaming queries only: start the result with writeStream, with "
                "Spark Connect without foreachBatch, whose function there runs its queries outside of the stream's: "
                "let the stream write to a table or a topic, and read that"
            )
        subtask = context.partitionId()
        if subtask >= self._parallelism:
            raise self._misplaced(f"task {subtask} of {self._parallelism}")
        attempt = context.taskAttemptId()
        return SessionRequest(self._operator, subtask, int(epoch), attempt, query, self._declaration)

    def _without_ticks(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without ticks (`qstate.spark.plan.ticks`): only they have no hash."""
        hashes = batch.column(batch.num_columns - 1)
        return batch.filter(hashes.is_valid()) if hashes.null_count else batch

    def _checked(self, batch: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
        """The batch under the operator's names, without the subtask column, whose value must be this subtask.

        The shuffle gives each partition one subtask, so it is enough to check the first and the last row.
        """
        place = self._place
        column = batch.column(place)
        if column[0].as_py() != subtask or column[-1].as_py() != subtask:
            raise self._misplaced(f"rows of subtask {column[0].as_py()} came to task {subtask}")
        return batch.select([*range(place), *range(place + 1, batch.num_columns)]).rename_columns(self._columns)

    def _misplaced(self, what: str) -> JobError:
        return JobError(
            f"operator {self._operator!r}: {what}. Something after it merged its partitions, such as coalesce(), or "
            "put others before them, such as union(); use repartition() after the operator"
        )
