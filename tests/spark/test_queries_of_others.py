"""Queries that users of Spark's `statestore` source and of S-QUERY know, and the same answers of the source `qstate`.

On two executors, so partitions are read by other processes than the driver's. `docs/how-to/state-as-dataframe.md` has
the queries side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.spark import Job
from qstate.spark.data_source.feed_client import FeedClient
from tests.functions import add
from tests.spark.generated import amounts
from tests.spark.streams import FileStream, until

BATCHES = 4
ZONES, CATEGORIES = ("north", "south", "east"), ("pizza", "sushi")
STATES = ("VENDOR_ACCEPTED", "NOTIFIED", "ACCEPTED", "PICKED_UP", "LEFT_PICKUP", "NEAR_CUSTOMER")
NOON = datetime(2022, 5, 9, 12, tzinfo=timezone.utc)
Rows = list[tuple[Any, ...]]


@dataclass
class OrderInfo:
    deliveryZone: str
    vendorCategory: str


@dataclass
class OrderState:
    orderState: str
    lateTimestamp: datetime


def orders(number: int) -> pa.Table:
    """One micro-batch: every order in the first, some that go on in the later ones."""
    rows = []
    for order in range(0, 60, number + 1):
        at, step = NOON.replace(hour=(order + number) % 24), order // 2 + number
        late = {"orderState": STATES[step % len(STATES)], "lateTimestamp": at}
        info = {"deliveryZone": ZONES[order % 3], "vendorCategory": CATEGORIES[order % 2]}
        rows.append({"partitionKey": str(order), **info, **late})
    return pa.Table.from_pylist(rows)


def until_committed(job: Job, name: str, states: tuple[str, ...], epochs: int) -> None:
    """Wait until clients see so many epochs as committed: a moment after a query has processed its input."""
    with FeedClient(*job.proxy_address) as client:

        def seen() -> int:
            places = (client.committed(name, state, 128) for state in states)
            return min(span.epoch for place in places for span in place.spans)

        until(lambda: seen() == epochs, "all is committed")


class Orders:
    """A job with the two operators of S-QUERY's example, and the views of their states; truth from the input."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark, self.stored = spark, directory / "state"
        self.tables: list[pa.Table] = []
        self.stream = FileStream(spark, directory / "orders")
        for number in range(BATCHES):
            self.add(orders(number))
        self.job = Job(
            spark, "orders", proxy_ports="0", server_ports="0", parallelism=2, checkpoint_dir=str(self.stored)
        )
        keyed = self.job.key_by(self.stream.read(), "partitionKey")
        self.queries = []
        for name, kind in (("orderinfo", OrderInfo), ("orderstate", OrderState)):
            columns = list(kind.__dataclass_fields__)
            state = ValueStateDescriptor(name, kind).queryable(name)
            sink = keyed.as_queryable_state(state, uid=name, value=columns)
            self.queries.append(sink.start(checkpoint_location=str(directory / f"progress-{name}")))
        self.process()

    def add(self, table: pa.Table) -> None:
        """One more micro-batch."""
        self.tables.append(table)
        self.stream.add(table)

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.job.proxy_address)

    def process(self) -> None:
        """Process all of the input, and wait until clients see it as committed."""
        for query in self.queries:
            query.processAllAvailable()
        until_committed(self.job, "orders", ("orderinfo", "orderstate"), len(self.tables))

    def source(self, state: str, **options: Any) -> Any:
        """A table of the state's own columns, as S-QUERY names them."""
        found = self.spark.read.format("qstate").option("address", self.address).option("job", "orders")
        found = found.option("state", state).option("key_columns", "partitionKey").options(**options).load()
        return found.select("partitionKey", "value.*", "epoch")

    def latest(self, upto: int = BATCHES - 1) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for table in self.tables[: upto + 1]:
            found.update({row["partitionKey"]: row for row in table.to_pylist()})
        return found

    def counted(self, by: str, *states: str, late: bool = False) -> Rows:
        """How many orders there are of each kind, of those that are in one of these states."""
        rows = self.latest().values()
        fitting = (row for row in rows if row["orderState"] in (states or STATES))
        kinds = Counter(row[by] for row in fitting if not late or row["lateTimestamp"] < NOON)
        return sorted((count, kind) for kind, count in kinds.items())

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
        self.job.stop()


@pytest.fixture(scope="module")
def shop(cluster_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    found = Orders(cluster_spark, tmp_path_factory.mktemp("shop"))
    yield found
    found.stop()


JOIN = 'FROM "{0}orderinfo" t1 JOIN "{0}orderstate" t2 USING(partitionKey) WHERE {1} GROUP BY {2}'
PREPARED, ON_THE_WAY = ("VENDOR_ACCEPTED",), ("PICKED_UP", "LEFT_PICKUP", "NEAR_CUSTOMER")
#: S-QUERY's own queries of its example, with `LOCALTIMESTAMP` as a fixed time.
COUNTS: dict[str, Callable[[Orders], Rows]] = {
    'SELECT COUNT(*), deliveryZone FROM "{0}orderinfo" GROUP BY deliveryZone': lambda shop: shop.counted(
        "deliveryZone"
    ),
    'SELECT COUNT(*), orderState FROM "{0}orderstate" GROUP BY orderState': lambda shop: shop.counted("orderState"),
    "SELECT COUNT(*), deliveryZone "
    + JOIN.format(
        "{0}", "orderState='VENDOR_ACCEPTED' AND lateTimestamp<TIMESTAMP'2022-05-09 12:00:00'", "deliveryZone"
    ): lambda shop: shop.counted("deliveryZone", *PREPARED, late=True),
    "SELECT COUNT(*), vendorCategory "
    + JOIN.format("{0}", "orderState='NOTIFIED' OR orderState='ACCEPTED'", "vendorCategory"): lambda shop: shop.counted(
        "vendorCategory", "NOTIFIED", "ACCEPTED"
    ),
    "SELECT COUNT(*), deliveryZone "
    + JOIN.format("{0}", "orderState='VENDOR_ACCEPTED'", "deliveryZone"): lambda shop: shop.counted(
        "deliveryZone", *PREPARED
    ),
    "SELECT COUNT(*), deliveryZone "
    + JOIN.format(
        "{0}",
        "orderState='PICKED_UP' OR orderState='LEFT_PICKUP' OR orderState='NEAR_CUSTOMER'",
        "deliveryZone",
    ): lambda shop: shop.counted("deliveryZone", *ON_THE_WAY),
}


def test_counts_and_joins_of_operators_of_s_query(shop: Orders) -> None:
    for state in ("orderinfo", "orderstate"):
        shop.source(state, isolation="live").createOrReplaceTempView(state)
        shop.source(state, isolation="committed").createOrReplaceTempView(f"snapshot_{state}")
    for query, truth in COUNTS.items():
        for prefix in ("", "snapshot_"):
            found = shop.spark.sql(query.format(prefix).replace('"', "`")).collect()
            assert sorted(tuple(row) for row in found) == truth(shop), query
            assert found


def test_snapshots_by_their_number_as_s_query_has_them(shop: Orders) -> None:
    shop.source("orderstate", readChangeFeed="true", changeStartEpoch=0).createOrReplaceTempView("changes")
    times = Counter(row["partitionKey"] for table in shop.tables for row in table.to_pylist())
    numbers = shop.spark.sql("SELECT partitionKey, COUNT(*), MAX(epoch) FROM changes GROUP BY partitionKey").collect()
    newest = {key: n for n, table in enumerate(shop.tables) for key in table["partitionKey"].to_pylist()}
    assert {row[0]: (row[1], row[2]) for row in numbers} == {key: (times[key], newest[key]) for key in times}
    for number in range(BATCHES):
        stored = shop.spark.read.format("qstate").option("state", "orderstate").option("epoch", number)
        found = stored.load(str(shop.stored)).select("key", "value.orderState").collect()
        truth = {key: row["orderState"] for key, row in shop.latest(number).items()}
        assert {row.key: row.orderState for row in found} == truth


def test_a_stream_of_few_epochs_at_a_time_goes_on_where_it_was(shop: Orders, tmp_path: Path) -> None:
    """With a restart in the middle of what is available, and epochs that come while it is down."""
    changes = shop.spark.readStream.format("qstate").option("address", shop.address).option("job", "orders")
    changes = changes.option("state", "orderstate").option("readChangeFeed", "true").option("maxEpochsPerTrigger", 2)
    batches: list[list[Any]] = []
    writer = changes.load().writeStream.foreachBatch(lambda frame, _: batches.append(frame.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "follower")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert len(batches) == 1  # the snapshot
    for number in range(BATCHES, BATCHES + 4):
        shop.add(orders(number))
    shop.process()

    def fail_in_the_middle(frame: Any, _: int) -> None:
        if len(batches) == 2:
            raise RuntimeError("in the middle")
        batches.append(frame.collect())

    with pytest.raises(StreamingQueryException, match="in the middle"):
        writer.foreachBatch(fail_in_the_middle).start().awaitTermination()
    writer.foreachBatch(lambda frame, _: batches.append(frame.collect())).start().awaitTermination()
    epochs = [sorted({row["epoch"] for row in batch}) for batch in batches[1:]]
    assert epochs == [[4, 5], [6, 7]]
    rows = {row["key"]: row["value"]["orderState"] for batch in batches for row in batch}
    assert rows == {key: row["orderState"] for key, row in shop.latest(BATCHES + 4).items()}


def test_what_sparks_own_source_reads(cluster_spark: Any, job_of: Any, stream_of: Any, tmp_path: Path) -> None:
    """The same sums in a stateful operator of Spark's and in a state here: now, at a batch, and their changes."""
    spark = cluster_spark
    stream = stream_of(spark, *amounts(batches=3, rows_a_batch=200, keys=30))
    sums = stream.read().groupBy("key").sum("amount")
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    sums.writeStream.format("noop").outputMode("update").option("checkpointLocation", theirs).trigger(
        availableNow=True
    ).start().awaitTermination()
    job = job_of(spark, name="sums", checkpoint_dir=ours)
    total = ReducingStateDescriptor("total", int, reduce_function=add).queryable("total")
    sink = job.key_by(stream.read(), "key").as_queryable_state(total, uid="sums", value="amount")
    query = sink.start(checkpoint_location=str(tmp_path / "progress"))
    query.processAllAvailable()
    until_committed(job, "sums", ("total",), 3)
    address = "{}:{}".format(*job.proxy_address)

    def rows(frame: Any, *columns: str) -> Rows:
        return sorted(tuple(row) for row in frame.selectExpr(*columns).collect())

    statestore = spark.read.format("statestore")
    stored = spark.read.format("qstate").option("state", "total")
    live = spark.read.format("qstate").option("address", address).option("job", "sums").option("state", "total")
    value = "value.sum"
    newest = rows(statestore.load(theirs), "key.key", value)
    assert newest
    assert rows(live.load(), "key", "value") == newest
    assert rows(stored.option("epoch", 2).load(ours), "key", "value") == newest
    then = rows(spark.read.format("statestore").option("batchId", 1).load(theirs), "key.key", value)
    assert rows(stored.option("epoch", 1).load(ours), "key", "value") == then != newest
    feed = spark.read.format("statestore").option("readChangeFeed", True).option("changeStartBatchId", 1)
    changed = live.option("readChangeFeed", True).option("changeStartEpoch", 1).load()
    their_changes = rows(feed.load(theirs), "batch_id", "key.key", value)
    assert rows(changed, "epoch", "key", "value") == their_changes
    assert {row[0] for row in their_changes} == {1, 2}
    (operator,) = spark.read.format("state-metadata").load(theirs).collect()
    query.stop()
    assert (operator["minBatchId"], operator["maxBatchId"]) == (0, 2)
