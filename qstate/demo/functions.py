"""What the demo's job computes: a temperature alert per airport and a profile per aircraft.

Rules of this module: functions over keyed rows and the descriptors of their states. Nothing of Spark, files or
queries is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import add
from typing import Any

from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.operators.context import RuntimeContext
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.handles import ElementContext

__all__ = [
    "ALERT_SCHEMA",
    "DELAYED_SCHEMA",
    "KEPT_DELAYS",
    "LATE_MINUTES",
    "THRESHOLD_FACTOR",
    "AircraftProfile",
    "LastFlight",
    "Mean",
    "TemperatureAlert",
]

#: A reading alerts when it is more than this many times the one before. Temperatures are in degrees Fahrenheit.
THRESHOLD_FACTOR = 1.15
#: How many of an aircraft's delays are kept.
KEPT_DELAYS = 10
#: A departure that is later than this many minutes is reported.
LATE_MINUTES = 180

ALERT_SCHEMA = "origin string, time timestamp, before double, now double"
DELAYED_SCHEMA = "tailnum string, scheduled timestamp, origin string, dest string, dep_delay bigint, mean_delay double"


class TemperatureAlert(KeyedProcessFunction):
    """Alerts when a reading rises by more than a factor over the one before it at the same airport."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("lastTemp", float).queryable("lastTemperature"))

    def process_element(self, row: Any, context: ElementContext) -> Iterator[tuple[Any, ...]]:
        if row.temp is None:  # the station was out of order; the reading before stays the last one
            return
        before = self.last.value()
        self.last.update(row.temp)
        if before is not None and row.temp > before * THRESHOLD_FACTOR:
            yield row.origin, row.time, before, row.temp


@dataclass(frozen=True, slots=True)
class LastFlight:
    """The latest flight that an aircraft was scheduled for; `delay` in minutes, None when it never departed."""

    carrier: str
    origin: str
    dest: str
    delay: int | None


class Mean(AggregateFunction[int, tuple[int, int], float]):
    """The mean of whole numbers, exact until the one division at the end."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return one[0] + other[0], one[1] + other[1]


class AircraftProfile(KeyedProcessFunction):
    """Keeps, per aircraft, one state of each kind; reports departures that are very late.

    A flight that never departed counts as the last flight and as nothing else.
    """

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", LastFlight).queryable("lastFlight"))
        self.visits = context.get_map_state(MapStateDescriptor("visits", int).queryable("visits"))
        self.delays = context.get_list_state(ListStateDescriptor("delays", int).queryable("lastDelays"))
        self.distance = context.get_reducing_state(
            ReducingStateDescriptor("distance", int, reduce_function=add).queryable("totalDistance")
        )
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", tuple, aggregate_function=Mean()).queryable("meanDelay")
        )

    def process_element(self, row: Any, context: ElementContext) -> Iterator[tuple[Any, ...]]:
        delay = row.dep_delay
        self.last.update(LastFlight(row.carrier, row.origin, row.dest, delay))
        if delay is None:
            return
        self.visits.put(row.dest, (self.visits.get(row.dest) or 0) + 1)
        self.delays.update([*self.delays.get(), delay][-KEPT_DELAYS:])
        self.distance.add(row.distance)
        self.mean.add(delay)
        if delay > LATE_MINUTES:
            yield row.tailnum, row.scheduled, row.origin, row.dest, delay, self.mean.get()
