"""The demo's result: compares the answers to clients and the written output with a batch computation.

Rules of this module: it asks through a client, counts and prints; it must not know how either side came about. Numbers
have to be equal exactly: both sides compute them from whole numbers or pass a reading on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from qstate.client import QueryableStateClient
from qstate.demo.data import DataSet
from qstate.demo.expected import Expectation, expected_outputs, expected_states
from qstate.demo.streams import JOB, Streams

__all__ = ["Comparison", "Mismatch", "compare", "report"]

KEYS_PER_REQUEST = 500
SHOWN_MISMATCHES = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key whose state is not as expected."""

    state: str
    namespace: Any
    key: Any
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = f"{self.state}[{self.key!r}]" + (f" in {self.namespace!r}" if self.namespace is not None else "")
        return f"{where}: expected {self.expected!r}, found {self.found!r}"


@dataclass(slots=True)
class Comparison:
    """How many keys were compared, state by state, and which did not match."""

    keys: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.keys.values())


def compare(client: QueryableStateClient, job: str, expectations: Iterable[Expectation]) -> Comparison:
    """Ask for every expected key and compare. Raises what the client raises."""
    comparison = Comparison()
    for wanted in expectations:
        comparison.keys[wanted.state] = comparison.keys.get(wanted.state, 0) + len(wanted.values)
        every = list(wanted.values)
        for start in range(0, len(every), KEYS_PER_REQUEST):
            keys = every[start : start + KEYS_PER_REQUEST]
            views = client.get_many(job, wanted.state, keys, wanted.namespace)
            for key in keys:
                view = views[key]
                expected, found = wanted.values[key], None if view is None else view.contents()
                if not _same(expected, found):
                    comparison.mismatches.append(Mismatch(wanted.state, wanted.namespace, key, expected, found))
    return comparison


def _same(expected: Any, found: Any) -> bool:
    """Equal, and of one type: 1, 1.0 and True are three values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    return type(expected) is type(found) and bool(expected == found)


def report(spark: SparkSession, data: DataSet, streams: Streams, client: QueryableStateClient) -> bool:
    """Compare every key and every output, and print the results; returns whether all are right."""
    comparison = compare(client, JOB, expected_states(spark, data))
    for state, keys in comparison.keys.items():
        print(f"  {state}: {keys:,} keys")
    wrong_outputs = _wrong_outputs(spark, data, streams)
    for mismatch in comparison.mismatches[:SHOWN_MISMATCHES]:
        print(f"  MISMATCH {mismatch}")
    verdict = f"compared {comparison.total:,} keys: {len(comparison.mismatches):,} mismatches"
    if wrong_outputs:
        verdict += f"; wrong number of rows in {' and '.join(wrong_outputs)}"
    print(verdict, flush=True)
    return not comparison.mismatches and not wrong_outputs


def _wrong_outputs(spark: SparkSession, data: DataSet, streams: Streams) -> list[str]:
    """The outputs with a wrong number of rows: each row must be there exactly once."""
    directories = {"alerts": streams.alerts_directory, "late departures": streams.late_departures_directory}
    wrong = []
    for name, expected in expected_outputs(spark, data).items():
        written = spark.read.parquet(str(directories[name])).count()
        print(f"  {name}: {written:,} rows written, {expected:,} expected")
        if written != expected:
            wrong.append(name)
    return wrong
