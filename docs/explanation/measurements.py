"""Measures the facts about Spark and Python that `architecture.md` builds on.

    python docs/explanation/measurements.py [order] [workers] [executors] [state-access] [switch] [messages]

Needs `spark-qstate[spark]`, and for `state-access` nothing but PySpark's sources. Each part prints one line or a small
table; without arguments all parts run, in a few minutes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from timeit import repeat
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from qstate.backends import BackendContext, HeapBackend, Isolation
from qstate.descriptors import ValueStateDescriptor
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer

GROUPS = KeyGroupRange(0, 128)
PLACES = "partition long, pid long, executor long"


def session(master: str) -> SparkSession:
    """A quiet session whose workers run this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.showConsoleProgress", "false")
    made = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def stream(spark: SparkSession, directory: Path, tables: list[pa.Table], files_per_batch: int) -> Any:
    """A stream over these tables, one file each, in their order."""
    directory.mkdir()
    for number, table in enumerate(tables):
        path = directory / f"{number:03}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    reader = spark.readStream.schema(from_arrow_schema(tables[0].schema))
    return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(directory))


def run(result: Any, directory: Path) -> list[Any]:
    """Every row that a streaming result emits, with its epoch."""
    rows: list[Any] = []
    writer = result.writeStream.foreachBatch(lambda batch, epoch: rows.extend((epoch, *row) for row in batch.collect()))
    writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start().awaitTermination()
    return rows


def late_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the rows that come after a newer row of their key."""
    newest: dict[int, int] = {}
    late = total = 0
    for batch in batches:
        for key, at in zip(batch.column("key").to_pylist(), batch.column("at").to_pylist(), strict=True):
            total += 1
            if at < newest.get(key, -1):
                late += 1
            else:
                newest[key] = at
    yield pa.RecordBatch.from_pydict({"late": [late], "total": [total]})


def measure_order(work: Path) -> None:
    """Rows in time order over eight input partitions, shuffled as qstate does it."""
    rows, partitions, keys = 996_000, 8, 20_000
    for master in ("local-cluster[2,1,1024]", "local[2]"):
        spark = session(master)
        ranged = spark.range(0, rows, 1, partitions)
        keyed = ranged.select((F.col("id") * 7919 % keys).alias("key"), F.col("id").alias("at"))
        count_late(f"from a range on {master}", shuffled(keyed).collect())
        if master != "local[2]":
            spark.stop()
    share = rows // partitions
    tables = []
    for number in range(partitions):
        at = list(range(number * share, (number + 1) * share))
        tables.append(pa.table({"key": [moment * 7919 % keys for moment in at], "at": at}))
    from_files = run(shuffled(stream(spark, work / "order", tables, partitions)), work / "c-order")
    count_late("one micro-batch of eight files", [row[1:] for row in from_files])


def shuffled(rows: Any) -> Any:
    subtask = F.floor(F.pmod(F.xxhash64("key"), F.lit(128)) * 2 / 128).cast("int")
    return rows.repartitionById(2, subtask).mapInArrow(late_rows, "late long, total long")


def count_late(what: str, found: list[Any]) -> None:
    late, total = sum(row[0] for row in found), sum(row[1] for row in found)
    print(f"order: {what}: {late:,} of {total:,} rows came after a newer row of their key")


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Which process runs this partition, and below which executor."""
    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    parents = [parent.pid for parent in psutil.Process().parents() if parent.name().startswith("java")]
    yield pa.RecordBatch.from_pydict(
        {"partition": [context.partitionId()], "pid": [os.getpid()], "executor": [parents[0]]}
    )


def measure_places(work: Path, master: str, what: str, batches: int = 20) -> None:
    """How often a partition finds itself in another process than in the batch before."""
    spark = session(master)
    tables = [pa.table({"key": list(range(1000))}) for _ in range(batches)]
    source = stream(spark, work / what, tables, 1).withColumn("to", F.col("key") % 2)
    found = run(source.repartitionById(2, F.col("to").cast("int")).mapInArrow(where, PLACES), work / f"c-{what}")
    spark.stop()
    moves = {"process": 0, "executor": 0}
    for partition in (0, 1):
        visits = sorted(row for row in found if row[1] == partition)
        for before, after in pairwise(visits):
            moves["process"] += before[2] != after[2]
            moves["executor"] += before[3] != after[3]
    steps = 2 * (batches - 1)
    print(
        f"{what}: on {master}, a partition was in another worker process than before in {moves['process']} of {steps} "
        f"steps from batch to batch, below another executor in {moves['executor']}; "
        f"{len({row[2] for row in found})} processes in all"
    )


def measure_state_access() -> None:
    """Where PySpark's own stateful Python sends a request and waits for the answer."""
    source = Path(pyspark.__file__).parent / "sql" / "streaming" / "value_state_client.py"
    calls = source.read_text().count("_send_proto_message(")
    print(f"state-access: {source.name} of PySpark {pyspark.__version__} sends a message to the JVM in {calls} places")


class Saturated:
    """A thread that works on state forever, as an operator with an endless epoch, beside a state server and proxy."""

    def __init__(self, directory: Path) -> None:
        self.backend = HeapBackend(BackendContext(GROUPS, 128, directory))
        self.descriptor = ValueStateDescriptor("value", int).queryable("value")
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self) -> None:
        table = self.backend.table(self.descriptor)
        get, put = table.get, table.put
        epoch = 0
        while not self.end.is_set():
            self.backend.begin(epoch)
            for number in range(200_000):
                key = number % 1000
                put(key, (get(key) or 0) + 1)
            for _ in self.backend.commit(epoch):
                pass
            epoch += 1


class OneOwner:
    """A location oracle that knows one state server."""

    def __init__(self, table: LocationTable) -> None:
        self.table = table

    def locate(self, state: str, reply: Any) -> None:
        reply(self.table)

    def describe(self, reply: Any) -> None:
        reply([self.table.state])


ASK = """
import sys, time
with QueryableStateClient("127.0.0.1", int(sys.argv[1]), direct=True) as client:
    for _ in range(200):
        client.get("job", "value", 1)
    for _ in range(2000):
        began = time.perf_counter()
        client.get("job", "value", 1)
        print(time.perf_counter() - began)
        time.sleep(0.0005)
"""


def measure_switch(work: Path) -> None:
    """Live gets from another process, while a thread beside the state server never rests."""
    for interval in (0.005, 0.0005, 0.005, 0.0005):
        sys.setswitchinterval(interval)
        directory = work / f"switch-{time.monotonic_ns()}"
        directory.mkdir()
        job = Saturated(directory)
        registry = StateRegistry()
        server, proxy = StateServer(registry, EndpointOptions()), ClientProxy(EndpointOptions())
        server.start()
        proxy.start()
        instance = StateInstance(
            job="job",
            descriptor=job.descriptor,
            key_types=(ColumnType.BIGINT,),
            key_groups=GROUPS,
            max_parallelism=128,
            capabilities=job.backend.capabilities,
            readers={Isolation.LIVE: job.backend.reader(Isolation.LIVE)},
        )
        owner = Owner(GROUPS, *server.address, registry.register(instance))
        proxy.set_location_oracle("job", OneOwner(LocationTable("job", instance.describe(), 128, (owner,))))
        job.thread.start()
        try:
            asked = [sys.executable, "-c", ASK, str(proxy.address[1])]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=300)
        finally:
            job.end.set()
            job.thread.join()
            proxy.shutdown()
            server.shutdown()
        took = sorted(float(line) * 1000 for line in answer.stdout.split())
        print(
            f"switch: interval {interval * 1000:.1f} ms, live get of a saturated process: "
            f"p50 {median(took):.2f} ms, p99 {quantiles(took, n=100)[98]:.2f} ms"
        )


class AsTuple(NamedTuple):
    id: int
    epochs: tuple[int, ...]
    results: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AsDataclass:
    id: int
    epochs: tuple[int, ...]
    results: tuple[bytes, ...]


def measure_messages() -> None:
    """Making a message."""
    for made in (AsTuple, AsDataclass):
        seconds = min(repeat(lambda made=made: made(1, (2,), (b"3",)), number=500_000, repeat=5))
        print(f"messages: {made.__name__:12} {seconds / 500_000 * 1e9:.0f} ns each")


def main() -> None:
    parts = sys.argv[1:] or ["order", "workers", "executors", "state-access", "switch", "messages"]
    print(f"Python {platform.python_version()}, PySpark {pyspark.__version__}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        if "messages" in parts:
            measure_messages()
        if "switch" in parts:
            measure_switch(work)
        if "state-access" in parts:
            measure_state_access()
        if "order" in parts:
            measure_order(work)
        if "workers" in parts:
            measure_places(work, "local[2]", "workers")
        if "executors" in parts:
            measure_places(work, "local-cluster[2,1,1024]", "executors")


if __name__ == "__main__":
    main()
