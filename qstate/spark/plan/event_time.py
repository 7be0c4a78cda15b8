"""The event time of a stream: finds its column, and carries a watermark through an operator.

Rules of this module: it knows how Spark marks the columns that a watermark is defined on, and which operators a stream
comes from. Spark computes its own watermark at `withWatermark`, for the whole query. Spark's later operators need the
mark on the column that they group by. The result of a Python function has no mark, so this module adds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from qstate.errors import JobError
from qstate.operators.time.epoch_time import EventTime
from qstate.spark.sessions.catalog import session_of

__all__ = ["MARK", "comes_from_operator", "event_time_of", "operator_name", "with_watermark_of"]

#: The names of operators in Spark's plans begin with this.
MARK = "qstate_"
#: The key in the metadata of a column with a watermark (EventTimeWatermark.delayKey).
DELAY_KEY = "spark.watermarkDelayMs"
#: A line of a plan: what shows the depth, the node's name (behind a sign that it is streaming) and its arguments.
_NODE = re.compile(r"((?:[ :]  |[+:]- )*)[~']?(\w+)(?: (.*))?$")


def event_time_of(stream: DataFrame, mark: str) -> EventTime | None:
    """Where the rows of a stream have their event time: in its one timestamp column with a watermark.

    None if no column has one, or several have. `mark` is the name of the job's operators in Spark's plans.
    """
    marked = [
        field for field in stream.schema if DELAY_KEY in field.metadata and isinstance(field.dataType, TimestampType)
    ]
    if len(marked) != 1:
        return None
    (field,) = marked
    names = list(_origins(session_of(stream.sparkSession).plan_of(stream), mark))
    follows = tuple(dict.fromkeys(_uid_of(name, mark) for name in names if name))
    return EventTime(field.name, field.metadata[DELAY_KEY], follows, has_source="" in names)


def comes_from_operator(stream: DataFrame) -> bool:
    """Whether an operator of any job is among what a stream comes from."""
    return any(_origins(session_of(stream.sparkSession).plan_of(stream), MARK))


def operator_name(mark: str, uid: str) -> str:
    """The name of an operator in Spark's plans, from which `event_time_of` gets the uid."""
    return f"{mark}_{uid.encode().hex()}"


def _uid_of(name: str, mark: str) -> str:
    return bytes.fromhex(name.removeprefix(f"{mark}_").partition("(")[0]).decode()


def _origins(plan: str, mark: str) -> Iterator[str]:
    """The plan's nearest operators of the job, by their names, and an empty text for each watermark outside them.

    The plan is a tree with one node a line, a child three columns to the right of its parent.
    """
    above = None
    for line in plan.splitlines():
        node = _NODE.match(line)
        if node is None or (above is not None and node.end(1) > above):
            continue
        above = None
        operator = node[3].partition("(")[0] if node[2].endswith("MapInArrow") else ""
        if node[2] == "EventTimeWatermark":
            yield ""
        elif operator.startswith(mark):
            above = node.end(1)
            yield operator


def with_watermark_of(streams: Sequence[DataFrame], schema: StructType, column: str) -> StructType:
    """The schema with one column marked as having the watermark of the streams.

    Raises `JobError` when the column does not exist or is not a timestamp, and when no stream has a watermark.
    """
    if column not in schema.names:
        raise JobError(f"event_time_column: no column {column!r} in output_schema, which has {', '.join(schema.names)}")
    if not isinstance(schema[column].dataType, TimestampType):
        raise JobError(f"event_time_column: {column!r} is {schema[column].dataType.simpleString()}, not a timestamp")
    fields = chain.from_iterable(stream.schema.fields for stream in streams)
    delays = [field.metadata[DELAY_KEY] for field in fields if DELAY_KEY in field.metadata]
    if not delays:
        raise JobError(
            f"event_time_column={column!r} carries on the watermark of the stream, which has none: call withWatermark "
            "on the stream before key_by and keep its column. A watermark for the result alone needs no "
            "event_time_column: call withWatermark on the result"
        )
    return StructType([_marked(field, max(delays)) if field.name == column else field for field in schema.fields])


def _marked(field: StructField, delay_ms: int) -> StructField:
    return StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), DELAY_KEY: delay_ms})
