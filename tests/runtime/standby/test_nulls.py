"""Nulls in maps, from a job to those who read its state: queries, standbys, dumps, savepoints, another backend."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source, read_entries, write_savepoint
from qstate.client import QueryableStateClient
from qstate.descriptors import MapStateDescriptor
from qstate.operators.functions import KeyedProcessFunction
from qstate.standby import Standby
from qstate.views import ReadOnlyMapState
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch
from tests.runtime.standby.asked import reached
from tests.runtime.standby.functions import JSON

JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]
EXPECTED = {"1": 1, "2": None}


class OddAmounts(KeyedProcessFunction):
    """Remembers each amount by its text, an even one as None; yields how many there are."""

    def open(self, context: Any) -> None:
        declared = int | None
        self.plain = context.get_map_state(MapStateDescriptor("plain", declared).queryable("plain"))
        self.own = context.get_map_state(MapStateDescriptor("own", declared, serializer=JSON).queryable("own"))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        for state in (self.plain, self.own):
            state.put(str(row.amount), row.amount if row.amount % 2 else None)
            assert state.contains(str(row.amount))
        yield row.key, len(list(self.plain.keys()))


def epoch(job: RunningJob, number: int, *rows: tuple[str, int]) -> list[tuple[str, int]]:
    found = job.epoch(number, rows_batch(*rows))
    job.manager.finalize(QUERY, number)
    return found


def check_answers(address: tuple[str, int], *isolations: str, at_least: int) -> None:
    with QueryableStateClient(*address, timeout_s=20.0, serializers=[JSON]) as client:
        for isolation in isolations:
            for name in ("plain", "own"):
                view = client.get(JOB, name, "a", isolation=isolation, min_epoch=at_least)  # type: ignore[arg-type]
                assert isinstance(view, ReadOnlyMapState)
                assert view.contents() == EXPECTED
                assert view.contains("2") and view.get("2") is None and not view.contains("3")


@pytest.mark.parametrize(("backend", "other"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_nulls_reach_every_reader(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path, backend: str, other: str
) -> None:
    root = tmp_path / "checkpoint"
    job = job_of(OddAmounts(), backend=backend)
    assert epoch(job, 0, ("a", 1)) == [("a", 1)]
    standby = standby_of(backend=other)
    assert epoch(job, 1, ("a", 2)) == [("a", 2)]
    reached(standby, 1)
    check_answers(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=1)
    check_answers(standby.address, "committed", at_least=1)
    for source in (open_source(str(root)), write_savepoint(open_source(str(root)), tmp_path / "savepoint")):
        entries = [one for one in read_entries(source, "it") if one.state == "plain"]
        assert {one.map_key: one.value for one in entries} == EXPECTED
    job.stop()
    job = job_of(OddAmounts(), backend=other)
    assert epoch(job, 2, ("b", 1)) == [("b", 1)]
    check_answers(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=1)
    assert epoch(job, 3, ("a", 4)) == [("a", 3)]


def test_the_dump_prints_null(job_of: JobOf, tmp_path: Path) -> None:
    epoch(job_of(OddAmounts()), 0, ("a", 2))
    command = [sys.executable, "-m", "qstate.cli.main", "checkpoint", "dump", str(tmp_path / "checkpoint")]
    answer = subprocess.run([*command, "--state", "plain"], capture_output=True, timeout=60, check=True)
    (found,) = map(json.loads, answer.stdout.splitlines())
    assert (found["key"], found["map_key"], found["value"]) == ("a", "2", None)
