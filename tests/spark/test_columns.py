"""Columns as Spark resolves them: keys, orders, values and namespaces, for any names of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from qstate.descriptors import ReducingStateDescriptor
from qstate.errors import JobError
from qstate.spark import Job
from tests.functions import add
from tests.spark.functions_under_test import Echo
from tests.spark.streams import FileStream, run_to_end

ECHOED = "key string, row string"

#: One column of each kind that can be taken for another one.
ROWS = pa.table(
    {
        "id": pa.array(["a", "A", "b"]),
        "a": pa.array(["x", "y", "z"]),
        "st": pa.array([{"a": f"in {n}", "at": 3 - n} for n in range(3)]),
        "text": pa.array(["01", "1", " 2"]),
        "ratio": pa.array([1.0, 1.9, -2.5]),
        "a.b": pa.array(["dot 0", "dot 1", "dot 2"]),
        "at": pa.array([0, 1, 2]),
    }
)


@pytest.fixture(scope="module")
def job(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One job for all operators of this module; its task managers are up, so that no test is blamed for them."""
    with Job(spark, "job", parallelism=2, proxy_ports="0", server_ports="0") as job:
        stream = FileStream(spark, tmp_path_factory.mktemp("warm") / "input")
        stream.add(ROWS)
        run_to_end(job.key_by(stream.read(), "id").process(Echo("warm"), ECHOED, uid="warm"), stream.directory / "c")
        yield job


@pytest.fixture
def uid(request: pytest.FixtureRequest) -> str:
    """The name of the one operator of a test and of its state."""
    return str(request.node.name)


@pytest.fixture
def echoed(job: Job, uid: str, client_of: Any, tmp_path: Path) -> Any:
    """`echoed(stream, keys)`: the keys and rows that a function has seen, in the order of `at`, and a client's keys."""

    def run(
        stream: DataFrame, *keys: str | Column, **options: Any
    ) -> tuple[list[Any], list[dict[str, Any]], list[Any]]:
        result = job.key_by(stream, *keys).process(Echo(uid), ECHOED, uid=uid, **options)
        found = [(eval(key), eval(row)) for key, row in run_to_end(result, tmp_path / "checkpoint")]
        if not options:
            found.sort(key=lambda echo: int(echo[1]["at"]))
        views = client_of(job).get_many("job", uid, list({key for key, _ in found}))
        return [key for key, _ in found], [row for _, row in found], sorted(key for key, view in views.items() if view)

    return run


@pytest.fixture
def rows(spark: Any, stream_of: Any) -> DataFrame:
    stream: DataFrame = stream_of(spark, ROWS).read()
    return stream


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        (lambda: F.upper("id").alias("id"), ["A", "A", "B"]),
        (lambda: F.upper("id").alias("ID"), ["A", "A", "B"]),
        (lambda: F.col("st.a"), ["in 0", "in 1", "in 2"]),
        (lambda: "st.a", ["in 0", "in 1", "in 2"]),
        (lambda: F.col("text").cast("bigint"), [1, 1, 2]),
        (lambda: F.col("ratio").cast("bigint"), [1, 1, -2]),
        (lambda: F.col("at").cast("string"), ["0", "1", "2"]),
        (lambda: "`a.b`", ["dot 0", "dot 1", "dot 2"]),
        (lambda: "ID", ["a", "A", "b"]),
        (lambda: F.col("Id"), ["a", "A", "b"]),
    ],
    ids=[
        "upper",
        "upper in capitals",
        "nested",
        "nested text",
        "text",
        "double",
        "number",
        "dot",
        "case",
        "case of a column",
    ],
)
def test_key_expression_is_the_key_and_leaves_the_row_unchanged(
    key: Callable[[], str | Column], keys: list[Any], rows: DataFrame, echoed: Any
) -> None:
    """Every one of these has the name of a column of the stream, which must stay as it is."""
    assert echoed(rows, key()) == (keys, ROWS.to_pylist(), sorted(set(keys)))


def test_an_expression_with_a_name_of_its_own_is_in_the_row_under_that_name(rows: DataFrame, echoed: Any) -> None:
    keys, seen, of_client = echoed(rows, F.upper("id").alias("upper"), F.lower("id").alias("id"))
    assert set(keys) == {("A", "a"), ("B", "b")} == set(of_client)
    assert seen == [{**row, "upper": row["id"].upper()} for row in ROWS.to_pylist()]


def test_two_expressions_of_one_name_are_two_keys(rows: DataFrame, echoed: Any) -> None:
    keys, seen, _ = echoed(rows, F.upper("id").alias("k"), F.concat("id", "a").alias("k"))
    assert keys == [("A", "ax"), ("A", "Ay"), ("B", "bz")]
    assert seen == ROWS.to_pylist()


@pytest.fixture
def of_two_cases(rows: DataFrame) -> DataFrame:
    """A stream with columns that differ by case; a file cannot have them."""
    return rows.select("at", F.col("id").alias("Id"), F.col("a").alias("ID"))


def test_columns_that_differ_by_case_are_refused_only_when_named(
    job: Job, of_two_cases: DataFrame, echoed: Any
) -> None:
    keys, seen, _ = echoed(of_two_cases, "at")
    assert keys == [0, 1, 2]
    assert seen == [{"at": row["at"], "Id": row["id"], "ID": row["a"]} for row in ROWS.to_pylist()]
    with pytest.raises(JobError, match=r"key_by: 'id' could be several columns.*spark\.sql\.caseSensitive.*at, Id, ID"):
        job.key_by(of_two_cases, "id")


def test_case_matters_where_spark_is_case_sensitive(spark: Any, of_two_cases: DataFrame, echoed: Any) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        keys, seen, of_client = echoed(of_two_cases, "ID", F.upper("Id").alias("id"))
    assert keys == [("x", "A"), ("y", "A"), ("z", "B")] == of_client
    assert [row["id"] for row in seen] == ["A", "A", "B"]


@pytest.mark.parametrize("order", ["st.at", "ST.AT", "`.at`", "Down"])
def test_order_by_is_resolved_as_spark_does(order: str, rows: DataFrame, echoed: Any) -> None:
    down = (-F.col("at")).alias("down")
    stream = rows.withColumn("one", F.lit(1)).select("one", "a", "st", down, down.alias(".at"), "at")
    _, seen, _ = echoed(stream, "one", order_by=order)
    assert [row["a"] for row in seen] == ["z", "y", "x"]


@pytest.fixture
def stored(job: Job, uid: str, client_of: Any, tmp_path: Path) -> Any:
    """`stored(stream, keys, asked, **options)`: what clients find under these keys and namespaces."""

    def run(stream: DataFrame, key: str | Column, asked: list[tuple[Any, Any]], **options: Any) -> list[Any]:
        sink = job.key_by(stream, key).as_queryable_state(uid, uid=uid, **options)
        sink.start(checkpoint_location=str(tmp_path / "c"), trigger={"availableNow": True}).awaitTermination()
        client = client_of(job)
        views = [client.get("job", uid, key, namespace=namespace) for key, namespace in asked]
        return [view and view.value() for view in views]

    return run


@pytest.mark.parametrize("combine", [False, True])
def test_a_sink_takes_values_namespaces_and_orders_as_spark_names_them(
    combine: bool, rows: DataFrame, stored: Any
) -> None:
    found = stored(
        rows.withColumn("down", F.struct(F.col("st.at").alias("At"))),
        F.upper("id").alias("id"),
        [("A", 3), ("A", 2), ("B", 1), ("a", 3), ("b", 1)],
        value=["`a.b`", "ST.a", "Id"],
        namespace="st.at",
        order_by="down.at",
        combine=combine,
    )
    assert found == [
        {"a.b": "dot 0", "a": "in 0", "Id": "a"},
        {"a.b": "dot 1", "a": "in 1", "Id": "A"},
        {"a.b": "dot 2", "a": "in 2", "Id": "b"},
        None,
        None,
    ]


@pytest.mark.parametrize("combine", [False, True])
def test_the_latest_row_is_that_of_the_key_that_was_written(combine: bool, rows: DataFrame, stored: Any) -> None:
    key = F.upper("id").alias("id")
    assert stored(rows, key, [("A", None), ("B", None)], value="text", order_by="st.at", combine=combine) == [
        "01",
        " 2",
    ]


@pytest.mark.parametrize("combine", [False, True])
def test_the_key_may_be_the_namespace_too(combine: bool, rows: DataFrame, stored: Any) -> None:
    asked = [("a", "a"), ("a", "b")]
    assert stored(rows.where("id = 'a'"), "id", asked, value="text", namespace="id", combine=combine)[1:] == [None]


def test_a_column_with_the_name_that_qstate_uses_itself_is_refused(rows: DataFrame, stored: Any) -> None:
    with pytest.raises(JobError, match="'__qstate_rows', which qstate uses itself: rename it"):
        stored(rows.withColumn("__qstate_rows", F.lit(1)), "id", [])


def test_all_columns_but_those_of_the_key_are_the_value(rows: DataFrame, stored: Any) -> None:
    (value,) = stored(rows.select("id", "`a.b`", "st").where("id = 'a'"), "ID", [("a", None)])
    assert value == {"a.b": "dot 0", "st": {"a": "in 0", "at": 3}}


def test_a_key_made_of_a_column_leaves_that_in_the_value(rows: DataFrame, stored: Any) -> None:
    assert stored(rows.select("id", "at"), F.concat("id", "id").alias("id"), [("aa", None)]) == [{"id": "a", "at": 0}]


def test_a_reducing_sink_takes_a_nested_value(job: Job, rows: DataFrame, client_of: Any, tmp_path: Path) -> None:
    descriptor = ReducingStateDescriptor("reduced", int, reduce_function=add)
    sink = job.key_by(rows, F.upper("id")).as_queryable_state(descriptor, uid="reduced", value="st.at")
    sink.start(checkpoint_location=str(tmp_path / "c"), trigger={"availableNow": True}).awaitTermination()
    assert client_of(job).get("job", "reduced", "A").get() == 5


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("nope", r"no column 'nope'; the stream has id, a, st, text, ratio, a\.b, at"),
        ("a.b", r"'a\.b' is a column with a dot in its name: write it in backticks, `a\.b`"),
        ("st.nope", r"'st\.nope'.*`?nope`?"),
        ("*", r"'\*' gives 7 columns"),
        ("", r"''"),
        (lambda: F.col("nope") + 1, r"no column '.*nope"),
        (5, r"takes column names and Columns, got 5"),
    ],
)
def test_a_column_that_cannot_be_resolved_is_named(column: Any, message: str, job: Job, rows: DataFrame) -> None:
    with pytest.raises(JobError, match=f"key_by.* {message}"):
        job.key_by(rows, column() if callable(column) else column)


@pytest.mark.parametrize("role", ["order_by", "value", "namespace"])
def test_the_argument_that_cannot_be_resolved_is_named(role: str, job: Job, rows: DataFrame) -> None:
    with pytest.raises(JobError, match=f"{role}: no column 'when'; the stream has id, a, st"):
        job.key_by(rows, "id").as_queryable_state("s", uid="s", **{role: "when"})


def test_two_values_of_one_name_are_refused(job: Job, rows: DataFrame) -> None:
    with pytest.raises(JobError, match="more than one column named 'a'"):
        job.key_by(rows, "id").as_queryable_state("s", uid="s", value=["a", "st.a"])


@pytest.fixture
def with_maps(rows: DataFrame) -> DataFrame:
    """Maps of their own, in arrays of structs, with keys of other types, and null."""
    named = F.create_map(F.lit("at"), "at", F.lit("twice"), F.col("at") * 2)
    return rows.select(
        "at",
        F.when(F.col("at") > 0, named).alias("named"),
        F.array(F.struct(F.create_map("at", "id").alias("by_number"))).alias("deep"),
        F.create_map("st", F.lit(True)).alias("by_struct"),
    )


MAPS = [
    {
        "named": {"at": n, "twice": 2 * n} if n else None,
        "deep": [{"by_number": {n: row["id"]}}],
        "by_struct": {tuple(row["st"].values()): True},
    }
    for n, row in enumerate(ROWS.to_pylist())
]


def test_maps_are_dicts_in_rows(with_maps: DataFrame, echoed: Any) -> None:
    _, seen, _ = echoed(with_maps, "at")
    assert seen == [{"at": n, **maps} for n, maps in enumerate(MAPS)]


def test_maps_are_dicts_where_clients_read_them(with_maps: DataFrame, stored: Any) -> None:
    assert stored(with_maps, "at", [(0, None), (1, None), (2, None)]) == MAPS


@contextmanager
def setting(spark: Any, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
