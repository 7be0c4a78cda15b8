"""A program whose Spark Connect server is killed in the middle of an epoch, and which continues on another server.

Its arguments are the URLs of the two servers and a directory. It prints what it has seen as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from qstate.client import QueryableStateClient
from qstate.operators.functions import KeyedProcessFunction
from qstate.spark import Job
from tests.spark.connect_server import server_process
from tests.spark.functions_under_test import Total, wait_for_go
from tests.spark.generated import amounts
from tests.spark.streams import FileStream, until

BATCHES, ROWS, KEYS = 3, 100, 10
SCHEMA = "key string, total bigint"


def started(spark: Any, rows: Any, function: KeyedProcessFunction, work: Path) -> tuple[Job, Any]:
    job = Job(spark, "job", checkpoint_dir=str(work / "state"), parallelism=2, proxy_ports="0", server_ports="0")
    result = job.key_by(rows, "key").process(function, SCHEMA, uid="total")
    writer = result.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    return job, writer.start(str(work / "results"))


def rows_of(spark: Any, directory: Path) -> Any:
    schema = from_arrow_schema(amounts(1, 1, 1)[0].schema)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def outcome(call: Callable[[], Any], since: float) -> tuple[str, str, float]:
    """The error of a call, and when it came."""
    try:
        call()
        return "", "", time.monotonic() - since
    except Exception as exc:
        return type(exc).__name__, str(exc), time.monotonic() - since


def threads_left() -> list[str]:
    """Those that run after five seconds. PySpark's threads end with the calls that they belong to."""
    gc.collect()
    deadline = time.monotonic() + 5
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]


def main(first: str, then: str, work: Path) -> None:
    spark: Any = SparkSession.builder.remote(first).getOrCreate()
    stream = FileStream(spark, work / "input")
    for table in amounts(BATCHES, ROWS, KEYS):
        stream.add(table)
    flag = work / "held"
    job, query = started(
        spark, rows_of(spark, work / "input"), Total(wait_for_go, flag=flag, at=ROWS + ROWS // 2), work
    )
    server = server_process(first)
    with ThreadPoolExecutor(1) as pool:
        until(flag.exists, "the function reaches the row that it waits at")
        killed = time.monotonic()
        waiting = pool.submit(outcome, query.awaitTermination, killed)
        server.kill()
        seen = {
            "savepoint": outcome(lambda: job.savepoint(work / "savepoint"), killed),
            "statistics": outcome(job.statistics, killed),
            "proxy_address": outcome(lambda: job.proxy_address, killed),
            "key_by": outcome(lambda: job.key_by(rows_of(spark, work / "input"), "key"), killed),
            "display": outcome(job.display, killed),
            "awaitTermination": waiting.result(),
        }
    flag.with_suffix(".go").touch()
    stopping = time.monotonic()
    seen |= {"job.stop": outcome(job.stop, stopping), "spark.stop": outcome(spark.stop, stopping)}
    threads = threads_left()

    spark = SparkSession.builder.remote(then).getOrCreate()
    job, query = started(spark, rows_of(spark, work / "input"), Total(), work)
    query.processAllAvailable()
    with QueryableStateClient(*job.proxy_address) as client:
        found = client.get_many("job", "totalAmount", [f"k{key}" for key in range(KEYS)])
    totals = {key: view.get() for key, view in found.items()}
    restored = sorted({one.epoch for one in job.restored})
    rows = spark.read.parquet(str(work / "results")).count()
    query.stop()
    job.stop()
    spark.stop()
    print(json.dumps({"seen": seen, "threads": threads, "totals": totals, "restored": restored, "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
