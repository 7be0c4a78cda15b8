"""Compares queried state with the expected state."""

from __future__ import annotations

from typing import Any


def assert_totals(client: Any, job: str, expected: dict[str, int]) -> None:
    found = client.get_many(job, "totalAmount", list(expected))
    assert {key: view.get() for key, view in found.items()} == expected


def assert_five_kinds(client: Any, job: str, expected: dict[str, dict[str, Any]]) -> None:
    keys = list(expected)
    last = client.get_many(job, "lastRow", keys)
    recent = client.get_many(job, "recentAmounts", keys)
    visits = client.get_many(job, "visitsByLabel", keys)
    total = client.get_many(job, "totalAmount", keys)
    mean = client.get_many(job, "meanAmount", keys)
    for key, held in expected.items():
        assert last[key].value() == held["last"], key
        assert recent[key].get() == held["recent"], key
        assert dict(visits[key].entries()) == dict(held["visits"]), key
        assert total[key].get() == held["total"], key
        assert mean[key].get() == held["total"] / held["count"], key
