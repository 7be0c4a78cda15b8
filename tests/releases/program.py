"""The program whose state each release leaves behind: every kind of state, operator state and timers.

It does not change: what an earlier release stored with it, the tests restore with it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.operators.checkpointed import ListCheckpointed
from qstate.operators.functions import KeyedProcessFunction
from tests.functions import Mean, add

__all__ = ["EveryKind"]

#: 2100, in milliseconds: no test sees this timer fire, or a value with such a time-to-live expire.
LATER_MS = 4_102_444_800_000
CENTURY = timedelta(days=36_500)


class EveryKind(KeyedProcessFunction, ListCheckpointed):
    """Keeps the amounts of a key in states of all kinds, and counts rows in an attribute."""

    def __init__(self) -> None:
        self._rows = 0

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int).queryable("lastAmount"))
        self.list = context.get_list_state(ListStateDescriptor("list", int).queryable("amounts"))
        self.map = context.get_map_state(MapStateDescriptor("map", int).queryable("counts"))
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", list, aggregate_function=Mean()).queryable("meanAmount")
        )
        self.kept = context.get_state(ValueStateDescriptor("kept", str, ttl=StateTtl(CENTURY)).queryable("lastText"))

    def process_element(self, row: Any, context: Any) -> None:
        self._rows += 1
        self.value.update(row.amount)
        self.value.in_namespace(("parity", row.amount % 2)).update(row.amount)
        self.list.add(row.amount)
        self.map.put(f"amount {row.amount}", self._rows)
        self.total.add(row.amount)
        self.mean.add(row.amount)
        self.kept.update(f"text {row.amount}")
        context.timers.register_processing_time(LATER_MS)

    def on_timer(self, timestamp: int, context: Any) -> None:
        raise AssertionError("the timer is for 2100")

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self._rows]

    def restore_state(self, state: list[int]) -> None:
        self._rows = sum(state)
