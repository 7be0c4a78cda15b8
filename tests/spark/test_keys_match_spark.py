"""A key has the group that Spark SQL computes for it: thousands of generated keys, compared with Spark itself."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from qstate.keys import ColumnType, Key, check_key, key_group, key_hash
from tests.spark.functions_under_test import Total
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end

KEYS_A_TYPE = 4000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EDGES = [0, 1, -1, 127, 128, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


def texts(rng: random.Random) -> list[str]:
    alphabet = string.printable + "äöüß€語🛩\x00\u200b"
    made = ["".join(rng.choices(alphabet, k=rng.randrange(70))) for _ in range(KEYS_A_TYPE)]
    return ["", "a", "N14228", "x" * 31, "x" * 32, "x" * 33, "é" * 100, *made]


def binaries(rng: random.Random) -> list[bytes]:
    return [b"", b"\x00", *(rng.randbytes(rng.randrange(100)) for _ in range(KEYS_A_TYPE))]


def integers(rng: random.Random) -> list[int]:
    return [*EDGES, *(rng.randrange(-(2**63), 2**63) for _ in range(KEYS_A_TYPE))]


def days(rng: random.Random) -> list[date]:
    return [date.min, date.max, date(1970, 1, 1), date(1969, 12, 31), *(_day(rng) for _ in range(KEYS_A_TYPE))]


def _day(rng: random.Random) -> date:
    return date.fromordinal(rng.randrange(1, date.max.toordinal()))


def moments(rng: random.Random) -> list[datetime]:
    edges = [EPOCH, EPOCH - timedelta(microseconds=1), EPOCH.replace(year=9998), EPOCH.replace(year=2)]
    made = [EPOCH + timedelta(microseconds=rng.randrange(-(6 * 10**16), 2 * 10**17)) for _ in range(KEYS_A_TYPE)]
    return [*edges, *made]


def decimals(digits: int, scale: int) -> Callable[[random.Random], list[Decimal]]:
    """Numbers of at most so many digits, with edges of the bytes that hold them."""

    def generate(rng: random.Random) -> list[Decimal]:
        most = 10**digits - 1
        edges = {sign * (1 << bits) + step for bits in range(127) for step in (-1, 0, 1) for sign in (1, -1)}
        made = [0, most, -most, *(rng.randrange(-most, most) for _ in range(KEYS_A_TYPE))]
        found = [*(edge for edge in edges if abs(edge) <= most), *made]
        return [Decimal(f"{number}E-{scale}") if scale else Decimal(number) for number in found]

    return generate


@pytest.mark.parametrize(
    ("columns", "generate"),
    [
        (["string"], lambda rng: texts(rng)),
        (["binary"], lambda rng: binaries(rng)),
        (["bigint"], lambda rng: integers(rng)),
        (
            ["string", "bigint", "binary"],
            lambda rng: list(zip(texts(rng), integers(rng), binaries(rng), strict=False)),
        ),
        (["boolean"], lambda rng: [True, False]),
        (["date"], days),
        (["timestamp"], moments),
        (["decimal(38,2)"], decimals(38, 2)),
        (["decimal(38,0)"], decimals(38, 0)),
        (["decimal(38,38)"], decimals(38, 38)),
        (
            ["timestamp", "boolean", "date", "decimal(38,2)"],
            lambda rng: list(zip(moments(rng), [True, False] * 2000, days(rng), decimals(38, 2)(rng), strict=False)),
        ),
    ],
    ids=lambda columns: " ".join(columns) if isinstance(columns, list) else "",
)
def test_hash_and_group_are_sparks(columns: list[str], generate: Any, spark: Any) -> None:
    keys: list[Key] = generate(random.Random(42))
    assert check_key(keys[0], [ColumnType(kind) for kind in columns]) is None
    rows = [key if isinstance(key, tuple) else (key,) for key in keys]
    schema = ", ".join(f"c{i} {kind}" for i, kind in enumerate(columns))
    hashed = F.xxhash64(*(f"c{i}" for i in range(len(columns))))
    frame = spark.createDataFrame(rows, schema).select(
        hashed.alias("hash"), *(F.pmod(hashed, F.lit(groups)).alias(f"of{groups}") for groups in (1, 128, 1000, 32768))
    )
    for key, found in zip(keys, frame.collect(), strict=True):
        assert key_hash(key) == found["hash"] % 2**64, key
        for groups in (1, 128, 1000, 32768):
            assert key_group(key, groups) == found[f"of{groups}"], (key, groups)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False]),
        ("date", [date(2013, 7, 18), date(1969, 12, 31), date(1, 1, 1)]),
        ("timestamp", [EPOCH, datetime(2013, 7, 18, 5, 30, 0, 123456, timezone.utc)]),
        ("decimal(5,2)", [Decimal("12.50"), Decimal("0.00"), Decimal("-1.28"), Decimal("999.99")]),
        ("decimal(38,3)", [Decimal("12345678901234567890123456789012345.678"), Decimal("-0.001")]),
    ],
)
def test_a_column_of_another_type_is_found_by_its_value(
    kind: str, values: list[Any], spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    """A decimal is found whatever its column's precision is; every type is hashed as Spark SQL hashes it."""
    amounts = list(range(1, len(values) + 1))
    arrow = to_arrow_schema(StructType.fromDDL(f"key {kind}"), timezone="UTC").field("key").type
    table = pa.table({"key": pa.array(values, arrow), "amount": amounts, "at": amounts})
    job = job_of(spark)
    keyed = job.key_by(stream_of(spark, table).read(), "key")
    run_to_end(keyed.process(Total(), f"key {kind}, total bigint", uid="total"), tmp_path / "checkpoint")
    assert_totals(client_of(job), "job", dict(zip(values, amounts, strict=True)))


@pytest.mark.parametrize("width", [pa.int8(), pa.int16(), pa.int32()], ids=str)
def test_a_narrow_integer_column_is_found_by_its_value(
    width: pa.DataType, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    """The edge widens integer key columns before it hashes them, so a client need not know the column's width."""
    edge = 2 ** (width.bit_width - 1)
    values = sorted({0, 1, -1, edge - 1, -edge, *range(-100, 100, 7)})
    table = pa.table({"key": pa.array(values, width), "amount": values, "at": list(range(len(values)))})
    job = job_of(spark)
    keyed = job.key_by(stream_of(spark, table).read(), "key")
    run_to_end(keyed.process(Total(), "key bigint, total bigint", uid="total"), tmp_path / "checkpoint")
    assert_totals(client_of(job), "job", dict(zip(values, values, strict=True)))
