"""A job and its standbys on partial snapshots: every kind of state, restarted, followed and copied from a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source, write_savepoint
from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.standby import Standby
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.running_job import QUERY, RunningJob, rows_batch
from tests.runtime.standby.asked import KEYS, committed_answers, in_any_order, reached, settled
from tests.runtime.standby.functions import AGGREGATING, NAMES, EveryKind, window_of

JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]
#: Keys that only the first epoch puts: beside them, what later ones change is little.
FILLERS = [f"filler {number}" for number in range(300)]
#: Rows of each epoch: some keys are cleared (an amount of 0), and some of these put again, over a map and a list.
EPOCHS = [
    [(key, 1) for key in (*KEYS, *FILLERS)],
    [(key, amount) for key in KEYS[:8] for amount in (0, 2)] + [(key, 0) for key in KEYS[8:12]],
    [(key, 5) for key in KEYS[4:10]],
    [(key, 3) for key in KEYS[9:14]],
]


def run(job: RunningJob, epoch: int) -> None:
    job.epoch(epoch, rows_batch(*EPOCHS[epoch]))
    job.manager.finalize(QUERY, epoch)


def snapshot(job: RunningJob, epoch: int) -> None:
    """As the task manager has it made, but that no state is too small to be partial."""
    taken = take_snapshot(DurableDirectory(job.epoch_log()), upto=epoch, retained=1, whole_bytes=0)
    assert taken is not None and (taken.below is None) is (epoch == 0)


def answers(address: tuple[str, int]) -> Mapping[Any, Mapping[str, Any]]:
    """The answers of every state for every key, without the epoch."""
    found = {}
    for name in NAMES:
        for namespace in (None, window_of(1), window_of(2)):
            told = in_any_order(committed_answers(address, name, namespace))
            found[name, namespace] = {key: data for key, (_, data) in told.items()}
    return found


def committed_by(job: RunningJob, epoch: int) -> Mapping[Any, Mapping[str, Any]]:
    address = job.manager.wait_for_proxy(20.0)
    settled(address, epoch)
    return answers(address)


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_job_restarts_from_a_stack_with_every_kind_of_state(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path, backend: str
) -> None:
    job = job_of(EveryKind(), backend=backend, snapshot_interval=0)
    following: list[Standby] = []
    for epoch in range(len(EPOCHS)):
        run(job, epoch)
        following = following or [standby_of(interval_s=0.05, descriptors=[AGGREGATING])]
        reached(following[0], epoch)
        if epoch < len(EPOCHS) - 1:
            snapshot(job, epoch)
    wanted = committed_by(job, len(EPOCHS) - 1)
    chain = read_chain(DurableDirectory(job.epoch_log()))
    assert chain is not None and chain.bases[0] is not None
    assert len(chain.bases[0].stack) >= 2
    job.stop()

    again = job_of(EveryKind(), backend=backend, snapshot_interval=0)
    again.epoch(len(EPOCHS), rows_batch())
    again.manager.finalize(QUERY, len(EPOCHS))
    assert committed_by(again, len(EPOCHS)) == wanted
    again.stop()

    assert answers(following[0].address) == wanted
    filled = standby_of(backend=backend, descriptors=[AGGREGATING])
    reached(filled, len(EPOCHS))
    assert answers(filled.address) == wanted
    write_savepoint(open_source(str(job.manager.checkpoint_dir)), tmp_path / "savepoint")
    copied = standby_of(tmp_path / "savepoint", descriptors=[AGGREGATING])
    reached(copied, len(EPOCHS))
    assert answers(copied.address) == wanted


def test_standby_that_missed_files_of_a_partial_snapshot_reads_the_whole_state(
    job_of: JobOf, standby_of: StandbyOf
) -> None:
    job = job_of(EveryKind(), snapshot_interval=0)
    run(job, 0)
    snapshot(job, 0)
    standby = standby_of(interval_s=3600.0, descriptors=[AGGREGATING])
    for epoch in (1, 2):
        run(job, epoch)
        snapshot(job, epoch)
    assert not list(job.epoch_log().glob("*.log")), "what it has not seen is gone"
    assert standby._look() is None  # its own next look is an hour away
    assert (standby.status().epochs, standby.status().fills) == ({"it": 2}, 2)
    assert answers(standby.address) == committed_by(job, 2)
