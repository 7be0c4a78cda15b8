"""The expected final state and output of the streams, computed by Spark SQL in batch over the same files.

Rules of this module: it shares nothing with the streaming job but the files, the thresholds and the names of the
states. It answers with plain Python values, keyed as a client asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row, SparkSession

from qstate.demo.data import FLIGHTS_SCHEMA, WEATHER_SCHEMA, DataSet
from qstate.demo.functions import KEPT_DELAYS, LATE_MINUTES, THRESHOLD_FACTOR
from qstate.keys import Namespace

__all__ = ["Expectation", "expected_outputs", "expected_states"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """The final contents of one queryable state in one namespace, by key; None is "no value"."""

    state: str
    namespace: Namespace
    values: Mapping[str, Any]


# One pass over the flights; what an aircraft needs is computed from its rows in order.
_AIRCRAFT = f"""
WITH ordered AS (
        SELECT tailnum, array_sort(collect_list(
            struct(scheduled, flight, carrier, origin, dest, dep_delay AS delay, distance))) AS flights
        FROM flights WHERE tailnum IS NOT NULL GROUP BY tailnum),
     split AS (SELECT tailnum, element_at(flights, -1) AS last, filter(flights, f -> f.delay IS NOT NULL) AS departed
        FROM ordered),
     some AS (SELECT tailnum, last, CASE WHEN size(departed) > 0 THEN departed END AS departed FROM split)
SELECT tailnum, struct(last.carrier, last.origin, last.dest, last.delay) AS last,
       map_from_arrays(array_distinct(departed.dest), transform(array_distinct(departed.dest),
            place -> CAST(size(filter(departed.dest, dest -> dest = place)) AS BIGINT))) AS visits,
       slice(departed.delay, greatest(size(departed) - {KEPT_DELAYS - 1}, 1), {KEPT_DELAYS}) AS delays,
       aggregate(departed.distance, 0L, (total, distance) -> total + distance) AS distance,
       CAST(aggregate(departed.delay, 0L, (total, delay) -> total + delay) AS DOUBLE) / size(departed) AS mean_delay
FROM some
"""

_AIRPORTS = "SELECT origin, max_by(temp, time) AS last FROM weather WHERE temp IS NOT NULL GROUP BY origin"

_MAXIMA = """
SELECT origin, date_format(time, 'yyyy-MM-dd') AS day, max(temp) AS highest FROM weather GROUP BY origin, day
"""

_ALERTS = f"""
SELECT count(*) FROM (
    SELECT temp, lag(temp) OVER (PARTITION BY origin ORDER BY time) AS before FROM weather WHERE temp IS NOT NULL
) WHERE temp > before * CAST({THRESHOLD_FACTOR} AS DOUBLE)
"""

_LATE = f"SELECT count(*) FROM flights WHERE tailnum IS NOT NULL AND dep_delay > {LATE_MINUTES}"


def expected_states(spark: SparkSession, data: DataSet) -> list[Expectation]:
    """The final contents of every queryable state of the demo."""
    _open(spark, data)
    aircraft = spark.sql(_AIRCRAFT).collect()
    airports = spark.sql(_AIRPORTS).collect()
    by_day: dict[str, dict[str, Any]] = {}
    for row in spark.sql(_MAXIMA).collect():
        by_day.setdefault(row.day, {})[row.origin] = row.highest
    return [
        Expectation("lastFlight", None, {row.tailnum: row["last"].asDict() for row in aircraft}),
        _of(aircraft, "visits", "visits"),
        _of(aircraft, "lastDelays", "delays"),
        _of(aircraft, "totalDistance", "distance"),
        _of(aircraft, "meanDelay", "mean_delay"),
        Expectation("lastTemperature", None, {row.origin: row["last"] for row in airports}),
        *(Expectation("maxTemperature", day, values) for day, values in sorted(by_day.items())),
    ]


def expected_outputs(spark: SparkSession, data: DataSet) -> dict[str, int]:
    """How many rows the job must have written: `alerts` and `late departures`."""
    _open(spark, data)
    return {"alerts": _count(spark, _ALERTS), "late departures": _count(spark, _LATE)}


def _open(spark: SparkSession, data: DataSet) -> None:
    spark.read.schema(FLIGHTS_SCHEMA).parquet(str(data.flights_directory)).createOrReplaceTempView("flights")
    spark.read.schema(WEATHER_SCHEMA).parquet(str(data.weather_directory)).createOrReplaceTempView("weather")


def _of(rows: list[Row], state: str, column: str) -> Expectation:
    return Expectation(state, None, {row.tailnum: row[column] for row in rows})


def _count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])
