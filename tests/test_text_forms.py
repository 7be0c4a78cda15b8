"""Keys, namespaces and values as JSON types. tests/cli has the laws of their texts."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from qstate.errors import ConfigError, WrongKeyType
from qstate.keys import ColumnType, Key, check_column
from qstate.values.text_forms import (
    StateTypes,
    key_form,
    key_of,
    map_key_form,
    namespace_form,
    parse_namespace,
    printable,
)

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


@pytest.mark.parametrize("form", [1.5, 7.0, "x", True, 2**64, None, "7_0", "\u0667"])
def test_json_that_is_no_whole_number_is_refused(form: Any) -> None:
    with pytest.raises(ConfigError, match="of type bigint: write it as a whole number"):
        key_of(form, [ColumnType.BIGINT])


@pytest.mark.parametrize("form", [1.5, "1_0.50", "\u0667.50"])
def test_what_is_no_decimal_as_text_is_refused(form: Any) -> None:
    with pytest.raises(ConfigError, match="a number of type decimal"):
        key_of(form, [check_column(Decimal("12.50"))])


def test_a_key_of_too_few_or_too_many_columns_is_refused() -> None:
    for form in ([], [1, True]):
        with pytest.raises(ConfigError, match="the key has 1 column"):
            key_of(form, [ColumnType.BIGINT])


@pytest.mark.parametrize("namespace", [None, "a", "1", 5, b"\xff", date(2020, 1, 2), MOMENT, Decimal("1.5"), ("a", 1)])
def test_a_namespace_comes_back_from_its_json(namespace: Any) -> None:
    assert parse_namespace(json.dumps(namespace_form(namespace))) == namespace


def test_floats_that_json_lacks_are_text() -> None:
    assert printable([float("nan"), float("inf"), float("-inf"), 1.5]) == ["NaN", "Infinity", "-Infinity", 1.5]


@pytest.mark.parametrize(
    ("types", "text", "namespace"),
    [
        ("string", "2020-12-31", "2020-12-31"),
        ("string", '"2020-12-31"', "2020-12-31"),
        ("string", "123", "123"),
        ("string", '"123"', "123"),
        ("string", "true", "true"),
        ("string", "[1]", "[1]"),
        ("string", '{"date": "2020-12-31"}', '{"date": "2020-12-31"}'),
        ("string", "NaN", "NaN"),
        ("string", "null", None),
        ("string", '"null"', "null"),
        ("bigint", "123", 123),
        ("bigint", '"123"', 123),
        ("bigint", "null", None),
        ("boolean", "true", True),
        ("binary", "00ff", b"\x00\xff"),
        ("binary", '{"binary": "00ff"}', b"\x00\xff"),
        ("date", "2020-12-31", date(2020, 12, 31)),
        ("date", '{"date": "2020-12-31"}', date(2020, 12, 31)),
        ("timestamp", "2020-12-31T23:59:59.123456Z", MOMENT),
        ("decimal(38,2)", "1.5", Decimal("1.50")),
        ("decimal(38,2)", '{"decimal": "1.5"}', Decimal("1.50")),
        ("decimal(38,2)", "2", Decimal("2.00")),
        ("string bigint", '["a", 1]', ("a", 1)),
        ("string date", '["1", "2020-12-31"]', ("1", date(2020, 12, 31))),
        (None, "123", 123),
        (None, '"123"', "123"),
        (None, "NaN", "NaN"),
        (None, "a", "a"),
    ],
)
def test_a_namespace_is_of_the_types_of_the_state(types: str | None, text: str, namespace: Any) -> None:
    found = parse_namespace(text, None if types is None else [ColumnType(one) for one in types.split()])
    assert (type(found), found) == (type(namespace), namespace)


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ("bigint", "a"),
        ("bigint", "1.5"),
        ("bigint", "true"),
        ("date", "1"),
        ("date", '{"timestamp": "2020-12-31T00:00:00Z"}'),
        ("string", None),
        ("string bigint", '["a", 1, 2]'),
        ("string bigint", "a"),
        ("string bigint", '[1, "1"]'),
    ],
)
def test_a_namespace_of_other_types_is_refused(types: str, text: str | None) -> None:
    with pytest.raises((ConfigError, WrongKeyType)):
        parse_namespace(text or '"\\ud800"', [ColumnType(one) for one in types.split()])


MAP_KEYS = [1, "1", b"1", "b'1'", "MQ==", "31", ("1", 1), "('1', 1)", date(2020, 1, 2), "2020-01-02", MOMENT]


def test_no_entry_of_a_map_is_lost_in_json() -> None:
    entries = {key: str(at) for at, key in enumerate(MAP_KEYS)}
    pairs = json.loads(json.dumps(printable(entries)))
    assert {parse_namespace(json.dumps(key)): value for key, value in pairs} == entries


def test_keys_of_any_class_are_told_apart_in_json() -> None:
    some = UUID(int=5), "00000000-0000-0000-0000-000000000005", timedelta(1), "1 day, 0:00:00"
    keys = [*some, None, "None", "null", float("nan"), "NaN", float("inf"), 1.5, "1.5", Decimal("2.5"), True, "True"]
    assert len({json.dumps(key) for key, _ in printable(dict.fromkeys(keys))}) == len(keys)


@pytest.mark.parametrize("entries", [{}, {"a": 1, "1": 2}])
def test_a_map_of_text_is_an_object(entries: Any) -> None:
    assert printable(entries) == entries
    assert printable([{"within": entries}]) == [{"within": entries}]


def test_a_map_key_has_the_form_that_is_typed() -> None:
    assert [map_key_form(key) for key in ("a", 5, b"\xff", ("a", 5))] == ["a", 5, {"binary": "ff"}, ["a", 5]]


@pytest.mark.parametrize(
    ("declared", "text", "key"),
    [
        ("str", "123", "123"),
        ("int", "-5", -5),
        ("bytes", "ff", b"\xff"),
        ("bool", "true", True),
        ("date", "2020-01-02", date(2020, 1, 2)),
        ("date", '{"date": "2020-01-02"}', date(2020, 1, 2)),
        ("datetime", "2020-12-31T23:59:59.123456Z", MOMENT),
        ("object", "2020-01-02", "2020-01-02"),
    ],
)
def test_a_map_key_is_typed_as_text_of_its_declared_type(declared: str, text: str, key: Any) -> None:
    types = StateTypes.of({"key_types": ["string"], "map_key_type": declared})
    assert parse_namespace(text, types.map_keys, "map key") == key
