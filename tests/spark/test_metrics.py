"""A job on Spark gives its statistics to the program and to Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.runtime.job.running_job import until
from tests.spark.generated import amounts


def test_statistics_and_metrics_of_a_job_count_what_clients_ask(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    job = job_of(spark, metrics_ports="0")
    stream = job.key_by(stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10)).read(), "key")
    sink = stream.as_queryable_state("lastRow", uid="last")
    query = sink.start(checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()
    keys = [f"no such key {number}" for number in range(50)]
    client_of(job).get_many(job.name, "lastRow", keys)
    assert [process.name for process in job.statistics().processes] == ["0", "1"]
    until(lambda: job.statistics().servers.keys == 50, "a request may be counted after the client has its answer")
    assert job.statistics().proxies.keys == 50
    host, port = job.metrics_address
    with urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        lines = str(answer.read(), "utf-8").splitlines()
    assert {f'qstate_up{{job="job",process="{index}"}} 1.0' for index in (0, 1)} <= set(lines)
    assert sum(subtask.rows_in for subtask in job.statistics().subtasks) == 100
    rows = [line for line in lines if line.startswith('qstate_rows_in_total{job="job",operator="last"')]
    assert sum(float(line.split()[-1]) for line in rows) == 100
    asked = [line for line in lines if line.startswith("qstate_keys_total") and 'endpoint="proxy"' in line]
    assert sum(float(line.split()[-1]) for line in asked) == 50
    job.stop()
    with pytest.raises(URLError):
        urlopen(f"http://{host}:{port}/metrics", timeout=10)
