"""The hash that identifies an epoch's rows: equal rows have equal hashes, for columns of any type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from qstate.spark.plan.row_hash import row_hash
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals

#: By type: a value, the same value otherwise made, and others; in Spark SQL.
VALUES: dict[str, tuple[str, str, list[str]]] = {
    "boolean": ("true", "1 = 1", ["false", "cast(null as boolean)"]),
    "tinyint": ("1Y", "2Y - 1Y", ["2Y"]),
    "bigint": ("1L", "2L - 1L", ["2L", "cast(null as bigint)"]),
    "double": ("0.5D", "1D / 2", ["0.25D"]),
    "decimal": ("cast(1.50 as decimal(38, 2))", "cast(1.5 as decimal(38, 2))", ["cast(1.51 as decimal(38, 2))"]),
    "string": ("'ab'", "concat('a', 'b')", ["'b'", "''", "cast(null as string)"]),
    "binary": ("X'00'", "unhex('00')", ["X'0000'", "X''"]),
    "date": ("date'2020-01-02'", "date_add(date'2020-01-01', 1)", ["date'2020-01-01'"]),
    "timestamp": (
        "timestamp'2020-01-01 00:00:00'",
        "timestamp_seconds(1577836800)",
        ["timestamp'2020-01-02 00:00:00'"],
    ),
    "time": ("time'12:00:00'", "time'12:00:00.000'", ["time'12:00:01'"]),
    "interval": ("interval '1' day", "interval '24' hour + interval '0' day", ["interval '2' day"]),
    "array": ("array(1, 2)", "sequence(1, 2)", ["array(2, 1)", "array(1)"]),
    "array with nulls": (
        "array(1, null, 2)",
        "concat(array(1, null), array(2))",
        [
            "array(null, 1, 2)",
            "array(1, 2)",
            "array(1, 2, null)",
            "cast(array() as array<int>)",
            "cast(null as array<int>)",
        ],
    ),
    "array of arrays": (
        "array(array(1), array(2))",
        "array(sequence(1, 1), array(2))",
        ["array(array(1, 2))", "array(array(1, 2), array(cast(null as int)))", "array(array(), array(1, 2))"],
    ),
    "array of structs": (
        "array(named_struct('a', 1, 'b', cast(null as int)))",
        "array(named_struct('a', 2 - 1, 'b', cast(null as int)))",
        ["array(named_struct('a', cast(null as int), 'b', 1))", "array(cast(null as struct<a: int, b: int>))"],
    ),
    "struct": ("named_struct('a', 1, 'b', 2)", "named_struct('a', 2 - 1, 'b', 2)", ["named_struct('a', 2, 'b', 1)"]),
    "struct with repeated names": (
        "named_struct('a', 1, 'A', 2, 'b.c', 3)",
        "named_struct('a', 2 - 1, 'A', 2, 'b.c', 3)",
        ["named_struct('a', 2, 'A', 1, 'b.c', 3)", "named_struct('a', 1, 'A', cast(null as int), 'b.c', 2)"],
    ),
    "struct with nulls": (
        "named_struct('a', 1, 'b', cast(null as int))",
        "named_struct('a', 2 - 1, 'b', cast(null as int))",
        [
            "named_struct('a', cast(null as int), 'b', 1)",
            "named_struct('a', cast(null as int), 'b', cast(null as int))",
            "cast(null as struct<a: int, b: int>)",
        ],
    ),
    "map": ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", ["map('a', 2, 'b', 1)", "map('a', 1)", "map('a', null)"]),
    "map of maps": (
        "map('a', map('b', 1, 'c', 2))",
        "map('a', map('c', 2, 'b', 1))",
        ["map('b', map('a', 1, 'c', 2))", "map('a', map('b', 1))"],
    ),
    "map in array in struct": (
        "named_struct('x', array(map('a', 1, 'b', 2)))",
        "named_struct('x', array(map('b', 2, 'a', 1)))",
        ["named_struct('x', array(map('a', 1), map('b', 2)))"],
    ),
    "variant": ('parse_json(\'{"a": 1, "b": 2}\')', 'parse_json(\'{"b":2,"a":1}\')', ["parse_json('{\"a\": 1}')"]),
    "variant of a number": (
        "parse_json('1')",
        "parse_json(' 1')",
        ["parse_json('\"1\"')", "parse_json('null')", "cast(null as variant)"],
    ),
    "variant in map": ("map('a', parse_json('1'))", "map('a', parse_json(' 1'))", ["map('a', parse_json('2'))"]),
    "geometry": (
        "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
        "st_geomfromwkb(unhex('0101000000000000000000F03F0000000000000040'))",
        ["st_geomfromwkb(X'0101000000000000000000F03F000000000000F03F')"],
    ),
}


def hashes(spark: Any, *expressions: str) -> list[int]:
    found = []
    for expression in expressions:
        frame = spark.range(1).selectExpr("'key' as key", f"{expression} as value")
        found.append(frame.select(row_hash(frame.schema)).collect()[0][0])
    return found


@pytest.mark.parametrize("kind", VALUES)
def test_equal_values_have_one_hash_and_others_have_others(kind: str, spark: Any) -> None:
    value, equal, others = VALUES[kind]
    first, second, *different = hashes(spark, value, equal, *others)
    assert first == second
    assert len({first, *different}) == 1 + len(others)


@pytest.mark.parametrize("kind", ["boolean", "int", "bigint"])
def test_a_null_and_a_value_in_exchanged_columns_are_another_row(kind: str, spark: Any) -> None:
    frame = spark.sql(f"select cast(a as {kind}) a, cast(b as {kind}) b from values (1, null), (null, 1) as t(a, b)")
    one, other = (row[0] for row in frame.select(row_hash(frame.schema)).collect())
    assert one != other


def test_names_with_dots_and_quotes_are_columns(spark: Any) -> None:
    frame = spark.createDataFrame([(1, 2)], "`a.b` bigint, `c``d` bigint")
    assert frame.select(row_hash(frame.schema)).collect()


def test_stream_with_maps_and_variants_runs_and_is_replayed(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=200, keys=10)
    stream = stream_of(spark, *tables).read()
    stream = stream.withColumn("attributes", F.create_map("label", F.create_map("key", "amount")))
    stream = stream.withColumn("document", F.parse_json(F.to_json(F.struct("label", "amount"))))
    job = job_of(spark)
    result = job.key_by(stream, "key").process(Total(), "key string, total bigint", uid="total")
    twice = result.writeStream.foreachBatch(lambda batch, _: [batch.collect(), batch.collect()])
    twice.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert_totals(client_of(job), "job", totals(tables))
