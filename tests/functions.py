"""Functions of states that many tests use."""

from __future__ import annotations

from qstate.descriptors import AggregateFunction


def add(one: int, other: int) -> int:
    return one + other


class Mean(AggregateFunction[float, list[float], float]):
    """The mean; its accumulator is [sum, count], and an empty one has no mean."""

    def create_accumulator(self) -> list[float]:
        return [0, 0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1]]
