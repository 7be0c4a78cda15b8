"""The names of the files of an epoch log are those that checkpoints have on disk."""

from __future__ import annotations

import pytest

from qstate.checkpoint.log.file_names import (
    FileKind,
    FileName,
    history_files,
    is_history_file,
    leftover_number,
    log_name,
    output_name,
    parse_name,
    snapshot_name,
    temporary_name,
)

NAMES = {
    "000000000002.log": FileName(2, FileKind.LOG),
    "000000000002.snapshot": FileName(2, FileKind.SNAPSHOT),
    "000000000002-000000000001.output": FileName(2, FileKind.OUTPUT),
}
OTHERS = (
    "2.log",
    "000000000002.log.tmp",
    "000000000002.tmp",
    "0000000000002.log",
    "000000000002-1.output",
    "final.json",
)


def test_names_are_those_on_disk() -> None:
    assert [log_name(2), snapshot_name(2), output_name(2, 1)] == list(NAMES)


def test_names_are_parsed() -> None:
    assert {name: parse_name(name) for name in NAMES} == NAMES


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_not_parsed(name: str) -> None:
    assert parse_name(name) is None
    assert not is_history_file(name)


def test_temporary_names_are_not_parsed() -> None:
    assert parse_name(temporary_name(2)) is None


def test_history_is_logs_and_snapshots() -> None:
    found = history_files([*NAMES, *OTHERS])
    assert found == [FileName(2, FileKind.LOG), FileName(2, FileKind.SNAPSHOT)]
    assert [name for name in NAMES if is_history_file(name)] == list(NAMES)[:2]


def test_leftovers_are_outputs_and_temporary_files() -> None:
    assert leftover_number(temporary_name(3)) == 3
    assert leftover_number(output_name(3, 1)) == 3
    for name in ("000000000003.log", "000000000003.snapshot", "final.json-1.tmp"):
        assert leftover_number(name) is None


def test_no_two_temporary_names_are_equal() -> None:
    assert temporary_name(3) != temporary_name(3)
