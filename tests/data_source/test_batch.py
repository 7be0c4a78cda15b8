"""Tables of a served job and of stored state, read as Spark reads them, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_qstate
from qstate.errors import CheckpointError, Unavailable, UnknownState
from qstate.spark.data_source.source import StateDataSource
from tests.project.served_job import CONTENTS, JOB, serve, serve_history


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("served"), committed=True) as (host, port):
        yield f"{host}:{port}"


def load(**options: str) -> list[dict[str, Any]]:
    """The rows, with the reader and its partitions pickled as on the way to an executor."""
    source = StateDataSource(options)
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_the_module_that_spark_looks_for_names_the_source() -> None:
    assert pyspark_qstate.DefaultSource is StateDataSource and StateDataSource.name() == "qstate"


@pytest.mark.parametrize("isolation", ["live", "committed"])
@pytest.mark.parametrize("state", CONTENTS)
def test_every_kind_of_state(served: str, state: str, isolation: str) -> None:
    rows = load(address=served, job=JOB, state=state, isolation=isolation)
    found: dict[Any, dict[Any, Any]] = {}
    for row in rows:
        key = row["key"] if "key" in row else tuple(row[f"key_{at}"] for at in (1, 2, 3))
        value = dict(row["value"]) if state == "visits" else row["value"]
        found.setdefault(row["namespace"], {})[key] = float(value) if state == "meanDelay" else value
        assert row["epoch"] == 0
    assert found == CONTENTS[state]


def test_keys_prefixes_and_namespaces_are_selected(served: str) -> None:
    state = {"address": served, "job": JOB, "state": "lastTemperature"}
    assert [row["value"] for row in load(**state, keys='["JFK", "LGA"]')] == [71.06]
    assert [row["value"] for row in load(**state, keys='["JFK"]', namespace="2013-07-18")] == [100.04]
    assert [row["value"] for row in load(**state, prefix="J", namespace="null")] == [71.06]
    assert load(**state, prefix="L") == []
    place = {**state, "state": "byPlace", "prefix": '["JFK", "7"]', "key_columns": "airport, runway, mark"}
    assert [(row["airport"], row["runway"], row["mark"]) for row in load(**place)] == [("JFK", 7, b"\xff")]


def test_unknown_states_and_silent_addresses_are_errors_of_the_client(served: str) -> None:
    with pytest.raises(UnknownState, match="no queryable state of that name"):
        load(address=served, job=JOB, state="colour")
    with pytest.raises(Unavailable):
        load(address="127.0.0.1:1", job=JOB, state="colour", timeout_s="0.5")


def test_stored_state_as_of_each_epoch(tmp_path: Path) -> None:
    with serve_history(tmp_path, job=JOB):
        where = str(tmp_path / "checkpoint")
        newest = load(path=where, state="lastTemperature")
        assert [(row["key"], row["value"]) for row in newest] == [("JFK", 72.0)]  # epoch 2 may not be committed
        rows = {epoch: load(path=where, state="value", epoch=epoch) for epoch in ("0", "1", "2")}
        assert {epoch: {row["key"]: row["value"] for row in found} for epoch, found in rows.items()} == {
            "0": {"JFK": 71.06},
            "1": {"JFK": 72.0},
            "2": {"JFK": 73.0, "LGA": 80.0},
        }
        assert {row["epoch"] for row in rows["2"]} == {2}
        for options, message in (
            ({"state": "colour"}, "no state 'colour'; it has lastTemperature"),
            ({"state": "value", "operator": "nobody"}, "no operator 'nobody'"),
            ({"state": "value", "epoch": "9"}, "as of epoch 9; its newest epoch is 2"),
        ):
            with pytest.raises(CheckpointError, match=message):
                load(path=where, **options)


def test_a_path_without_state(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a savepoint"):
        load(path=str(tmp_path), state="last")
