"""Every kind of state of a job in task managers: the table, the stored table and the change feed agree."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.keys import key_group, subtask_of
from qstate.spark.data_source.source import StateDataSource
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch, until
from tests.runtime.standby.asked import KEYS, settled
from tests.runtime.standby.functions import NAMES, EveryKind

Table = dict[tuple[Any, Any], Any]
PARALLELISM = 2


def feed(job: RunningJob, epoch: int, amount: int, keys: list[str]) -> None:
    """One epoch, with a row for each of these keys."""
    for subtask in range(PARALLELISM):
        own = [key for key in keys if subtask_of(key_group(key, 128), PARALLELISM, 128) == subtask]
        job.epoch(epoch, rows_batch(*((key, amount) for key in own)), subtask=subtask)
    job.manager.finalize(QUERY, epoch)


def rows_of(reader: Any, parts: Any) -> list[dict[str, Any]]:
    """The rows, with the reader and its partitions pickled as on the way to an executor."""
    reader, parts = pickle.loads(pickle.dumps((reader, parts)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def table_of(rows: list[dict[str, Any]]) -> Table:
    return {(row["key"], row["namespace"]): in_any_order(row["value"]) for row in rows}


def in_any_order(value: Any) -> Any:
    """A map's entries come in any order, as pairs."""
    return dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


def read(**options: str) -> Table:
    source = StateDataSource(options)
    reader = source.reader(source.schema())
    return table_of(rows_of(reader, reader.partitions()))


def applied(table: Table, rows: list[dict[str, Any]]) -> None:
    """What a user of the feed does with its rows."""
    for row in rows:
        place, value = (row["key"], row["namespace"]), in_any_order(row["value"])
        match row["change_type"]:
            case "put":
                table[place] = value
            case "delete":
                table.pop(place, None)
            case "add":
                table[place] = [*table.get(place, []), *value]
            case "put_entry":
                table[place] = {**table.get(place, {}), **value}
            case "remove_entry":
                table[place] = {key: one for key, one in table.get(place, {}).items() if key not in value}
                if not table[place]:
                    del table[place]


class Feed:
    """A stream that is restarted for each batch, from what Spark has stored."""

    def __init__(self, address: str, state: str) -> None:
        self._options = {"address": address, "job": JOB, "state": state, "readChangeFeed": "true"}
        self.offset: Any = None
        self.table: Table = {}

    def plan(self, epoch: int) -> tuple[Any, Any, Any]:
        """The next batch, as soon as it reaches this epoch everywhere."""
        source = StateDataSource(self._options)
        stream: Any = source.streamReader(source.schema())
        start = stream.initialOffset() if self.offset is None else self.offset
        found: list[Any] = []

        def arrived() -> bool:
            found[:] = [json.loads(json.dumps(stream.latestOffset(start, None)))]
            return all(span[2] > epoch for span in found[0]["ranges"])

        until(arrived, f"epoch {epoch} is committed")
        stream.stop()
        return stream, start, found[0]

    def run(self, plan: tuple[Any, Any, Any]) -> None:
        stream, start, end = plan
        applied(self.table, rows_of(stream, stream.partitions(start, end)))
        self.offset = end


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_table_stored_table_and_feed_agree(job_of: Callable[..., RunningJob], tmp_path: Path, backend: str) -> None:
    job = job_of(EveryKind(), backend=backend, parallelism=PARALLELISM)
    for epoch, amount in enumerate((7, 4, 5)):
        feed(job, epoch, amount, KEYS)
    proxy = job.manager.wait_for_proxy(20.0)
    address = f"{proxy[0]}:{proxy[1]}"
    settled(proxy, 2)
    feeds = {name: Feed(address, name) for name in NAMES}
    plans = {name: one.plan(2) for name, one in feeds.items()}
    # The job goes on before the snapshots are read: with keys that change, end and begin again, and keys that rest.
    for epoch, (amount, keys) in enumerate(((9, KEYS[:16]), (0, KEYS[:8]), (10, KEYS[4:12]), (3, KEYS[:4])), 3):
        feed(job, epoch, amount, keys)
    for name, one in feeds.items():
        one.run(plans[name])
        assert {key for key, _ in one.table} >= set(KEYS[16:]), name
        one.run(one.plan(6))
        truth = read(address=address, job=JOB, state=name, isolation="committed")
        assert one.table == truth and truth, name
        if name != "mean":  # an aggregate is stored as its accumulator
            assert read(path=str(tmp_path / "checkpoint"), state=name, epoch="6") == truth, name
        assert {span[2] for span in one.offset["ranges"]} == {7}
