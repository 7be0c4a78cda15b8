"""On two executor processes: Spark moves partitions between them, and one of them dies."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import FiveKinds, Total, wait_for_go
from tests.spark.generated import amounts, five_kinds, totals
from tests.spark.state_checks import assert_five_kinds, assert_totals
from tests.spark.streams import run_to_end, until

SCHEMA = "key string, total bigint"


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_all_five_kinds_survive_partitions_moving_between_executors(
    backend: str, cluster_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=4, rows_a_batch=1000, keys=50)
    job = job_of(cluster_spark, backend=backend)
    rows = job.key_by(stream_of(cluster_spark, *tables).read(), "key")
    run_to_end(rows.process(FiveKinds(), SCHEMA, uid="five-kinds", order_by="at"), tmp_path / "checkpoint")
    expected = five_kinds(tables)
    for direct in (False, True):
        assert_five_kinds(client_of(job, direct=direct), "job", expected)


def test_an_executor_killed_in_the_middle_of_an_epoch_loses_and_doubles_nothing(
    cluster_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=1000, keys=20)
    flag = tmp_path / "held"
    job = job_of(cluster_spark, backend="rocksdb")
    rows = job.key_by(stream_of(cluster_spark, *tables).read(), "key")
    result = rows.process(Total(wait_for_go, flag=flag, at=1500), SCHEMA, uid="total")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_to_end(result, tmp_path / "checkpoint")
        except BaseException as exc:
            failures.append(exc)

    running = threading.Thread(target=run)
    running.start()
    until(flag.exists, "the function reaches the row that it waits at")
    (manager,) = [manager for manager in job.manager.task_managers() if manager.pid == int(flag.read_text())]
    executor = psutil.Process(manager.executor_pid)
    assert executor.name().startswith("java")
    executor.kill()
    executor.wait(10)
    flag.with_suffix(".go").touch()
    running.join(120)
    assert not running.is_alive()
    assert failures == []
    assert_totals(client_of(job), "job", totals(tables))
