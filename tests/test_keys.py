"""Keys of every type: what is a key, its encoding, and its form on the wire."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import WrongKeyType
from qstate.keys import (
    ColumnType,
    Key,
    check_column,
    check_key,
    decode_extension,
    decode_key,
    decode_keys,
    encode_key,
    key_hash,
    key_identity,
)

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)

moments = st.datetimes(timezones=st.just(timezone.utc)).map(lambda found: found.replace(fold=0))
decimals = st.builds(
    lambda unscaled, scale: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)),
    st.integers(1 - 10**38, 10**38 - 1),
    st.integers(0, 38),
)
columns = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.dates(),
    moments,
    decimals,
)
keys = columns | st.lists(columns, min_size=2, max_size=4).map(tuple)


@given(keys)
def test_a_key_comes_back_from_its_encoding_equal_and_of_equal_types(key: Key) -> None:
    check_key(key)
    assert repr(decode_key(encode_key(key))) == repr(key)
    assert repr(decode_keys([encode_key(key)] * 2)) == repr((key, key))


@given(columns, columns)
def test_equal_bytes_are_equal_types_and_values(one: Any, other: Any) -> None:
    same = type(one) is type(other) and one == other and check_column(one) is check_column(other)
    assert (encode_key(one) == encode_key(other)) is same
    assert (key_identity(one) == key_identity(other)) is same


def test_a_moment_is_one_key_in_any_time_zone() -> None:
    for hours in (-11, 0, 9):
        moment = NOON.astimezone(timezone(timedelta(hours=hours)))
        assert (encode_key(moment), key_hash(moment)) == (encode_key(NOON), key_hash(NOON))
        assert decode_key(encode_key(moment)) == NOON


def test_zero_has_no_sign() -> None:
    assert encode_key(Decimal("-0.00")) == encode_key(Decimal("0.00"))
    assert key_hash(Decimal("-0.00")) == key_hash(Decimal("0.00"))


def test_a_decimal_is_exact_whatever_the_precision_of_the_context_is() -> None:
    number = Decimal("1234567890123456789012345678901234567.8")
    exact = encode_key(number), key_hash(number), check_column(number)
    with localcontext() as context:
        context.prec = 3
        assert (encode_key(number), key_hash(number), check_column(number)) == exact
    assert exact[2] is ColumnType("decimal(38,1)")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (1.5, "string, binary, bigint, boolean, date, timestamp or decimal"),
        (None, "string, binary"),
        (datetime(2013, 1, 1), "a datetime with a time zone"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "years 1 to 9999"),
        (Decimal("NaN"), "0 to 38 decimals"),
        (Decimal("Infinity"), "0 to 38 decimals"),
        (Decimal("1E+2"), "0 to 38 decimals"),
        (Decimal("1E-39"), "0 to 38 decimals"),
        (Decimal(10**38), "at most 38 digits"),
        (Decimal("1" * 5000), "at most 38 digits"),
        (("a", [1]), "string, binary"),
    ],
    ids=lambda found: repr(found)[:40],
)
def test_what_is_no_key_is_refused(key: Any, expected: str) -> None:
    with pytest.raises(WrongKeyType, match=expected):
        check_key(key)


def test_decimals_of_another_scale_are_of_another_type() -> None:
    types = [ColumnType.decimal(2)]
    check_key(Decimal("1.50"), types)
    with pytest.raises(WrongKeyType, match=r"decimal\(38,2\).*decimal\(38,1\)"):
        check_key(Decimal("1.5"), types)
    with pytest.raises(WrongKeyType):
        check_key(True, [ColumnType.BIGINT])
    with pytest.raises(WrongKeyType):
        check_key(1, [ColumnType.BOOLEAN])


@given(st.one_of(st.dates(), moments, decimals), st.booleans())
def test_an_extension_type_is_read_in_any_of_its_forms(column: Any, long: bool) -> None:
    data = encode_key(column)
    if long:
        found = msgpack.unpackb(data, timestamp=0)
        code, payload = (-1, found.to_bytes()) if isinstance(found, msgpack.Timestamp) else (found.code, found.data)
        if isinstance(found, msgpack.Timestamp):
            payload = found.nanoseconds.to_bytes(4, "big") + found.seconds.to_bytes(8, "big", signed=True)
        data = b"\xc9" + len(payload).to_bytes(4, "big") + code.to_bytes(1, "big", signed=True) + payload
    assert repr(decode_extension(data)) == repr(column)


@pytest.mark.parametrize(
    ("code", "payload"),
    [
        (3, b"2013-1-1"), (3, b"20130101"), (3, b"2013-02-30"), (3, b"2013-W01-1"), (3, b""), (3, b"\xff"),
        (4, b"1e5"), (4, b"01"), (4, b".5"), (4, b"1."), (4, b"+1"), (4, b"-0"), (4, b"-0.0"), (4, b"1_0"), (4, b"NaN"),
        (4, b" 1"), (4, b"1" * 39), (4, b"1" * 1_000_000), (4, "\u0661".encode()),
        (-1, b"\x00" * 5), (-1, (1).to_bytes(4, "big") + bytes(8)), (-1, bytes(4) + (2**62).to_bytes(8, "big")),
        (1, b"\x90"), (2, b"2013-01-01T00:00:00"), (5, b"\x00" * 16), (99, b""),
    ],
)  # fmt: skip
def test_another_extension_type_or_payload_is_refused(code: int, payload: bytes) -> None:
    data = b"\xc9" + len(payload).to_bytes(4, "big") + code.to_bytes(1, "big", signed=True) + payload
    with pytest.raises(WrongKeyType):
        decode_extension(data)


def test_each_type_has_the_name_that_spark_sql_gives_it() -> None:
    assert [kind.value for kind in ColumnType][:6] == ["string", "binary", "bigint", "boolean", "date", "timestamp"]
    assert [kind.value for kind in ColumnType][6:] == [f"decimal(38,{scale})" for scale in range(39)]
    assert [kind.name for kind in ColumnType if kind.widened][:2] == ["BIGINT", "DECIMAL_0"]
