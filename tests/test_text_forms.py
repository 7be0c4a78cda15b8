"""Keys, namespaces and values as JSON types. tests/cli has the laws of their texts."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from qstate.errors import ConfigError
from qstate.keys import ColumnType, Key, check_column
from qstate.values.text_forms import key_form, key_of, namespace_form, parse_namespace, printable

MOMENT = datetime(2020, 12, 31, 23, 59, 59, 123456, timezone.utc)
KEYS: list[tuple[Key, Any]] = [
    ("JFK", "JFK"),
    ("1", "1"),
    (1545, 1545),
    (2**53 - 1, 2**53 - 1),
    (2**53, "9007199254740992"),
    (-(2**63), "-9223372036854775808"),
    (b"\x00\xff", "00ff"),
    (True, True),
    (date(2020, 12, 31), "2020-12-31"),
    (MOMENT, "2020-12-31T23:59:59.123456+00:00"),
    (Decimal("12.50"), "12.50"),
    (("EWR", 1545), ["EWR", 1545]),
]


@pytest.mark.parametrize(("key", "form"), KEYS)
def test_a_key_comes_back_from_its_json(key: Key, form: Any) -> None:
    types = [check_column(column) for column in (key if isinstance(key, tuple) else (key,))]
    assert key_form(key) == form
    assert key_of(json.loads(json.dumps(form)), types) == key


@pytest.mark.parametrize("form", [1, 1.5, None, {}, True, ["a", "b"], [["a"]]])
def test_json_that_is_no_key_of_text_is_refused(form: Any) -> None:
    with pytest.raises(ConfigError):
        key_of(form, [ColumnType.STRING])


@pytest.mark.parametrize("form", [1.5, "x", True, 2**64, None, []])
def test_json_that_is_no_whole_number_is_refused(form: Any) -> None:
    with pytest.raises(ConfigError):
        key_of(form, [ColumnType.BIGINT])


@pytest.mark.parametrize("namespace", [None, "a", "1", 5, b"\xff", date(2020, 1, 2), MOMENT, Decimal("1.5"), ("a", 1)])
def test_a_namespace_comes_back_from_its_json(namespace: Any) -> None:
    assert parse_namespace(json.dumps(namespace_form(namespace))) == namespace


def test_floats_that_json_lacks_are_text() -> None:
    assert printable([float("nan"), float("inf"), float("-inf"), 1.5]) == ["NaN", "Infinity", "-Infinity", 1.5]
