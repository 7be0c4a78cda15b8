"""The states that the laws use: one of each kind, twins in all but the name, some with their own serializer, timers.

Rules of this module: plain descriptors; no hypothesis, no backend.
"""

from __future__ import annotations

from typing import Any

from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    TimerDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import SerializationError
from qstate.serializers import MessagePackSerializer, Serializer

__all__ = [
    "AGGREGATING",
    "FRAMED",
    "FRAMED_LIST",
    "FRAMED_MAP",
    "KINDS",
    "LIST",
    "MAP",
    "REDUCING",
    "STATES",
    "TABLES",
    "TIMERS",
    "TWIN",
    "TWIN_LIST",
    "TWIN_MAP",
    "TWIN_TIMERS",
    "VALUE",
    "FramedSerializer",
    "Mean",
    "numbered",
]


class Mean(AggregateFunction[float, list[float], float]):
    """The mean; its accumulator is [sum, count], and an empty one has no mean."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1]]


class FramedSerializer(Serializer):
    """A serializer of the user's own: MessagePack between two letters, which no decoder takes for MessagePack."""

    name = "framed"

    def dumps(self, value: Any) -> bytes:
        return b"<" + MessagePackSerializer().dumps(value) + b">"

    def loads(self, data: bytes) -> Any:
        if data[:1] != b"<" or data[-1:] != b">":
            raise SerializationError(f"not framed: {data!r}")
        return MessagePackSerializer().loads(data[1:-1])


VALUE = ValueStateDescriptor("value")
LIST = ListStateDescriptor("list")
MAP = MapStateDescriptor("map")
REDUCING = ReducingStateDescriptor("reducing", int, reduce_function=int.__add__)
AGGREGATING = AggregatingStateDescriptor("aggregating", list, aggregate_function=Mean())
#: One of each kind.
KINDS: tuple[StateDescriptor, ...] = (VALUE, LIST, MAP, REDUCING, AGGREGATING)

#: The same kinds under names that a careless backend could take for the others.
TWIN = ValueStateDescriptor("value2")
TWIN_LIST = ListStateDescriptor("List")
TWIN_MAP = MapStateDescriptor("map\u0000")

FRAMED = ValueStateDescriptor("framed", serializer=FramedSerializer())
FRAMED_LIST = ListStateDescriptor("framed list", serializer=FramedSerializer())
FRAMED_MAP = MapStateDescriptor("framed map", serializer=FramedSerializer())

#: The timers of two time domains.
TIMERS = TimerDescriptor("timers")
TWIN_TIMERS = TimerDescriptor("timers2")

#: The states that have tables.
TABLES: dict[str, StateDescriptor] = {
    state.name: state for state in (*KINDS, TWIN, TWIN_LIST, TWIN_MAP, FRAMED, FRAMED_LIST, FRAMED_MAP)
}
#: All of them: these, and the timers.
STATES: dict[str, StateDescriptor] = TABLES | {timers.name: timers for timers in (TIMERS, TWIN_TIMERS)}


def numbered(descriptor: StateDescriptor, number: int) -> Any:
    """Contents of the right kind that say the number."""
    contents: dict[StateKind, Any] = {
        StateKind.LIST: [number],
        StateKind.MAP: {"m": number},
        StateKind.AGGREGATING: [float(number), 1],
    }
    return contents.get(descriptor.kind, number)
