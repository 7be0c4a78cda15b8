"""Errors of users: the message names the cause, the query stops cleanly, and the state is intact."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType

from qstate.descriptors import ValueStateDescriptor
from qstate.errors import ConfigError, JobError
from qstate.spark import Job
from qstate.spark.keyed_stream import KeyedStream
from qstate.spark.plan.columns import StreamColumns
from tests.spark.functions_under_test import Raises, SameQueryableName, Total, Unpicklable, WrongColumns
from tests.spark.streams import run_to_end

SCHEMA = "key string, total bigint"


def rows(*amounts: int, key: str | None = "a") -> pa.Table:
    return pa.table(
        {
            "key": pa.array([key] * len(amounts), pa.string()),
            "amount": pa.array(amounts, pa.int64()),
            "at": pa.array(range(len(amounts)), pa.int64()),
            "ratio": pa.array([0.5] * len(amounts), pa.float64()),
        }
    )


def test_an_unknown_column_is_named(spark: Any, stream_of: Any, job_of: Any) -> None:
    stream = stream_of(spark, rows(1)).read()
    with pytest.raises(JobError, match=r"no column 'kex'; the stream has key, amount, at, ratio"):
        job_of(spark).key_by(stream, "kex")
    with pytest.raises(JobError, match=r"order_by.*'when'"):
        job_of(spark).key_by(stream, "key").process(Total(), SCHEMA, uid="total", order_by="when")


def test_a_float_key_is_refused_before_the_query_starts(spark: Any, stream_of: Any, job_of: Any) -> None:
    stream = stream_of(spark, rows(1)).read()
    with pytest.raises(JobError, match=r"'ratio' is double.*-0\.0.*cast"):
        job_of(spark).key_by(stream, "ratio").process(Total(), SCHEMA, uid="total")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Total, SCHEMA), r"process\(\) needs a function object, got the class: write Total\(\.\.\.\)"),
        (
            (print, SCHEMA),
            "process.. needs a KeyedProcessFunction or a KeyedBatchFunction, got <built-in function print>",
        ),
        ((Total(), "key nonsense("), "output_schema cannot be read: 'key nonsense.*expected is 'sensor string"),
        ((Total(), ""), "output_schema needs at least one column"),
        ((Total(), ["key"]), r"output_schema needs at least one column, .* got \['key'\]"),
    ],
    ids=["class", "function", "schema", "no schema", "list"],
)
def test_an_argument_of_process_that_cannot_be_one_is_named(
    arguments: tuple[Any, Any], message: str, spark: Any, stream_of: Any, job_of: Any
) -> None:
    keyed = job_of(spark).key_by(stream_of(spark, rows(1)).read(), "key")
    with pytest.raises(JobError, match=message):
        keyed.process(*arguments, uid="total")


def test_other_arguments_that_cannot_be_what_they_should_are_named(spark: Any, stream_of: Any, job_of: Any) -> None:
    job, stream = job_of(spark), stream_of(spark, rows(1)).read()
    with pytest.raises(JobError, match="key_by takes a streaming DataFrame and its key columns, got 'key'"):
        job.key_by("key")
    keyed = job.key_by(stream, "key")
    with pytest.raises(JobError, match="a uid is text, got 5"):
        keyed.process(Total(), SCHEMA, uid=5)
    with pytest.raises(JobError, match="needs a ValueStateDescriptor as its state, got 'total'"):
        keyed.flat_map_with_state(lambda row, value: ([], value), SCHEMA, uid="total", state="total")
    with pytest.raises(JobError, match=r"trigger must be a dict of Spark's trigger arguments, .*got 'availableNow'"):
        keyed.as_queryable_state("last", uid="last").start(trigger="availableNow")
    with pytest.raises(ConfigError, match=r"a job name has 1 to 128 letters.* got 5"):
        Job(spark, 5)  # type: ignore[arg-type]


class LastValue:
    """A function(row, value), once an object is made of it."""

    def __call__(self, row: Any, value: Any) -> tuple[list[Any], Any]:
        return [], row


#: These checks come before whatever a session is needed for.
WITHOUT_A_SESSION = KeyedStream.__new__(KeyedStream)
WITHOUT_A_SESSION._stream = None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (LastValue, r"needs a function object, got the class: write LastValue\(\.\.\.\)"),
        (dict, r"needs a function object, got the class: write dict\(\.\.\.\)"),
        (5, r"needs a function\(row, value\), got 5"),
        (Total(), r"needs a function\(row, value\), got <"),
    ],
)
def test_a_function_of_flat_map_that_cannot_be_one_is_named(function: Any, message: str) -> None:
    with pytest.raises(JobError, match=r"flat_map_with_state\(\) " + message):
        WITHOUT_A_SESSION.flat_map_with_state(function, SCHEMA, uid="last", state=ValueStateDescriptor("last"))


@pytest.mark.parametrize("columns", [5, None, 1.5, b"key", [5], (None,), {5: 6}], ids=repr)
def test_argument_that_is_not_a_column_is_named(columns: Any) -> None:
    with pytest.raises(JobError, match=r"order_by takes column names and Columns, got "):
        StreamColumns.__new__(StreamColumns).resolve("order_by", columns)


@pytest.mark.parametrize("column", [5, None, ["at"], b"at"])
def test_event_time_column_that_is_not_a_name_is_reported(column: Any) -> None:
    schema = StructType([StructField("at", TimestampType())])
    with pytest.raises(JobError, match=r"event_time_column takes the name of a column of output_schema, got "):
        WITHOUT_A_SESSION.process(Total(), schema, uid="total", event_time_column=column)


def test_an_unpicklable_function_is_named(spark: Any, stream_of: Any, job_of: Any) -> None:
    stream = stream_of(spark, rows(1)).read()
    with pytest.raises(JobError, match=r"'lock-holder': Unpicklable cannot be pickled.*lock"):
        job_of(spark).key_by(stream, "key").process(Unpicklable(), SCHEMA, uid="lock-holder")


def test_of_two_operators_with_one_uid_the_first_cannot_be_started(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    keyed = job_of(spark).key_by(stream_of(spark, rows(1)).read(), "key")
    first = keyed.process(Total(), SCHEMA, uid="total")
    second = keyed.process(Total(), SCHEMA, uid="total")
    with pytest.raises(StreamingQueryException, match="Two operators need a uid each"):
        run_to_end(first, tmp_path / "first")
    assert [tuple(row) for row in run_to_end(second, tmp_path / "second")] == [("a", 1)]


def test_an_operator_without_uid_gets_one_and_a_warning_that_says_why_to_set_it(
    spark: Any, stream_of: Any, job_of: Any
) -> None:
    job = job_of(spark)
    keyed = job.key_by(stream_of(spark, rows(1)).read(), "key", "at")
    for uid in ("Total by key, at", "Total by key, at 2"):
        with pytest.warns(UserWarning, match=f"without uid is called '{uid}': its state is lost when"):
            keyed.process(Total(), SCHEMA)
        assert job.manager.has_operator(uid)


def test_an_unknown_setting_or_backend_lists_the_valid_ones(spark: Any, job_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'backnd'; did you mean 'backend'\?"):
        job_of(spark, backnd="heap")
    with pytest.raises(ConfigError, match=r"'redis'.*heap.*rocksdb"):
        job_of(spark, backend="redis")


def test_invalid_ports_are_refused_before_anything_starts(spark: Any, job_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"ports are 0 to 65535.*'70000'"):
        job_of(spark, proxy_ports="9069,70000")
    with pytest.raises(ConfigError, match=r"ports must be a list of ports and ranges.*'any'"):
        job_of(spark, server_ports="any")


@pytest.mark.parametrize("session", [None, "sc://localhost", SparkSession], ids=["none", "text", "class"])
def test_session_that_is_none_is_refused(session: Any) -> None:
    with pytest.raises(ConfigError, match="a job needs a SparkSession, got "):
        Job(session, "job")


@pytest.mark.parametrize(
    ("table", "function", "culprit"),
    [
        (rows(1, 2, key=None), Total(), r"column 'key' is null in 2 of 2 rows"),
        (rows(1, -5), Raises(), r"operator 'it', function Raises, key 'a': ValueError: amount -5 is negative"),
        (rows(1), WrongColumns(), r"operator 'it', function WrongColumns.*row 0 has 3 columns, expected 2"),
        (rows(1), SameQueryableName(), r"'one' and 'other' have the same queryable name 'same'"),
    ],
    ids=["null key", "function raises", "wrong columns", "one queryable name twice"],
)
def test_a_running_query_stops_with_the_culprit_named(
    table: pa.Table, function: Any, culprit: str, spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    result = job_of(spark).key_by(stream_of(spark, table).read(), "key").process(function, SCHEMA, uid="it")
    with pytest.raises(StreamingQueryException, match=culprit):
        run_to_end(result, tmp_path / "checkpoint")


@pytest.mark.parametrize("sink", ["noop", "foreachBatch"])
def test_the_traceback_of_the_function_comes_before_what_spark_adds(
    sink: str, spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(spark, rows(1, -5))
    result = job_of(spark).key_by(stream.read(), "key").process(Raises(), SCHEMA, uid="it")
    with pytest.raises(StreamingQueryException) as caught:
        if sink == "foreachBatch":
            run_to_end(result, tmp_path / "checkpoint")
        else:
            result.writeStream.format(sink).trigger(availableNow=True).start().awaitTermination()
    shown = str(caught.value)
    words = (
        "qstate.errors.JobError: operator 'it', function Raises, key 'a': ValueError: amount -5 is negative\n"
        "Traceback (most recent call last):\n  File "
    )
    before, _, after = shown.partition(words)
    assert after, shown
    assert re.search(r"thrown from the Python worker:\s$", before), "nothing of the worker's stands before it"
    assert re.match(r'".*/functions_under_test.py", line \d+, in process_element\n    raise ValueError', after)
    assert "=== Streaming Query ===" in after
    assert "relay" not in shown.partition("Logical Plan")[0]


def test_a_queryable_name_of_another_operator_is_refused(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    job = job_of(spark)
    keyed = job.key_by(stream_of(spark, rows(1)).read(), "key")
    run_to_end(keyed.process(Total(), SCHEMA, uid="first"), tmp_path / "first")
    with pytest.raises(
        StreamingQueryException, match=r"'totalAmount': one of operator 'first' and one of operator 'second'"
    ):
        run_to_end(keyed.process(Total(), SCHEMA, uid="second"), tmp_path / "second")


def test_the_state_is_intact_after_a_function_raised(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    job = job_of(spark)
    stream = stream_of(spark, rows(1, 2, 3), rows(10, -5))
    result = job.key_by(stream.read(), "key").process(Raises(), SCHEMA, uid="raises")
    with pytest.raises(StreamingQueryException, match="amount -5 is negative"):
        run_to_end(result, tmp_path / "checkpoint")
    assert client_of(job).get("job", "totalAmount", "a").value() == 6


def test_a_second_query_on_one_operator_is_refused(spark: Any, stream_of: Any, job_of: Any, tmp_path: Path) -> None:
    result = job_of(spark).key_by(stream_of(spark, rows(1)).read(), "key").process(Total(), SCHEMA, uid="total")
    run_to_end(result, tmp_path / "one")
    with pytest.raises(StreamingQueryException, match=r"operator 'total' is driven by streaming query .* already"):
        run_to_end(result, tmp_path / "other")


#: A program that was written for a shell: the driver gets its existing session.
STARTS_SPARK = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

from tests.spark.functions_under_test import Total


class OwnTotal(Total):
    pass
"""


def test_a_module_that_starts_spark_when_imported_stops_the_query_at_once(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    (tmp_path / "starts_spark.py").write_text(STARTS_SPARK)
    spark.sparkContext.addPyFile(str(tmp_path / "starts_spark.py"))
    function = importlib.import_module("starts_spark").OwnTotal()
    result = job_of(spark).key_by(stream_of(spark, rows(1)).read(), "key").process(function, SCHEMA, uid="total")
    with pytest.raises(
        StreamingQueryException, match=r"module 'starts_spark' \(.*, line 4\) starts Spark in a task man"
    ):
        run_to_end(result, tmp_path / "checkpoint")


def test_merged_partitions_are_refused(spark: Any, stream_of: Any, job_of: Any, tmp_path: Path) -> None:
    keys = pa.table({"key": [f"k{i}" for i in range(100)], "amount": [1] * 100, "at": list(range(100))})
    result = job_of(spark).key_by(stream_of(spark, keys).read(), "key").process(Total(), SCHEMA, uid="total")
    with pytest.raises(StreamingQueryException, match=r"merged its partitions, such as coalesce\(\)"):
        run_to_end(result.coalesce(1), tmp_path / "checkpoint")
