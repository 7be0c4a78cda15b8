"""A key has the group that Spark SQL computes for it: thousands of generated keys, compared with Spark itself."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from qstate.keys import Key, key_group, key_hash
from tests.spark.functions_under_test import Total
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end

KEYS_A_TYPE = 4000
EDGES = [0, 1, -1, 127, 128, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


def texts(rng: random.Random) -> list[str]:
    alphabet = string.printable + "äöüß€語🛩\x00\u200b"
    made = ["".join(rng.choices(alphabet, k=rng.randrange(70))) for _ in range(KEYS_A_TYPE)]
    return ["", "a", "N14228", "x" * 31, "x" * 32, "x" * 33, "é" * 100, *made]


def binaries(rng: random.Random) -> list[bytes]:
    return [b"", b"\x00", *(rng.randbytes(rng.randrange(100)) for _ in range(KEYS_A_TYPE))]


def integers(rng: random.Random) -> list[int]:
    return [*EDGES, *(rng.randrange(-(2**63), 2**63) for _ in range(KEYS_A_TYPE))]


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
    ],
    ids=["string", "binary", "bigint", "three columns"],
)
def test_hash_and_group_are_sparks(columns: list[str], generate: Any, spark: Any) -> None:
    keys: list[Key] = generate(random.Random(42))
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
