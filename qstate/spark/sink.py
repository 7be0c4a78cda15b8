"""The queryable state sink as a stream that can be started.

Rules of this module: it only starts the query; the operator does the work.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from qstate.errors import JobError

__all__ = ["QueryableStateStream"]


class QueryableStateStream:
    """A keyed stream with a queryable state sink. Clients query it by `queryable_name`."""

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
        """Start the query. `trigger` has the arguments of Spark's `trigger`, such as `{"availableNow": True}`; set
        `output_mode` to `update` after a Spark aggregation. Raises Spark's errors, and `JobError` for a trigger that is
        not a dict."""
        if trigger is not None and not isinstance(trigger, dict):
            raise JobError(
                f"trigger must be a dict of Spark's trigger arguments, such as {{'availableNow': True}}, got "
                f"{trigger!r}"
            )
        writer = self._result.writeStream.format("noop").outputMode(output_mode)
        if checkpoint_location is not None:
            writer = writer.option("checkpointLocation", checkpoint_location)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.start()
