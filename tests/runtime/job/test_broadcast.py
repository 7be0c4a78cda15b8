"""Broadcast state in a job with real task managers: the same in every subtask, whatever dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from qstate.checkpoint import open_source, read_entries, read_operator_state, write_savepoint
from qstate.checkpoint.storage.locations import open_directory
from qstate.descriptors import MapStateDescriptor
from qstate.keys import decode_key
from qstate.operators.functions import KeyedBroadcastProcessFunction
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.standby import serve_checkpoint
from qstate.testing.inputs import Broadcast, HarnessInputs, Input
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Once, kill_this_process
from tests.runtime.job.running_job import JOB, QUERY, RunningJob
from tests.runtime.standby.asked import reached

JobOf = Callable[..., RunningJob]
PRICES = MapStateDescriptor("prices", int).queryable("prices")
INPUTS = HarnessInputs(
    [
        Broadcast(columns={"item": str, "price": int}, states=[PRICES]),
        Input(columns={"key": str, "amount": int}, key_by="key"),
    ]
)


class Costs(KeyedBroadcastProcessFunction):
    """Emits amount times the price of the key. The row "show" emits all prices."""

    def __init__(self, mischief: Callable[[], None] | None = None) -> None:
        self._mischief = mischief

    def open(self, context: Any) -> None:
        self.prices = context.get_broadcast_state(PRICES)

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        if row.price is None:
            self.prices.remove(row.item)
        else:
            self.prices.put(row.item, row.price)

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        if row.key == "mischief" and self._mischief is not None:
            self._mischief()
        if row.key == "show":
            yield from sorted(self.prices.entries())
        else:
            yield row.key, row.amount * (self.prices.get(row.key) or 0)


def rows(
    subtask: int, prices: list[tuple[str, int | None]] | None = None, found: list[tuple[str, int]] | None = None
) -> pa.RecordBatch:
    return INPUTS.batch(prices or [], found or [], subtask=subtask)


SHOW = [("show", 0)]


@pytest.fixture(params=EITHER_BACKEND)
def costs(request: pytest.FixtureRequest, job_of: JobOf) -> JobOf:
    def make(function: KeyedBroadcastProcessFunction | None = None, **settings: Any) -> RunningJob:
        settings = {"backend": request.param, "parallelism": 2, **settings}
        return job_of(function or Costs(), inputs=INPUTS, **settings)

    return make


def test_subtask_whose_task_manager_dies_has_the_prices_of_its_own_epoch(costs: JobOf, tmp_path: Path) -> None:
    job = costs(Costs(Once(tmp_path / "killed", kill_this_process)))
    for subtask in (0, 1):
        job.epoch(0, rows(subtask, [("a", 5), ("b", 7)]), subtask=subtask)
    changed: list[tuple[str, int | None]] = [("a", 50), ("b", None), ("c", 9)]
    assert job.epoch(1, rows(0, changed, SHOW), subtask=0) == [("a", 50), ("c", 9)]
    assert job.epoch(1, rows(1, changed, [("mischief", 1), *SHOW]), subtask=1) == [("mischief", 0), ("a", 50), ("c", 9)]
    assert (tmp_path / "killed").exists()
    for subtask in (0, 1):
        assert job.epoch(2, rows(subtask, [], SHOW), subtask=subtask) == [("a", 50), ("c", 9)]
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client:
        found = client.get_many(JOB, "prices", ["a", "b", "c"])
        assert [one and one.value() for one in found.values()] == [50, None, 9]


def test_epoch_that_one_subtask_had_sealed_is_the_same_under_another_driver(costs: JobOf, tmp_path: Path) -> None:
    settings = {"checkpoint_dir": str(tmp_path / "state")}
    job = costs(**settings)
    for subtask in (0, 1):
        job.epoch(0, rows(subtask, [("a", 5)]), subtask=subtask)
    job.manager.finalize(QUERY, 0)
    job.epoch(1, rows(0, [("a", 50)]), subtask=0)
    job.stop()
    again = costs(**settings)
    for subtask in (0, 1):
        assert again.epoch(1, rows(subtask, [("a", 50)]), subtask=subtask) == []
    for subtask in (0, 1):
        assert again.epoch(2, rows(subtask, [], SHOW), subtask=subtask) == [("a", 50)]


def test_savepoint_has_the_entries_once_and_any_parallelism_begins_with_them(
    costs: JobOf, job_of: JobOf, tmp_path: Path
) -> None:
    job = costs(checkpoint_dir=str(tmp_path / "state"))
    for subtask in (0, 1):
        job.epoch(0, rows(subtask, [("a", 5), ("b", 7)]), subtask=subtask)
    job.manager.finalize(QUERY, 0)
    source = open_source(str(tmp_path / "state"))
    write_savepoint(source, open_directory(str(tmp_path / "savepoint")))
    job.stop()
    saved = open_source(str(tmp_path / "savepoint"))
    first, second = saved.operator_states("it", 0)
    (prices,) = first
    assert [decode_key(msgpack.unpackb(element)[0]) for element in prices.elements] == ["a", "b"]
    assert list(second) == []
    settings = {"checkpoint_dir": str(tmp_path / "other"), "restore_from": str(tmp_path / "savepoint")}
    other = job_of(Costs(), inputs=INPUTS, parallelism=3, backend="heap", **settings)
    for subtask in range(3):
        assert other.epoch(1, rows(subtask, [], SHOW), subtask=subtask) == [("a", 5), ("b", 7)]


def test_standby_and_dump_have_the_prices_as_values_of_their_items(costs: JobOf, tmp_path: Path) -> None:
    root = tmp_path / "state"
    job = costs(checkpoint_dir=str(root))
    for epoch, prices in enumerate([[("a", 5), ("b", 7)], [("a", None), ("c", 9)]]):
        for subtask in (0, 1):
            job.epoch(epoch, rows(subtask, prices), subtask=subtask)
        job.manager.finalize(QUERY, epoch)
    job.stop()
    with serve_checkpoint(root, proxy_ports="0", server_ports="0", interval_s=0.02) as standby:
        reached(standby, 1)
        with QueryableStateClient(*standby.address, timeout_s=20.0) as client:
            found = client.get_many(JOB, "prices", ["a", "b", "c"], isolation="committed")
            assert [one and one.value() for one in found.values()] == [None, 7, 9]
            (described,) = client.states(JOB)
            assert (described["kind"], described["key_types"]) == ("value", ("string",))
    source = open_source(str(root))
    assert sorted((one.key, one.value) for one in read_entries(source, "it")) == [("b", 7), ("c", 9)]
    assert list(read_operator_state(source, "it")) == []
