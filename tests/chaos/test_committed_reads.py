"""Committed reads while epochs fail after they were sealed, and while epochs are rolled back."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from qstate.errors import NoCommittedEpoch
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.chaos.committed_reader import CommittedReader
from tests.chaos.functions import FailsOnCue, RunningTotal
from tests.either_backend import EITHER_BACKEND
from tests.spark.generated import amounts
from tests.spark.streams import LOCAL_WITH_RETRIES, run_to_end, start_spark, until

SCHEMA = "key string, at bigint, total double"
KEYS = [f"k{number}" for number in range(10)]
EPOCHS = 5
ROWS = 300


@pytest.fixture(scope="module")
def retrying_spark() -> Iterator[Any]:
    session = start_spark(LOCAL_WITH_RETRIES)
    yield session
    session.stop()


class FailingSink:
    """Writes nothing, and fails the first time in some epochs, in one of them after it has killed a task manager.

    `totals` are those that the rows of each epoch leave, as they were emitted when it was evaluated first; `shown` what
    committed reads gave while Spark was in an epoch: the epoch, and its totals.
    """

    def __init__(self, job: Any, *, fails: set[int], kills: set[int]) -> None:
        self._job = job
        self._fails = fails
        self._kills = kills
        self.evaluations: dict[int, list[list[Any]]] = defaultdict(list)
        self.totals: list[dict[str, float]] = []
        self.shown: list[tuple[int, set[int], dict[str, float]]] = []

    def __call__(self, batch: Any, epoch: int) -> None:
        rows = sorted(batch.collect(), key=lambda row: row.at)
        self.evaluations[epoch].append(rows)
        if len(self.totals) == epoch:
            before = self.totals[-1] if self.totals else {}
            self.totals.append({**before, **{row.key: row.total for row in rows}})
        self._look(epoch)
        if epoch in self._kills:
            self._kills.remove(epoch)
            process = psutil.Process(self._job.manager.task_managers()[0].pid)
            process.kill()
            process.wait(10)
            self._look(epoch)
        if epoch in self._fails:
            self._fails.remove(epoch)
            raise OSError("the sink is full")

    def _look(self, epoch: int) -> None:
        """What a reader is shown while an epoch is in the sink: the epoch before, and a refusal when there is none."""
        with QueryableStateClient(*self._job.proxy_address) as client:
            if epoch == 0:
                with pytest.raises(NoCommittedEpoch):
                    client.get_many("job", "totalAmount", KEYS, isolation="committed", wait_s=0.1)
                return
            found = client.get_many("job", "totalAmount", KEYS, isolation="committed", timeout_s=30.0)
        views = {key: view for key, view in found.items() if view is not None}
        self.shown.append((epoch, {view.epoch for view in views.values()}, {k: v.get() for k, v in views.items()}))


def proxies(job: Any) -> list[tuple[str, int]]:
    return [manager.proxy for manager in job.manager.task_managers() if manager.proxy is not None]


@pytest.mark.parametrize("backend", EITHER_BACKEND)
@pytest.mark.parametrize("random", [False, True], ids=["deterministic", "random"])
def test_an_epoch_whose_sink_fails_counts_once_and_is_shown_only_when_spark_has_committed_it(
    random: bool, backend: str, retrying_spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    tables = amounts(EPOCHS, ROWS, len(KEYS))
    job = job_of(retrying_spark, backend=backend)
    stream = stream_of(retrying_spark, *tables).read()
    result = job.key_by(stream, "key").process(RunningTotal(random=random), SCHEMA, uid="total", order_by="at")
    sink = FailingSink(job, fails={0, 1, 3}, kills={1, 2})

    def run() -> None:
        writer = result.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with CommittedReader("job", KEYS, lambda: proxies(job), sink.totals, tmp_path / "checkpoint") as reader:
        for _ in range(3):
            with pytest.raises(StreamingQueryException, match="the sink is full"):
                run()
        run()
    assert reader.violations == []
    assert {number: len(rows) for number, rows in sink.evaluations.items()} == {0: 2, 1: 2, 2: 1, 3: 2, 4: 1}
    assert all(rows[0] == rows[-1] for rows in sink.evaluations.values())
    for epoch, epochs, totals in sink.shown:
        assert (epochs, totals) == ({epoch - 1}, sink.totals[epoch - 1]), epoch
    with QueryableStateClient(*job.proxy_address) as client:
        found = client.get_many("job", "totalAmount", KEYS)
    assert {key: view.get() for key, view in found.items()} == sink.totals[-1]
    if not random:
        assert sink.totals[-1] == totals_of(tables)[-1]


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_committed_reads_never_go_back_and_never_show_what_a_rollback_undoes(
    backend: str, retrying_spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    """Each epoch fails once, held until readers have read beside it; live reads show what is then taken back."""
    tables = amounts(EPOCHS, ROWS, len(KEYS))
    rows = [epoch * ROWS + 200 for epoch in range(EPOCHS)]
    job = job_of(retrying_spark, backend=backend)
    keyed = job.key_by(stream_of(retrying_spark, *tables).read(), "key")
    result = keyed.process(FailsOnCue(rows, tmp_path), SCHEMA, uid="total", order_by="at")
    running = threading.Thread(target=run_to_end, args=(result, tmp_path / "checkpoint"))
    with CommittedReader("job", KEYS, lambda: proxies(job), totals_of(tables), tmp_path / "checkpoint") as reader:
        running.start()
        for epoch, row in enumerate(rows):
            reached = tmp_path / f"{row}.reached"
            until(lambda reached=reached: reached.exists() and reached.read_text() != "", f"epoch {epoch} runs")
            answers = reader.answers
            until(lambda answers=answers: reader.answers > answers + 2 * len(KEYS), "committed reads beside it")
            if backend == "heap":
                assert live_total(job, reached.read_text()) != after(tables, epoch - 1, reached.read_text())
            reached.with_suffix(".go").touch()
        running.join(60)
    assert not running.is_alive()
    assert reader.violations == []
    assert reader.scans
    assert {*range(EPOCHS - 1)} <= reader.seen
    with QueryableStateClient(*job.proxy_address) as client:
        found = client.get_many("job", "totalAmount", KEYS)
    assert {key: view.get() for key, view in found.items()} == totals_of(tables)[-1]


def live_total(job: Any, key: str) -> float:
    with QueryableStateClient(*job.proxy_address) as client:
        return float(client.get("job", "totalAmount", key).get())


def after(tables: list[Any], epoch: int, key: str) -> float:
    return totals_of(tables)[epoch][key] if epoch >= 0 else 0.0


def totals_of(tables: list[Any]) -> list[dict[str, float]]:
    """The total of each key after each epoch."""
    held: dict[str, float] = defaultdict(float)
    found = []
    for table in tables:
        for row in table.to_pylist():
            held[row["key"]] += row["amount"]
        found.append(dict(held))
    return found
