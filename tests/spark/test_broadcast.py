"""Broadcast rows, and streams without a key, in real queries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.descriptors import MapStateDescriptor
from qstate.errors import JobError
from qstate.spark import Job
from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import (
    LIMITS,
    Above,
    Hot,
    InOrder,
    Numbered,
    Pairs,
    Passes,
    SameRule,
    SeesWatermark,
)
from tests.spark.streams import run_to_end

START = datetime(2020, 1, 1, tzinfo=timezone.utc)
RESULT = "sensor string, temp double, limit double"


def readings(*temperatures: float) -> pa.Table:
    """One reading of each temperature, of sensors s0, s1, ...."""
    sensors = [f"s{number}" for number in range(len(temperatures))]
    times = pa.array([START + timedelta(seconds=number) for number in range(len(sensors))], pa.timestamp("us", "UTC"))
    return pa.table({"sensor": sensors, "kind": ["oven"] * len(sensors), "temp": list(temperatures), "at": times})


def limits(*found: tuple[str, float | None]) -> pa.Table:
    kinds, amounts = zip(*found, strict=True)
    return pa.table({"kind": pa.array(kinds, pa.string()), "limit": pa.array(amounts, pa.float64())})


TEMPERATURES = [float(number) for number in range(40)]


@pytest.fixture
def above(stream_of: Any, job_of: Callable[..., Job], tmp_path: Path) -> Callable[..., Any]:
    """Runs one query of `Above` over readings and limits to its end."""

    def run(spark: Any, job: Job, first: Any, second: Any) -> list[tuple[Any, ...]]:
        rules = job.stream(second.read()).broadcast(LIMITS)
        alerts = job.key_by(first.read(), "sensor").connect(rules).process(Above(), RESULT, uid="above")
        return sorted(map(tuple, run_to_end(alerts, tmp_path / "query")))

    return run


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_rules_reach_every_subtask_before_the_rows_and_are_queried_by_their_keys(
    backend: str, spark: Any, stream_of: Any, job_of: Callable[..., Job], client_of: Any, above: Any
) -> None:
    first = stream_of(spark, readings(*TEMPERATURES))
    second = stream_of(spark, limits(("oven", 5.0), ("ice", -1.0)))
    job = job_of(spark, backend=backend, parallelism=3)
    assert above(spark, job, first, second) == sorted((f"s{n}", float(n), 5.0) for n in range(6, 40))
    client = client_of(job)
    assert client.get("job", "limits", "oven").value() == 5.0
    assert client.get("job", "limits", "ice").value() == -1.0
    first.add(readings(*TEMPERATURES))
    second.add(limits(("oven", 37.0), ("ice", None), ("reset", 0.0)))
    assert above(spark, job, first, second) == [("s38", 38.0, 37.0), ("s39", 39.0, 37.0)]
    assert client.get("job", "limits", "ice") is None
    found = client.get_many("job", "count", ["s37", "s38", "s39"])
    assert [one and one.get() for one in found.values()] == [None, 1, 1]


def test_rules_are_there_after_a_restart_with_another_parallelism(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], client_of: Any, above: Any, tmp_path: Path
) -> None:
    first, second = stream_of(spark, readings(1.0)), stream_of(spark, limits(("oven", 30.0), ("ice", -1.0)))
    for number, parallelism in enumerate((2, 5, 1)):
        with job_of(spark, checkpoint_dir=str(tmp_path / "state"), parallelism=parallelism) as job:
            found = above(spark, job, first, second)
            assert found == ([] if number == 0 else [(f"s{n}", float(n), 30.0) for n in range(31, 40)])
            assert client_of(job).get("job", "limits", "ice").value() == -1.0
        first.add(readings(*TEMPERATURES))


def test_broadcast_rows_have_one_order_in_every_subtask(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    kinds = [f"k{number}" for number in range(30)]
    second = stream_of(spark, limits(*((kind, float(number % 7)) for number, kind in enumerate(kinds))))
    first = stream_of(spark, readings(*TEMPERATURES))
    job = job_of(spark, parallelism=3)

    def orders(name: str, **order: Any) -> set[tuple[int, str]]:
        rows = job.stream(second.read().repartition(4)).broadcast(**order)
        result = job.stream(first.read()).connect(rows)
        found = result.process(InOrder(), "subtask int, rows string, sensor string", uid=name)
        emitted = run_to_end(found, tmp_path / name)
        assert sorted(row.sensor for row in emitted) == sorted(f"s{number}" for number in range(40))
        return {(row.subtask, row.rows) for row in emitted}

    found = orders("any")
    assert {subtask for subtask, _ in found} == {0, 1, 2}
    assert len({order for _, order in found}) == 1
    assert sorted(next(iter(found))[1].split(",")) == sorted(kinds)
    by_limit = orders("by limit", order_by=["limit", F.col("kind")])
    expected = sorted(kinds, key=lambda kind: (int(kind[1:]) % 7, kind))
    assert {order for _, order in by_limit} == {",".join(expected)}


def test_stream_without_a_key_keeps_operator_state_at_another_parallelism(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    first = stream_of(spark, readings(*TEMPERATURES))
    numbers: list[list[int]] = []
    for parallelism in (3, 1):
        with job_of(spark, checkpoint_dir=str(tmp_path / "state"), parallelism=parallelism) as job:
            result = job.stream(first.read()).process(Numbered(), "sensor string, number bigint", uid="numbered")
            numbers.append(sorted(row.number for row in run_to_end(result, tmp_path / "query")))
        first.add(readings(*TEMPERATURES))
    assert len(numbers[0]) == 40 and max(numbers[0]) < 40, "several subtasks count"
    assert numbers[1] == list(range(41, 81))


def test_watermark_is_that_of_the_stream_or_the_lesser_of_both(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    first = stream_of(spark, readings(*TEMPERATURES))
    second = stream_of(spark, readings(*TEMPERATURES[:20]))
    first.add(readings(1.0))
    job = job_of(spark)
    timed = job.key_by(first.read().withWatermark("at", "5 seconds"), "sensor")

    def watermarks(name: str, rules: DataFrame) -> list[float | None]:
        result = timed.connect(job.stream(rules).broadcast()).process(
            SeesWatermark(), "sensor string, watermark bigint", uid=name
        )
        found = {row.watermark for row in run_to_end(result, tmp_path / name)}
        start = START.timestamp()
        return sorted(one and one / 1000 - start for one in found - {None})

    assert watermarks("own", second.read()) == [34.0]
    assert watermarks("lesser", second.read().withWatermark("at", "2 seconds")) == [17.0]


def test_what_cannot_be_broadcast_says_why(spark: Any, stream_of: Any, job_of: Callable[..., Job]) -> None:
    first, second = stream_of(spark, readings(1.0)), stream_of(spark, limits(("oven", 30.0)))
    job = job_of(spark)
    keyed, rules = job.key_by(first.read(), "sensor"), job.stream(second.read()).broadcast(LIMITS)
    with pytest.raises(JobError, match="of the same job"):
        keyed.connect(job_of(spark, "other").stream(second.read()).broadcast(LIMITS))
    with pytest.raises(JobError, match="needs a MapStateDescriptor"):
        job.stream(second.read()).broadcast("limits")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="no column 'nothing'"):
        job.stream(second.read()).broadcast(LIMITS, order_by="nothing")
    with pytest.raises(JobError, match="keyed stream with broadcast rows needs a KeyedBroadcastProcessFunction"):
        keyed.connect(rules).process(InOrder(), RESULT, uid="p")
    with pytest.raises(JobError, match="plain stream with broadcast rows needs a BroadcastProcessFunction"):
        job.stream(first.read()).connect(rules).process(Above(), RESULT, uid="p")
    with pytest.raises(JobError, match="stream without a key needs a ProcessFunction"):
        job.stream(first.read()).process(Passes(), RESULT, uid="p")  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"got.*DataFrame"):
        job.stream(first.read()).connect(second.read())  # type: ignore[arg-type]
    with pytest.raises(JobError, match="streaming DataFrame"):
        job.stream(spark.range(3))
    with pytest.raises(JobError, match="queried by its map keys"):
        job.stream(second.read()).broadcast(MapStateDescriptor("m", int, map_key_type=object).queryable("m"))


def test_results_of_operators_are_connected_in_any_place(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    """A union numbers tasks from its first stream on, and an operator's tasks need the numbers of their subtasks."""
    first, second = stream_of(spark, readings(*TEMPERATURES)), stream_of(spark, limits(("oven", 5.0), ("ice", -1.0)))

    def run(name: str, schema: str, connected: Callable[[Job, DataFrame, DataFrame], Any], function: Any) -> list[Any]:
        with job_of(spark, name) as job:
            hot = job.key_by(first.read(), "sensor").process(
                Hot(), "sensor string, kind string, temp double", uid="hot"
            )
            rules = job.key_by(second.read(), "kind").process(SameRule(), "kind string, limit double", uid="rules")
            result = connected(job, hot, rules).process(function, schema, uid="both")
            return sorted(map(tuple, run_to_end(result, tmp_path / name)))

    def broadcast(job: Job, hot: DataFrame, rules: DataFrame) -> Any:
        return job.key_by(hot, "sensor").connect(job.stream(rules).broadcast(LIMITS))

    above = sorted((f"s{n}", float(n), 5.0) for n in range(20, 40))
    assert run("one", RESULT, lambda job, hot, _: broadcast(job, hot, second.read()), Above()) == above
    assert run("two", RESULT, broadcast, Above()) == above
    counts = [("ice", 1), ("oven", 21)]
    for name, stream in (("three", lambda rules: second.read()), ("four", lambda rules: rules)):
        found = run(
            name,
            "kind string, n bigint",
            lambda job, hot, rules, stream=stream: job.key_by(stream(rules), "kind").connect(job.key_by(hot, "kind")),
            Pairs(),
        )
        assert found == counts
