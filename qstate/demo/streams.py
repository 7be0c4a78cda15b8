"""The demo's job: three streaming queries over two streams, all of their state queryable.

Rules of this module: it wires sources, functions and sinks together and knows how far they are. What is shown, asked
or compared is decided elsewhere.

    weather -> TemperatureAlert, by airport           -> alerts            state: lastTemperature
    weather -> Spark's maximum per day and airport    -> maxTemperature    a queryable state sink, a namespace per day
    flights -> AircraftProfile, by aircraft           -> late departures   states: lastFlight, visits, lastDelays, ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from qstate.demo.data import FLIGHTS_SCHEMA, WEATHER_SCHEMA, DataSet
from qstate.demo.functions import ALERT_SCHEMA, DELAYED_SCHEMA, AircraftProfile, TemperatureAlert
from qstate.errors import JobError
from qstate.spark import Job

__all__ = ["JOB", "Progress", "Streams", "cause_of", "start_streams"]

#: The name that clients ask for.
JOB = "nycflights"
#: At full speed, how many days make one epoch.
DAYS_PER_EPOCH = 28


@dataclass(slots=True)
class Progress:
    """The progress of one query: the rows of each of its epochs, and the latest event time."""

    query: StreamingQuery
    total: int
    rows_of_epoch: dict[int, int] = field(default_factory=dict)
    day: str = ""

    @property
    def rows(self) -> int:
        return sum(self.rows_of_epoch.values())

    @property
    def epochs(self) -> int:
        return sum(rows > 0 for rows in self.rows_of_epoch.values())

    def update(self) -> None:
        """Ask Spark. Raises `JobError` with the cause when the query has failed."""
        failure = self.query.exception()
        if failure is not None:
            raise JobError(f"the query {self.query.name!r} failed: {cause_of(str(failure))}")
        last = self.query.lastProgress
        if last is None:
            return
        # Spark may report several times between two calls; only then the kept reports are read.
        missed = last.batchId > max(self.rows_of_epoch, default=-1) + 1
        for report in self.query.recentProgress if missed else (last,):
            # A report of an idle trigger carries the number of the epoch to come, and no rows.
            known = self.rows_of_epoch.get(report.batchId, 0)
            self.rows_of_epoch[report.batchId] = max(known, report.numInputRows)
        self.day = str(last.eventTime.get("max", self.day))[:10]


@dataclass(frozen=True, slots=True)
class Streams:
    """The running queries, and where they write."""

    flights: Progress
    weather: Progress
    maxima: Progress
    alerts_directory: Path
    late_departures_directory: Path

    def all(self) -> dict[str, Progress]:
        return {"flights": self.flights, "weather alerts": self.weather, "daily maxima": self.maxima}

    def update(self) -> None:
        for progress in self.all().values():
            progress.update()

    def check(self) -> None:
        """Ask Spark; raise `JobError` when a query has failed, or all have ended before the last row."""
        self.update()
        if not any(progress.query.isActive for progress in self.all().values()):
            self.update()  # the last report may have come in between
            if not self.finished():
                raise JobError("the streams have ended before everything was replayed")

    def finished(self) -> bool:
        """Whether Spark has processed and committed every row."""
        return all(progress.rows >= progress.total for progress in self.all().values())

    def stop(self) -> None:
        for progress in self.all().values():
            progress.query.stop()


def start_streams(spark: SparkSession, job: Job, data: DataSet, directory: Path, *, complete: bool) -> Streams:
    """Start the three queries over the files of `data`, which write below `directory`.

    `complete`: all files are there; else they will appear. Raises `JobError` when the queries cannot work as wired.
    """
    flights = _stream(spark, FLIGHTS_SCHEMA, data.flights_directory)
    weather = _stream(spark, WEATHER_SCHEMA, data.weather_directory)
    # 2,512 flights name no aircraft. They have no key, hence no state; the demo's report counts them.
    profiles = job.key_by(flights.where("tailnum IS NOT NULL"), "tailnum").process(
        AircraftProfile(), DELAYED_SCHEMA, uid="aircraft-profile", order_by=["scheduled", "flight"]
    )
    alerts = job.key_by(weather, "origin").process(
        TemperatureAlert(), ALERT_SCHEMA, uid="temperature-alert", order_by="time"
    )
    maxima = job.key_by(_daily_maxima(weather), "origin").as_queryable_state(
        "maxTemperature", uid="daily-maxima", value="highest", namespace="day"
    )
    trigger: dict[str, Any] = {"availableNow": True} if complete else {"processingTime": "0 seconds"}
    late_directory, alerts_directory = directory / "late-departures", directory / "alerts"
    checkpoints = directory / "checkpoints"
    return Streams(
        flights=Progress(_write(profiles, "flights", late_directory, checkpoints, trigger), data.flights),
        weather=Progress(_write(alerts, "weather-alerts", alerts_directory, checkpoints, trigger), data.readings),
        maxima=Progress(
            maxima.start(
                checkpoint_location=str(checkpoints / "daily-maxima"),
                query_name="daily-maxima",
                output_mode="update",
                trigger=trigger,
            ),
            data.readings,
        ),
        alerts_directory=alerts_directory,
        late_departures_directory=late_directory,
    )


def _stream(spark: SparkSession, schema: str, directory: Path) -> DataFrame:
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", DAYS_PER_EPOCH)
    return source.parquet(str(directory))


def _daily_maxima(weather: DataFrame) -> DataFrame:
    windows = weather.withWatermark("time", "1 day").groupBy(F.window("time", "1 day"), "origin")
    return windows.agg(F.max("temp").alias("highest")).select(
        "origin", F.date_format("window.start", "yyyy-MM-dd").alias("day"), "highest"
    )


def _write(result: DataFrame, name: str, directory: Path, checkpoints: Path, trigger: dict[str, Any]) -> StreamingQuery:
    writer = result.writeStream.queryName(name).format("parquet").option("path", str(directory))
    return writer.option("checkpointLocation", str(checkpoints / name)).trigger(**trigger).start()


#: The name of an error of qstate in Spark's report, after Spark's own text.
_OURS = "qstate.errors."
#: A traceback of Python, and its error.
_PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(.+)")


def cause_of(report: str) -> str:
    """The error of qstate in Spark's long report of a failed query, as one line; without one, that of Python or Spark.

    A task manager that cannot start has said why in its log, whose end is part of that error.
    """
    lines = [line.strip() for line in report.splitlines()]
    ours = [number for number, line in enumerate(lines) if _OURS in line]
    if not ours:
        python = _PYTHON_ERROR.search(report)
        return python.group(1) if python else next(filter(None, lines), "Spark gives no reason")
    line, *rest = lines[ours[-1] :]
    logged = [found.group(1) for line in takewhile(bool, rest) if (found := re.search(r" ERROR \S+: (.+)", line))]
    return logged[-1] if logged else line.rpartition(_OURS)[2]
