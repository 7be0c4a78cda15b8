"""The batch computation by Spark SQL agrees with plain Python over the same rows, for every key."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from qstate.demo.data import DataSet
from qstate.demo.expected import expected_outputs, expected_states

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def states(spark: SparkSession, winter: DataSet) -> dict[tuple[str, Any], dict[str, Any]]:
    return {(wanted.state, wanted.namespace): dict(wanted.values) for wanted in expected_states(spark, winter)}


@pytest.fixture(scope="module")
def flights(winter: DataSet) -> dict[str, list[dict[str, Any]]]:
    by_aircraft = defaultdict(list)
    for row in pyarrow.parquet.read_table(winter.flights_directory).to_pylist():
        if row["tailnum"] is not None:
            by_aircraft[row["tailnum"]].append(row)
    for rows in by_aircraft.values():
        rows.sort(key=lambda row: (row["scheduled"], row["flight"]))
    return by_aircraft


def test_every_aircraft_and_every_airports_day_is_expected(states: dict[Any, Any], winter: DataSet) -> None:
    for name in ("lastFlight", "visits", "lastDelays", "totalDistance", "meanDelay"):
        assert len(states[name, None]) == winter.aircraft
    assert sorted(states["lastTemperature", None]) == list(winter.airports)
    assert sum(len(values) for (name, _), values in states.items() if name == "maxTemperature") == 3 * len(winter.days)


def test_aircraft_states_are_those_of_plain_python(states: dict[Any, Any], flights: dict[str, Any]) -> None:
    for tailnum, rows in flights.items():
        last, departed = rows[-1], [row for row in rows if row["dep_delay"] is not None]
        visits: dict[str, int] = defaultdict(int)
        for row in departed:
            visits[row["dest"]] += 1
        delays = [row["dep_delay"] for row in departed]
        assert states["lastFlight", None][tailnum] == {
            "carrier": last["carrier"],
            "origin": last["origin"],
            "dest": last["dest"],
            "delay": last["dep_delay"],
        }
        assert states["visits", None][tailnum] == (visits or None)
        assert states["lastDelays", None][tailnum] == (delays[-10:] or None)
        assert states["totalDistance", None][tailnum] == (sum(row["distance"] for row in departed) or None)
        assert states["meanDelay", None][tailnum] == (sum(delays) / len(delays) if delays else None)


def test_aircraft_that_never_departed_are_among_them(states: dict[Any, Any]) -> None:
    assert 0 < sum(value is None for value in states["meanDelay", None].values()) < 50


def test_airport_states_are_those_of_plain_python(states: dict[Any, Any], winter: DataSet) -> None:
    last: dict[str, float] = {}
    highest: dict[tuple[str, str], float] = {}
    for row in pyarrow.parquet.read_table(winter.weather_directory).sort_by("time").to_pylist():
        if row["temp"] is not None:
            last[row["origin"]] = row["temp"]
            place = row["origin"], row["time"].date().isoformat()
            highest[place] = max(row["temp"], highest.get(place, row["temp"]))
    assert states["lastTemperature", None] == last
    found = {(key, day): value for (name, day), values in states.items() if day for key, value in values.items()}
    assert found == highest


def test_outputs_are_neither_empty_nor_everything(spark: SparkSession, winter: DataSet) -> None:
    outputs = expected_outputs(spark, winter)
    assert 0 < outputs["alerts"] < winter.readings / 100
    assert 0 < outputs["late departures"] < winter.flights / 50
