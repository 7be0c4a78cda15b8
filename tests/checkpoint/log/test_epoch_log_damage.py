"""The epoch log when its files are not as they were written: every damage is found, and named, before it is used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.backends.contract import Change
from qstate.errors import CheckpointError
from tests.checkpoint.logs import change, held, names, open_log, output_of

WHAT_TO_DO = "bring the file back from a copy of the checkpoint directory, or start the job again"


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A log of three epochs, with output, by two writers."""
    directory = tmp_path / "log"
    log = open_log(directory)
    log.seal(0, [change("a"), change("b")], [b"frame", b"another"])
    log.seal(1, [change("b", b"\x02")], [b"frame"])
    open_log(directory).seal(4, [change("c")], [b"last"])
    return directory


def everything(directory: Path) -> tuple[int | None, list[Change], list[list[bytes]]]:
    log = open_log(directory)
    return log.latest(), held(log), [output_of(log, epoch) for epoch in (0, 1, 4)]


def assert_damage_is_named(directory: Path, name: str, what_to_do: str = WHAT_TO_DO) -> None:
    with pytest.raises(CheckpointError, match=name) as caught:
        everything(directory)
    assert what_to_do in str(caught.value)


#: The file that no other file follows.
NEWEST = "000000000005.log"


def assert_damage_is_found(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The newest file is left out and named in the log, so that the epoch before it is what there is."""
    if name != NEWEST:
        return assert_damage_is_named(directory, name)
    log = open_log(directory)
    assert name in caplog.text
    assert (log.latest(), held(log)) == (1, [change("a"), change("b"), change("b", b"\x02")])
    caplog.clear()
    return None


def flipped(sound: bytes, position: int) -> bytes:
    return sound[:position] + bytes([sound[position] ^ 1 << (position % 8)]) + sound[position + 1 :]


def cut_short(sound: bytes, position: int) -> bytes:
    return sound[:position]


@pytest.mark.parametrize("damaged", [flipped, cut_short])
def test_every_damaged_byte_is_found(
    sealed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: Callable[[bytes, int], bytes]
) -> None:
    scratch = tmp_path / "scratch"
    for name in names(sealed):
        sound = (sealed / name).read_bytes()
        for position in range(len(sound)):
            # A fresh copy each time, because opening a log adds to it; hard links keep that cheap.
            shutil.copytree(sealed, scratch, copy_function=lambda source, target: Path(target).hardlink_to(source))
            (scratch / name).unlink()
            (scratch / name).write_bytes(damaged(sound, position))
            assert_damage_is_found(scratch, name, caplog)
            shutil.rmtree(scratch)


@pytest.mark.parametrize("added", [b"\0", b"\0" * 8, b"QSTATEL1"])
def test_bytes_after_the_end_are_found(sealed: Path, added: bytes) -> None:
    path = sealed / "000000000002.log"
    path.write_bytes(path.read_bytes() + added)
    assert_damage_is_named(sealed, path.name)


@pytest.mark.parametrize("sequence", [1, 2, 3, 4])
def test_missing_file_before_the_last_is_found(sealed: Path, sequence: int) -> None:
    name = f"{sequence:012d}.log"
    (sealed / name).unlink()
    assert_damage_is_named(sealed, name)


def test_missing_output_is_found_when_it_is_asked_for(sealed: Path) -> None:
    name = "000000000005-000000000004.output"
    (sealed / name).unlink()
    log = open_log(sealed)
    assert held(log) == [change("a"), change("b"), change("b", b"\x02"), change("c")]
    with pytest.raises(CheckpointError, match=name):
        output_of(log, 4)


def test_swapped_files_are_found(sealed: Path) -> None:
    second, third = sealed / "000000000002.log", sealed / "000000000003.log"
    second_bytes, third_bytes = second.read_bytes(), third.read_bytes()
    second.write_bytes(third_bytes)
    third.write_bytes(second_bytes)
    assert_damage_is_named(sealed, second.name, "is file 3 of its log (epoch), under another name: bring the right one")


def test_file_of_another_history_is_found(sealed: Path, tmp_path: Path) -> None:
    other = open_log(tmp_path / "other")
    other.seal(0, [change("x")])
    shutil.copy(tmp_path / "other" / "000000000002.log", sealed / "000000000002.log")
    assert_damage_is_named(sealed, "000000000003.log")  # the first one that does not follow


def test_output_of_another_history_is_found(sealed: Path, tmp_path: Path) -> None:
    other = open_log(tmp_path / "other")
    other.seal(0, [], [b"something else"])
    name = "000000000002-000000000001.output"
    shutil.copy(tmp_path / "other" / name, sealed / name)
    assert_damage_is_named(sealed, name)


def test_damage_is_found_before_anything_of_that_block_is_given(sealed: Path) -> None:
    path = sealed / "000000000003.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"state")] ^= 1
    path.write_bytes(data)
    log = open_log(sealed)
    found = []
    with pytest.raises(CheckpointError, match=path.name):
        for one in log.changes():
            found.append(one)
    assert found == [change("a"), change("b")]


def test_epoch_after_a_damaged_one_goes_on_from_the_epoch_before(sealed: Path) -> None:
    path = sealed / NEWEST
    path.write_bytes(path.read_bytes()[:-1])
    log = open_log(sealed)
    log.seal(4, [change("again")], [b"again"])
    found = open_log(sealed)
    assert held(found) == [change("a"), change("b"), change("b", b"\x02"), change("again")]
    assert output_of(found, 4) == [b"again"]


def test_void_file_stays_void_even_when_it_is_mended(sealed: Path) -> None:
    path = sealed / NEWEST
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    open_log(sealed)
    path.write_bytes(sound)
    assert open_log(sealed).latest() == 1


def test_two_damaged_files_are_too_many(sealed: Path) -> None:
    open_log(sealed)
    for name in (NEWEST, "000000000006.log"):
        (sealed / name).write_bytes(b"QSTATEL1")
    assert_damage_is_named(sealed, NEWEST)


def test_refused_log_is_left_as_it_was(sealed: Path) -> None:
    (sealed / "000000000003.log").unlink()
    before = names(sealed)
    with pytest.raises(CheckpointError):
        open_log(sealed)
    assert names(sealed) == before
