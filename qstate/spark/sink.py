"""The queryable state sink as a stream that can be started.

Rules of this module: it starts the query; the operator behind it does the work.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from qstate.errors import JobError

__all__ = ["QueryableStateStream"]


class QueryableStateStream:
    """The end of a keyed stream that clients query under `queryable_name`."""

    def __init__(self, result: DataFrame, queryable_name: str) -> None:
        self._result = result
        self.queryable_name = queryable_name

    def start(
        self,
        *,
        checkpoint_location: str | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
        trigger: dict[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start the query. `trigger` holds the arguments of Spark's `trigger`, as `{"availableNow": True}`;
        `output_mode` is `update` after a Spark aggregation. Raises what Spark raises, and `JobError` for a trigger of
        another form."""
        if trigger is not None and not isinstance(trigger, dict):
            raise JobError(
                f"trigger holds the arguments of Spark's trigger, as {{'availableNow': True}}, got {trigger!r}"
            )
        writer = self._result.writeStream.format("noop").outputMode(output_mode)
        if checkpoint_location is not None:
            writer = writer.option("checkpointLocation", checkpoint_location)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.start()
