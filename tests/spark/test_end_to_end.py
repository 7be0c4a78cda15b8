"""The whole path: Spark -> relay -> operator -> backend -> state server -> proxy -> client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.functions_under_test import FiveKinds
from tests.spark.generated import amounts, five_kinds
from tests.spark.state_checks import assert_five_kinds
from tests.spark.streams import run_to_end


@pytest.mark.smoke
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_all_five_kinds_are_read_through_client_proxy_and_server(
    backend: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=2000, keys=50)
    job = job_of(spark, "five", backend=backend)
    rows = job.key_by(stream_of(spark, *tables).read(), "key")
    running = rows.process(FiveKinds(), "key string, total bigint", uid="five-kinds", order_by="at")
    emitted = run_to_end(running, tmp_path / "checkpoint")
    expected = five_kinds(tables)
    assert len(emitted) == sum(table.num_rows for table in tables)
    assert dict(sorted(emitted, key=lambda row: row.total)) == {key: held["total"] for key, held in expected.items()}
    for direct in (False, True):
        client = client_of(job, direct=direct)
        assert_five_kinds(client, "five", expected)
        assert client.get("five", "lastRow", "no such key") is None
