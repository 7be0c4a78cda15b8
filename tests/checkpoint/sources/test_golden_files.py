"""The checkpoint format does not change by accident: what is written today is what was written, and that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.verification import verify
from qstate.checkpoint.storage.local_directory import DurableDirectory
from tests.checkpoint.checkpoints import UID, filled_state_after, held, state_after
from tests.checkpoint.golden_files import (
    COMPRESSED,
    GOLDEN,
    IDENTIFIED,
    LAST,
    STACKED,
    input_after,
    noted,
    plain_files,
    unpack,
    write_identified,
    write_lists,
    write_plain,
)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    unpack(GOLDEN, tmp_path / "golden")
    return tmp_path / "golden"


def test_same_inputs_give_the_same_bytes(golden: Path, tmp_path: Path) -> None:
    write_plain(tmp_path / "today")
    write_lists(tmp_path / "today")
    write_identified(tmp_path / "today")
    wanted = {name: text for name, text in plain_files(golden).items() if not name.startswith(COMPRESSED)}
    found = plain_files(tmp_path / "today")
    assert sorted(found) == sorted(wanted)
    changed = [name for name, text in found.items() if text != wanted[name]]
    assert not changed, "the format changed: see tests/checkpoint/golden_files.py"


def test_golden_checkpoint_is_read(golden: Path) -> None:
    source = open_source(str(golden / "checkpoint"))
    stored = source.operators()[UID]
    assert (stored.epoch, stored.sealed) == (LAST, LAST + 1)
    for epoch in range(LAST + 2):
        assert held(source, epoch) == state_after(epoch)


def test_golden_stacks_are_read(golden: Path) -> None:
    source = open_source(str(golden / STACKED))
    assert {len(base.stack) for _, chain in source.subtasks(UID) if (base := chain.bases[0])} == {3}  # type: ignore[attr-defined]
    for epoch in range(4, LAST + 2):
        assert held(source, epoch) == filled_state_after(epoch)


@pytest.mark.parametrize("what", ["savepoint", COMPRESSED])
def test_golden_savepoint_and_compressed_snapshots_are_read(golden: Path, what: str) -> None:
    if what == COMPRESSED:
        pytest.importorskip("pyarrow")
    assert held(open_source(str(golden / what)), LAST) == state_after(LAST)


def test_golden_operator_state_is_read(golden: Path) -> None:
    source = open_source(str(golden / "lists" / "checkpoint"))
    for epoch in range(LAST - 2, LAST + 1):
        assert source.operator_states(UID, epoch) == [noted(epoch, 0), noted(epoch, 1)]
    savepoint = open_source(str(golden / "lists" / "savepoint"))
    assert savepoint.operator_states(UID, LAST) == [noted(LAST, 0), noted(LAST, 1)]


@pytest.mark.parametrize("subtask", range(2))
def test_golden_inputs_are_read_and_older_logs_have_none(golden: Path, subtask: int) -> None:
    found = []
    for root in (IDENTIFIED, "checkpoint"):
        (directory,) = (golden / root).glob(f"*/000/{subtask:05d}")
        chain = read_chain(DurableDirectory(directory))
        assert chain is not None
        found.append({segment.epoch: segment.input for segment in chain.segments if segment.epoch >= 0})
    identified, older = found
    assert identified == {epoch: input_after(epoch, subtask) for epoch in range(LAST + 1)}
    assert older and set(older.values()) == {None}


@pytest.mark.parametrize(
    "what", ["checkpoint", "savepoint", "lists/checkpoint", "lists/savepoint", COMPRESSED, STACKED, IDENTIFIED]
)
def test_golden_files_are_sound(golden: Path, what: str) -> None:
    found = {file.path: file.damage for file in verify(str(golden / what))}
    assert set(found.values()) == {None}
    paths = {str(path) for path in (golden / what).rglob("*") if path.is_file()}
    # Once snapshots have replaced all epochs, no reader uses their output any more.
    assert paths - set(found) == {path for path in paths if what == COMPRESSED and path.endswith(".output")}
