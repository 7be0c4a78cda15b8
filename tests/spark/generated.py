"""Generated input for the Spark tests, and its expected state, computed in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa


def amounts(batches: int, rows_a_batch: int, keys: int, seed: int = 7) -> list[pa.Table]:
    """Tables of (key, label, amount, at); `at` counts the rows, so it orders each key's rows."""
    rng = random.Random(seed)
    tables = []
    for number in range(batches):
        first = number * rows_a_batch
        tables.append(
            pa.Table.from_pylist(
                [
                    {
                        "key": f"k{rng.randrange(keys)}",
                        "label": rng.choice("abc"),
                        "amount": rng.randrange(1000),
                        "at": first + i,
                    }
                    for i in range(rows_a_batch)
                ]
            )
        )
    return tables


def totals(tables: list[pa.Table]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for table in tables:
        for row in table.to_pylist():
            counted[row["key"]] += row["amount"]
    return dict(counted)


def five_kinds(tables: list[pa.Table]) -> dict[str, dict[str, Any]]:
    """The state that `FiveKinds` must end with."""
    state: dict[str, dict[str, Any]] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        held = state.setdefault(row["key"], {"recent": [], "visits": Counter(), "total": 0, "count": 0})
        held["last"] = {"label": row["label"], "amount": row["amount"]}
        held["recent"] = [*held["recent"], row["amount"]][-10:]
        held["visits"][row["label"]] += 1
        held["total"] += row["amount"]
        held["count"] += 1
    return state
