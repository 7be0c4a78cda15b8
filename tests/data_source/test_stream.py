"""The change feed, read as Spark reads a stream: offsets, partitions, rows, and what a restart reads again."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from qstate.backends.contract import Change, ChangeOp
from qstate.errors import ConfigError, JobError, Unavailable
from qstate.keys import encode_key, key_group
from qstate.spark.data_source.source import StateDataSource
from tests.project.served_job import JOB, serve_history
from tests.runtime.serving.feeds import History, put

State = dict[str, float]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, History]]:
    """A state with the committed epochs 0 to 2, whose scans show epoch 0."""
    with serve_history(tmp_path, job=JOB) as ((host, port), history):
        yield f"{host}:{port}", history


def stream_of(address: str, **options: str) -> Any:
    source = StateDataSource(
        {"address": address, "job": JOB, "state": "lastTemperature", "readChangeFeed": "true", **options}
    )
    return source.streamReader(source.schema())


def offset(found: Any) -> Any:
    """The offset after Spark has stored it."""
    return json.loads(json.dumps(found))


def batch(stream: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(stream))
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return [row for part in parts for found in reader.read(part) for row in found.to_pylist()]


def delete(key: str, state: str = "value") -> Change:
    return Change(ChangeOp.DELETE, state, key_group(key, 128), encode_key(None), encode_key(key), b"", b"")


def test_changes_between_two_offsets_are_read_the_same_twice(served: tuple[str, History]) -> None:
    address, history = served
    stream = stream_of(address)
    begin = {"version": 1, "ranges": [[0, 128, 1]]}
    end = offset(stream.latestOffset(begin, None))
    assert end["ranges"] == [[0, 128, 3]]
    found = batch(stream, begin, end)
    assert [(row["epoch"], row["change_type"], row["key"], row["value"]) for row in found] == [
        (1, "put", "JFK", 72.0),
        (2, "put", "JFK", 73.0),
        (2, "put", "LGA", 80.0),
    ]
    history.commit(3, delete("LGA"))
    assert batch(stream, begin, end) == found
    newest = offset(stream.latestOffset(end, None))
    (row,) = batch(stream, end, newest)
    assert (row["epoch"], row["change_type"], row["key"], row["value"]) == (3, "delete", "LGA", None)
    assert stream.latestOffset(newest, None) == newest
    assert batch(stream, newest, newest) == []
    stream.stop()


def test_other_divisions_of_the_key_groups_read_each_change_once(served: tuple[str, History]) -> None:
    stream = stream_of(served[0])
    begin = {"version": 1, "ranges": [[0, 50, 2], [50, 128, 1]]}
    end = {"version": 1, "ranges": [[0, 70, 3], [70, 128, 3]]}
    groups = {key: key_group(key, 128) for key in ("JFK", "LGA")}
    wanted = {(2, key) for key in groups} | {(1, "JFK") for _ in "x" if groups["JFK"] >= 50}
    found = [(row["epoch"], row["key"]) for row in batch(stream, begin, end)]
    assert len(found) == len(set(found)) and set(found) == wanted


def test_a_prefix_selects_keys(served: tuple[str, History]) -> None:
    stream = stream_of(served[0], prefix="L", key_columns="airport")
    begin, end = {"version": 1, "ranges": [[0, 128, 0]]}, {"version": 1, "ranges": [[0, 128, 3]]}
    assert [row["airport"] for row in batch(stream, begin, end)] == ["LGA"]


def test_changes_that_are_not_stored_any_more_say_what_to_do(served: tuple[str, History]) -> None:
    address, history = served
    history.snapshot()
    stream = stream_of(address)
    with pytest.raises(JobError, match=r"epoch 1 of .* new checkpointLocation") as failure:
        batch(stream, {"version": 1, "ranges": [[0, 128, 1]]}, {"version": 1, "ranges": [[0, 128, 3]]})
    assert "since epoch 3 only" in str(failure.value)


def test_no_batch_comes_while_the_job_is_away_until_the_patience_is_over(tmp_path: Path) -> None:
    with serve_history(tmp_path, job=JOB) as ((host, port), _):
        stream = stream_of(f"{host}:{port}", timeout_s="0.3", patience_s="0.5")
        reached = offset(stream.latestOffset(stream.initialOffset(), None))
    assert stream.latestOffset(reached, None) == reached
    with pytest.raises(Unavailable):
        for _ in range(20):
            stream.latestOffset(reached, None)
    stream.stop()


def test_an_owner_that_is_behind_brings_no_batch(served: tuple[str, History]) -> None:
    ahead = {"version": 1, "ranges": [[0, 128, 4]], "history": None}
    stream = stream_of(served[0])
    assert stream.latestOffset(ahead, None) == ahead
    stream.stop()


def test_a_job_that_has_started_over_is_an_error(served: tuple[str, History]) -> None:
    stream = stream_of(served[0])
    end = offset(stream.latestOffset(stream.initialOffset(), None))
    before = {"version": 1, "ranges": [[0, 128, 1]], "history": end["history"] + 1}
    with pytest.raises(JobError, match="started over"):
        stream.latestOffset(before, None)
    with pytest.raises(JobError, match="started over"):
        batch(stream, before, {**before, "ranges": [[0, 128, 3]]})
    stream.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "false"}, "add .option"),
        ({"isolation": "live"}, "committed changes only"),
        ({"keys": '["JFK"]'}, "prefix or a namespace"),
        ({"changeStartEpoch": "1"}, "begins with a snapshot"),
        ({"changeEndEpoch": "1"}, "begins with a snapshot"),
    ],
)
def test_options_that_no_stream_has(served: tuple[str, History], options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stream_of(served[0], **options)


def table(address: str, **options: str) -> list[tuple[int, str, str]]:
    """The changes that a batch reads."""
    given = {"address": address, "job": JOB, "state": "lastTemperature", "readChangeFeed": "true", **options}
    source = StateDataSource(given)
    reader: Any = pickle.loads(pickle.dumps(source.reader(source.schema())))
    parts = reader.partitions() or [InputPartition(None)]  # as Spark plans
    rows = [row for part in parts for found in reader.read(part) for row in found.to_pylist()]
    return [(row["epoch"], row["change_type"], row["key"]) for row in rows]


def test_a_batch_has_the_changes_of_the_epochs_that_it_names(served: tuple[str, History]) -> None:
    address, history = served
    history.commit(3, delete("LGA"))
    second, third = [(2, "put", "JFK"), (2, "put", "LGA")], [(3, "delete", "LGA")]
    assert table(address, changeStartEpoch="2") == second + third
    assert table(address, changeStartEpoch="2", changeEndEpoch="2") == second
    assert table(address, changeStartEpoch="2", prefix="L") == [second[1], *third]
    assert table(address, changeStartEpoch="4") == table(address, changeStartEpoch="2", changeEndEpoch="1") == []
    history.snapshot()
    with pytest.raises(JobError, match="later changeStartEpoch"):
        table(address, changeStartEpoch="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the first epoch"),
        ({"changeStartEpoch": "-1"}, "number of an epoch"),
        ({"changeStartEpoch": "1", "isolation": "live"}, "committed changes"),
        ({"changeStartEpoch": "1", "keys": '["JFK"]'}, "prefix or a namespace"),
        ({"changeStartEpoch": "1", "maxEpochsPerTrigger": "1"}, "for a stream"),
    ],
)
def test_options_that_no_batch_of_changes_has(
    served: tuple[str, History], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        table(served[0], **options)


def test_a_micro_batch_has_at_most_so_many_epochs(served: tuple[str, History]) -> None:
    stream = stream_of(served[0], maxEpochsPerTrigger="1")
    limit = stream.getDefaultReadLimit()
    (snapshot,) = offset(stream.latestOffset(stream.initialOffset(), limit))["ranges"]
    assert snapshot[2] == 3  # of the newest epoch
    begin: dict[str, Any] = {"version": 1, "ranges": [[0, 50, 2], [50, 128, 1]]}
    ends = []
    while not ends or ends[-1] != begin:
        begin = ends[-1] if ends else begin
        ends.append(offset(stream.latestOffset(begin, limit)))
    assert [end["ranges"] for end in ends] == [[[0, 50, 3], [50, 128, 2]], *[[[0, 50, 3], [50, 128, 3]]] * 2]
    assert stream_of(served[0]).getDefaultReadLimit() == ReadAllAvailable()
    begin = {"version": 1, "ranges": [[0, 128, 1]]}
    assert stream.latestOffset(begin, ReadAllAvailable())["ranges"] == [[0, 128, 3]]
    stream.stop()
    with pytest.raises(ConfigError, match="maxEpochsPerTrigger"):
        stream_of(served[0], maxEpochsPerTrigger="0")


def test_a_query_of_what_is_available_ends_where_the_job_was_at_its_start(served: tuple[str, History]) -> None:
    address, history = served
    stream = stream_of(address, maxEpochsPerTrigger="2")
    limit = stream.getDefaultReadLimit()
    stream.prepareForTriggerAvailableNow()
    history.commit(3, put("JFK", 74.0, state="value"))
    end = offset(stream.latestOffset({"version": 1, "ranges": [[0, 128, 1]]}, limit))
    assert end["ranges"] == [[0, 128, 3]]
    assert stream.latestOffset(end, limit) == end
    stream.stop()


def test_an_offset_of_another_version_is_refused(served: tuple[str, History]) -> None:
    with pytest.raises(JobError, match="another version"):
        stream_of(served[0]).latestOffset({"version": 2, "ranges": []}, None)


def test_put_is_a_change(served: tuple[str, History]) -> None:
    address, history = served
    history.commit(3, put("BOS", 20.0, state="value"))
    stream = stream_of(address)
    begin = {"version": 1, "ranges": [[0, 128, 3]]}
    (row,) = batch(stream, begin, offset(stream.latestOffset(begin, None)))
    assert (row["key"], row["value"]) == ("BOS", 20.0)
    stream.stop()
