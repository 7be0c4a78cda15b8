"""State as a DataFrame and as a stream, while a job on Spark writes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source, read_entries
from qstate.keys import KeyGroupRange, key_group, subtask_of
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts, totals
from tests.spark.streams import until

BATCHES, KEYS, PARALLELISM = 10, 200, 2
STATE = "totalAmount"


class Feed:
    """A stream over the change feed, and the table that its rows make. A batch that comes again counts once."""

    def __init__(self, spark: Any, address: str, checkpoint: Path) -> None:
        self.batches: dict[int, list[Any]] = {}
        source = spark.readStream.format("qstate").option("address", address).option("job", "job")
        changes = source.option("state", STATE).option("readChangeFeed", "true").load()
        self._writer = changes.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))

    def _take(self, frame: Any, number: int) -> None:
        self.batches[number] = frame.collect()

    def start(self) -> Any:
        return self._writer.start()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def table(self) -> dict[str, int]:
        return {row["key"]: row["value"] for row in self.rows}


def subtask(key: str) -> int:
    return subtask_of(key_group(key, 128), PARALLELISM, 128)


def history(tables: list[Any]) -> Iterator[tuple[int, str, int]]:
    """Each change that the job makes: its epoch, the key and the total then."""
    for epoch, table in enumerate(tables):
        reached = totals(tables[: epoch + 1])
        for key in sorted(set(table["key"].to_pylist())):
            yield epoch, key, reached[key]


def stored(checkpoint: Path, epoch: int) -> dict[int, dict[str, int]]:
    """What a dump has as of an epoch, by subtask."""
    source = open_source(str(checkpoint))
    parts = {one: KeyGroupRange.of_subtask(one, PARALLELISM, 128) for one in range(PARALLELISM)}
    return {
        one: {str(entry.key): entry.value for entry in read_entries(source, "total", epoch=epoch, key_groups=groups)}
        for one, groups in parts.items()
    }


def test_live_state_under_load_is_that_of_a_dump_and_the_feed_is_exact_through_a_restart(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=BATCHES, rows_a_batch=500, keys=KEYS)
    job = job_of(spark, parallelism=PARALLELISM, checkpoint_dir=str(tmp_path / "state"))
    stream = stream_of(spark, *tables[:2])
    result = job.key_by(stream.read(), "key").process(Total(), output_schema="key string, total long", uid="total")
    query = result.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "progress")).start()
    query.processAllAvailable()
    address = "{}:{}".format(*job.proxy_address)
    feed = Feed(spark, address, tmp_path / "feed")
    follower = feed.start()
    until(lambda: bool(feed.rows), "the snapshot is there")
    writer = threading.Thread(target=lambda: [stream.add(table) for table in tables[2:6]])
    writer.start()

    source = spark.read.format("qstate").option("address", address).option("job", "job").option("state", STATE)
    committed = source.option("isolation", "committed").load()
    seen: dict[tuple[int, int], dict[str, int]] = {}
    while query.lastProgress["batchId"] < 5 or not seen:
        for row in committed.collect():
            seen.setdefault((subtask(row["key"]), row["epoch"]), {})[row["key"]] = row["value"]
    writer.join()
    for (number, epoch), rows in seen.items():
        assert rows == stored(tmp_path / "state", epoch)[number]

    until(lambda: len(feed.batches) > 2, "the stream is in the middle")
    follower.stop()
    for table in tables[6:]:
        stream.add(table)
    query.processAllAvailable()
    assert query.lastProgress["batchId"] == BATCHES - 1
    truth = {key: total for part in stored(tmp_path / "state", BATCHES - 1).values() for key, total in part.items()}
    follower = feed.start()
    until(lambda: feed.table == truth, "the stream has the last epoch")
    follower.stop()
    assert {row["key"]: row["value"] for row in source.option("isolation", "live").load().collect()} == truth
    assert truth == totals(tables)
    snapshot = {subtask(row["key"]): row["epoch"] for row in feed.batches[0]}
    changes = [(row["epoch"], row["key"], row["value"]) for row in feed.rows[len(feed.batches[0]) :]]
    assert len(changes) == len(set(changes))
    assert set(changes) == {one for one in history(tables) if one[0] > snapshot[subtask(one[1])]}


@pytest.mark.parametrize("how", ["python", "sql"])
def test_the_error_of_a_read_reaches_its_user(spark: Any, how: str) -> None:
    with pytest.raises(Exception, match=r"token_file") as failure:
        if how == "python":
            spark.read.format("qstate").option("job", "job").option("state", STATE).option("token", "sesame").load()
        else:
            spark.sql(f"CREATE TEMPORARY VIEW v USING qstate OPTIONS (job 'job', state '{STATE}', token 'sesame')")
    assert "sesame" not in str(failure.value)
