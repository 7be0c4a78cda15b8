"""The reference page on the format is enough to read what qstate writes: its reader agrees with the product's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.sources.origins import open_source
from qstate.keys import KeyGroupRange
from tests.checkpoint.book_reader import (
    final_epoch,
    history,
    read_checkpoint,
    read_operator_state,
    read_savepoint,
    read_savepoint_operator_states,
)
from tests.checkpoint.checkpoints import MAX_PARALLELISM, UID, StoredJob, entries_of, filled_state_after, state_after
from tests.checkpoint.golden_files import GOLDEN, IDENTIFIED, LAST, STACKED, input_after, noted, unpack


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    unpack(GOLDEN, tmp_path)
    return tmp_path


def test_checkpoint_read_by_the_book_is_the_state(golden: Path) -> None:
    root = golden / "checkpoint"
    assert final_epoch(root, UID) == LAST
    for epoch in range(LAST + 2):
        assert read_checkpoint(root, UID, epoch) == state_after(epoch)


def test_stack_read_by_the_book_is_the_state(golden: Path) -> None:
    root = golden / STACKED
    assert final_epoch(root, UID) == LAST
    for epoch in range(4, LAST + 2):
        assert read_checkpoint(root, UID, epoch) == filled_state_after(epoch)


def test_savepoint_read_by_the_book_is_in_the_neutral_order(golden: Path) -> None:
    found = read_savepoint(golden / "savepoint", UID)
    assert entries_of(found) == state_after(LAST)
    order = [(one.group, one.state.encode(), one.namespace, one.key, one.map_key) for one in found]
    assert order == sorted(order)
    changes = open_source(str(golden / "savepoint")).state(UID, KeyGroupRange(0, MAX_PARALLELISM), LAST)
    assert [(one.op, one.key, one.data) for one in found] == [(one.op.value, one.key, one.data) for one in changes]


def plainly(state: OperatorState) -> list[tuple[str, str, list[bytes]]]:
    return [(one.name, one.distribution.value, list(one.elements)) for one in state]


def test_operator_state_is_read_by_the_book(golden: Path) -> None:
    for subtask in range(2):
        (directory,) = (golden / "lists" / "checkpoint").glob(f"*/000/{subtask:05d}")
        for epoch in range(LAST - 2, LAST + 1):
            assert read_operator_state(directory, epoch) == plainly(noted(epoch, subtask))
    found = read_savepoint_operator_states(golden / "lists" / "savepoint", UID)
    assert found == [plainly(noted(LAST, subtask)) for subtask in range(2)]


def test_void_file_does_not_count_by_the_book(tmp_path: Path) -> None:
    job = StoredJob(tmp_path)
    job.run(range(4))
    newest = max(job.directory(1).glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    StoredJob(tmp_path)  # opens the logs again
    newest.unlink()  # the book's reader reads every file, and this one is of no use to it
    assert read_checkpoint(tmp_path, UID, 2) == state_after(2)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_layouts_are_read_by_the_book(tmp_path: Path, parallelism: int) -> None:
    """One subtask has moved to the new layout, the others have not yet."""
    job = StoredJob(tmp_path)
    job.run(range(4))
    job.rescale(parallelism, first_epoch=4, subtasks=[0])
    source = open_source(str(tmp_path))
    assert final_epoch(tmp_path, UID) == source.operators()[UID].epoch == 3
    assert read_checkpoint(tmp_path, UID, 3) == state_after(3)


def test_rows_of_an_epoch_are_read_by_the_book(golden: Path) -> None:
    for subtask in range(2):
        (directory,) = (golden / IDENTIFIED).glob(f"*/000/{subtask:05d}")
        _, logs = history(directory)
        found = {file.header["epoch"]: file.footer["input"] for file in logs.values() if file.header["epoch"] >= 0}
        assert found == {epoch: asdict(input_after(epoch, subtask)) for epoch in range(LAST + 1)}
