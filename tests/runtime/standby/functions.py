"""A function with every kind of state, and its descriptors. The standby's tests run it in task managers."""

from __future__ import annotations

import json
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
from qstate.operators.functions import KeyedProcessFunction
from qstate.serializers import Serializer


class JsonSerializer(Serializer):
    """A serializer that only the job has."""

    name = "json"

    def dumps(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


@dataclass
class Order:
    customer: str
    amounts: list[int]


class Mean(AggregateFunction[int, "tuple[int, int]", float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return one[0] + other[0], one[1] + other[1]


JSON = JsonSerializer()
VALUE = ValueStateDescriptor("value", Order).queryable("value")
LIST = ListStateDescriptor("list", tuple[int, str]).queryable("list")
MAP = MapStateDescriptor("map", float, map_key_type=str).queryable("map")
REDUCING = ReducingStateDescriptor("reducing", int, reduce_function=add).queryable("totalAmount")
AGGREGATING = AggregatingStateDescriptor("aggregating", tuple[int, int], aggregate_function=Mean()).queryable("mean")
JSON_VALUE = ValueStateDescriptor("json value", dict, serializer=JSON).queryable("jsonValue")
JSON_LIST = ListStateDescriptor("json list", dict, serializer=JSON).queryable("jsonList")
JSON_MAP = MapStateDescriptor("json map", list, map_key_type=int, serializer=JSON).queryable("jsonMap")
NAMES = ("value", "list", "map", "totalAmount", "mean", "jsonValue", "jsonList", "jsonMap")


def window_of(amount: int) -> tuple[str, int]:
    """The namespace of an amount's entries, beside the void one."""
    return "window", amount % 2


class EveryKind(KeyedProcessFunction):
    """Puts each row into every state, in the void namespace and in a window. An amount of 0 clears the key."""

    def open(self, context: Any) -> None:
        self.value = context.get_state(VALUE)
        self.list = context.get_list_state(LIST)
        self.map = context.get_map_state(MAP)
        self.reducing = context.get_reducing_state(REDUCING)
        self.aggregating = context.get_aggregating_state(AGGREGATING)
        self.json_value = context.get_state(JSON_VALUE)
        self.json_list = context.get_list_state(JSON_LIST)
        self.json_map = context.get_map_state(JSON_MAP)
        self.hidden = context.get_state(ValueStateDescriptor("hidden", bytes))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        for namespace in (None, window_of(row.amount)):
            self._put(row.key, row.amount, namespace)
        self.hidden.update(b"not queried")
        yield row.key, row.amount

    def _put(self, key: str, amount: int, namespace: Any) -> None:
        states = [
            state.in_namespace(namespace)
            for state in (self.value, self.list, self.map, self.reducing, self.aggregating)
        ]
        value, elements, entries, reducing, aggregating = states
        json_value, json_list, json_map = (
            state.in_namespace(namespace) for state in (self.json_value, self.json_list, self.json_map)
        )
        if amount == 0:
            for state in (*states, json_value, json_list, json_map):
                state.clear()
            return
        value.update(Order(key, [amount, -amount]))
        elements.add((amount, key))
        entries.put(f"entry {amount % 4}", amount / 3)
        if amount % 5 == 0:
            entries.remove("entry 1")
        reducing.add(amount)
        aggregating.add(amount)
        json_value.update({"amount": amount, "key": key})
        json_list.add({"n": amount})
        json_map.put(amount % 3, [amount])


class Hidden(KeyedProcessFunction):
    """Has a state that cannot be queried."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", int))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.last.update(row.amount)
        yield row.key, row.amount


class FloatTotals(KeyedProcessFunction):
    """`tests.runtime.job.functions.Totals` with float totals and one more state."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", float, reduce_function=add).queryable("totalAmount")
        )
        self.last = context.get_state(ValueStateDescriptor("last", int).queryable("lastAmount"))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.total.add(float(row.amount))
        self.last.update(row.amount)
        yield row.key, row.amount
