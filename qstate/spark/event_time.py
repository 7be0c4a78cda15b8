"""Carries a watermark through an operator, so that Spark's windows can follow one.

Rules of this module: it knows how Spark marks the columns that a watermark is defined on. Spark computes the watermark
at `withWatermark`, for the whole query. Later operators need the mark on the column that they group by. The result of a
Python function has no mark, so this module adds it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from qstate.errors import JobError

__all__ = ["with_watermark_of"]

#: The key in the metadata of a column with a watermark (EventTimeWatermark.delayKey).
DELAY_KEY = "spark.watermarkDelayMs"


def with_watermark_of(stream: DataFrame, schema: StructType, column: str) -> StructType:
    """The schema with one column marked as having the stream's watermark.

    Raises `JobError` when the column does not exist or is not a timestamp, and when the stream has no watermark.
    """
    if column not in schema.names:
        raise JobError(f"event_time_column: no column {column!r} in output_schema, which has {', '.join(schema.names)}")
    if not isinstance(schema[column].dataType, TimestampType):
        raise JobError(f"event_time_column: {column!r} is {schema[column].dataType.simpleString()}, not a timestamp")
    delays = [field.metadata[DELAY_KEY] for field in stream.schema.fields if DELAY_KEY in field.metadata]
    if not delays:
        raise JobError(
            f"event_time_column={column!r} carries on the watermark of the stream, which has none: call withWatermark "
            "on the stream before key_by and keep its column. A watermark for the result alone needs no "
            "event_time_column: call withWatermark on the result"
        )
    return StructType([_marked(field, max(delays)) if field.name == column else field for field in schema.fields])


def _marked(field: StructField, delay_ms: int) -> StructField:
    return StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), DELAY_KEY: delay_ms})
