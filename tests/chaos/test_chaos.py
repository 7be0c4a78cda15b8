"""A job under chaos ends with the state and the alerts that an undisturbed one ends with.

The schedule is drawn from a seed (`--seed N`, or QSTATE_CHAOS_SEED) and printed; the seed brings the same one again.
What the machine makes of it, such as which of two subtasks comes first, is up to the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qstate.checkpoint import open_source, read_entries, read_operator_state
from qstate.checkpoint.log.operator_state import FUNCTION_LIST
from qstate.checkpoint.sources.verification import verify
from qstate.client import ClientCache
from tests.chaos.change_reader import ChangeReader
from tests.chaos.committed_reader import CommittedReader
from tests.chaos.driver import JOB
from tests.chaos.faults import Action, Fault, Place
from tests.chaos.inputs import expectation, flights, generated, write_input
from tests.chaos.monkey import Monkey
from tests.chaos.schedule import Scenario, lives, schedule
from tests.spark.streams import LOCAL_CLUSTER, LOCAL_WITH_RETRIES

#: The states whose stored values are what queries show, by name: that of an aggregating state is its accumulator.
DUMPED = {
    "last": "lastRow",
    "recent": "recentAmounts",
    "visits": "visitsByLabel",
    "total": "totalAmount",
    "fired": "firedTimers",
}

#: The bound lasts for several epochs.
CACHE = ClientCache(max_staleness_s=2.0)

SHORT = Scenario(LOCAL_WITH_RETRIES, "rocksdb", "files", faults=8, most_drivers_lost=1)

LONG = {
    "local-heap-generated": Scenario(LOCAL_WITH_RETRIES, "heap", "foreachBatch", faults=32, most_drivers_lost=5),
    "local-rocksdb-flights": Scenario(LOCAL_WITH_RETRIES, "rocksdb", "files", faults=32, most_drivers_lost=5),
    "cluster-rocksdb-generated": Scenario(LOCAL_CLUSTER, "rocksdb", "foreachBatch", faults=32, most_drivers_lost=4),
    "cluster-heap-flights": Scenario(LOCAL_CLUSTER, "heap", "files", faults=32, most_drivers_lost=4),
}


def assert_survives(work: Path, scenario: Scenario, tables: list[pa.Table], faults: list[Fault], seed: int) -> None:
    """Run the job over the tables through these faults, and compare what is left with what has to be."""
    expected = expectation(tables)
    write_input(tables, work / "input")
    with Monkey(work, scenario, lives(scenario, seed), faults) as monkey:
        checkpoint = work / "checkpoint"
        with (
            CommittedReader(
                JOB, expected.keys[:20], monkey.proxies, expected.totals, checkpoint, standbys=True
            ) as reader,
            CommittedReader(
                JOB, expected.keys[:20], monkey.proxies, expected.totals, checkpoint, standbys=True, cache=CACHE
            ) as cached,
            ChangeReader(JOB, monkey.proxies, expected.totals, checkpoint) as subscriber,
        ):
            address = monkey.run(timeout_s=180 + 20 * len(faults))
            last = len(tables) - 1
            assert subscriber.wait_for(last, 60.0), f"changes up to epoch {subscriber.complete} of {last}"
        for isolation in ("live", "committed"):
            keys = {state: list(contents) for state, contents in expected.states.items()}
            found = monkey.states(address, keys, isolation)
            for state, contents in expected.states.items():
                assert found[state] == contents, (isolation, state)
        scanned = {name: monkey.scanned(address, state) for name, state in DUMPED.items()}
        assert monkey.alerts() == expected.alerts
        assert reader.violations == []
        assert cached.violations == []
        assert reader.answers > 0 and reader.scans > 0 and cached.hits > 0
        assert subscriber.violations == []
        assert subscriber.missing(last) == []
        stopping = [fault for fault in faults if (fault.place, fault.action) == (Place.SINK, Action.RAISE)]
        assert len(monkey.stops) == len(stopping)
        assert monkey.not_struck == []
        monkey.end()
    source = open_source(str(work / "epochs"))
    dumped: dict[str, dict[tuple[str, str | None], Any]] = {name: {} for name in DUMPED}
    for entry in read_entries(source, "ledger"):
        if entry.state in dumped:
            dumped[entry.state][str(entry.key), entry.map_key] = entry.value  # type: ignore[index]
    assert scanned == dumped, "a scan shows what a dump of the checkpoint has"
    counts = [one.value for one in read_operator_state(source, "ledger") if one.state == FUNCTION_LIST]
    assert sum(counts) == expected.rows, "the attribute of the function"
    assert [file for file in verify(str(work / "epochs")) if file.damage is not None] == []


def assert_survives_schedule(work: Path, scenario: Scenario, tables: list[pa.Table], seed: int) -> None:
    faults = schedule(scenario, [table.num_rows for table in tables], seed)
    assert len(faults) == scenario.faults
    print(f"\nchaos, seed {seed}, on {scenario}:", *faults, sep="\n  ", flush=True)
    assert_survives(work, scenario, tables, faults, seed)


def test_a_job_through_eight_faults_ends_as_an_undisturbed_one(seed: int, tmp_path: Path) -> None:
    assert_survives_schedule(tmp_path, SHORT, generated(epochs=10, seed=seed), seed)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", LONG.values(), ids=LONG)
def test_a_job_through_more_than_thirty_faults_ends_as_an_undisturbed_one(
    scenario: Scenario, request: pytest.FixtureRequest, seed: int, tmp_path: Path
) -> None:
    of_flights = "flights" in request.node.callspec.id
    tables = flights(18, tmp_path / "flights") if of_flights else generated(epochs=18, seed=seed)
    assert_survives_schedule(tmp_path, scenario, tables, seed)


@pytest.mark.soak
def test_without_faults_the_job_ends_with_what_plain_python_computes(seed: int, tmp_path: Path) -> None:
    """What the other runs are compared with is what an undisturbed run gives."""
    scenario = Scenario(LOCAL_WITH_RETRIES, "heap", "files", faults=0, most_drivers_lost=0)
    assert_survives(tmp_path, scenario, generated(epochs=18, seed=seed), [], seed)
