"""Snapshots of the epoch log: the same state from fewer files, whatever happens while they are made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.merge import ascending
from qstate.checkpoint.log.snapshots import remove_unneeded, take_snapshot
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import CheckpointError
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange
from tests.checkpoint.logs import change, held, names, open_log, read_with_any_base
from tests.checkpoint.mortal_directory import MortalDirectory, dies_in

#: More than the calls that the scenario makes.
MOST_CALLS = 60


def epochs(log: EpochLog, first: int, last: int) -> list[Change]:
    """Seal epochs that each put a key of their own, overwrite one and delete one; gives the state after them."""
    for epoch in range(first, last + 1):
        log.seal(
            epoch,
            [
                change(f"key {epoch}", b"%d" % epoch),
                change("all", b"%d" % epoch),
                change(f"key {epoch - 2}", b"", ChangeOp.DELETE),
            ],
        )
    return state_after(last)


def state_after(epoch: int) -> list[Change]:
    keys = [f"key {one}" for one in (epoch - 1, epoch) if one >= 0]
    return list(ascending([*(change(key, key[4:].encode()) for key in keys), change("all", b"%d" % epoch)]))


def state_of(log: EpochLog) -> list[Change]:
    return list(ascending(held(log)))


def schema_of(version: int) -> dict[str, Any]:
    return StateSchema.of(ValueStateDescriptor("state", schema_version=version)).to_plain()


def test_snapshot_is_the_state_and_older_files_are_not_needed(tmp_path: Path) -> None:
    wanted = epochs(open_log(tmp_path), 0, 4)
    snapshot = take_snapshot(DurableDirectory(tmp_path), retained=1)
    assert snapshot is not None and snapshot.epoch == 4
    assert names(tmp_path) == [snapshot.name]
    found = open_log(tmp_path)
    assert (found.latest(), held(found)) == (4, wanted)


def test_writer_goes_on_beside_the_snapshot_and_stays_the_only_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    epochs(log, 0, 4)
    take_snapshot(DurableDirectory(tmp_path), retained=1)
    wanted = epochs(log, 5, 7)
    found = open_log(tmp_path)
    assert (found.latest(), state_of(found)) == (7, wanted)
    with pytest.raises(CheckpointError, match="cannot be sealed after epoch 7"):
        found.seal(7, [])


def test_snapshot_of_an_older_epoch_leaves_the_newer_ones(tmp_path: Path) -> None:
    wanted = epochs(open_log(tmp_path), 0, 4)
    snapshot = take_snapshot(DurableDirectory(tmp_path), upto=2, retained=1)
    assert snapshot is not None and snapshot.epoch == 2
    chain = read_chain(DurableDirectory(tmp_path))
    assert chain is not None and chain.latest() == 4
    (base,) = chain.bases
    assert [part.epoch for part in chain.parts(base)] == [2, 3, 4]
    assert [part.epoch for part in chain.parts(base, upto=3)] == [2, 3]
    assert state_of(open_log(tmp_path)) == wanted


def test_nothing_new_makes_no_snapshot(tmp_path: Path) -> None:
    assert take_snapshot(DurableDirectory(tmp_path / "empty")) is None
    log = open_log(tmp_path / "log")
    assert take_snapshot(DurableDirectory(tmp_path / "log")) is None
    epochs(log, 0, 1)
    assert take_snapshot(DurableDirectory(tmp_path / "log")) is not None
    assert take_snapshot(DurableDirectory(tmp_path / "log")) is None


def test_retained_snapshots_stay_with_what_they_need(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(6):
        epochs(log, epoch, epoch)
        take_snapshot(DurableDirectory(tmp_path), retained=2)
    assert names(tmp_path) == ["000000000006.snapshot", "000000000007.log", "000000000007.snapshot"]


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damaged_snapshot_costs_nothing_but_a_longer_way(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "log"
    log = open_log(directory)
    epochs(log, 0, 2)
    take_snapshot(DurableDirectory(directory))
    epochs(log, 3, 5)
    newest = take_snapshot(DurableDirectory(directory))
    assert newest is not None
    wanted = epochs(log, 6, 6)
    sound = (directory / newest.name).read_bytes()
    for position in range(0, len(sound), 1 if how == "flip" else 7):
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
        if how == "flip":
            damaged = bytearray(sound)
            damaged[position] ^= 1 << (position % 8)
            (copy / newest.name).write_bytes(damaged)
        elif how == "truncate":
            (copy / newest.name).write_bytes(sound[:position])
        else:
            (copy / newest.name).unlink()
        assert read_with_any_base(open_log(copy)) == wanted
        shutil.rmtree(copy)


def test_damage_before_a_snapshot_does_not_matter(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    epochs(log, 0, 2)
    take_snapshot(DurableDirectory(tmp_path))
    wanted = epochs(log, 3, 3)
    (tmp_path / "000000000002.log").write_bytes(b"damaged")
    found = open_log(tmp_path)
    assert len(found.bases) == 1
    assert state_of(found) == wanted


def test_damage_that_no_snapshot_covers_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    epochs(log, 0, 1)
    take_snapshot(DurableDirectory(tmp_path))
    epochs(log, 2, 4)
    (tmp_path / "000000000005.log").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"000000000005\.log"):
        open_log(tmp_path)


def test_snapshot_of_another_history_is_refused(tmp_path: Path) -> None:
    for name, data in (("one", b"1"), ("other", b"2")):
        log = open_log(tmp_path / name)
        log.seal(0, [change("a", data)])
        log.seal(1, [change("b", data)])
    take_snapshot(DurableDirectory(tmp_path / "other"), upto=0)
    shutil.copy(tmp_path / "other" / "000000000002.snapshot", tmp_path / "one")
    with pytest.raises(CheckpointError, match="does not follow"):
        open_log(tmp_path / "one")


def test_some_key_groups_are_read_without_the_others(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    puts = [Change(ChangeOp.PUT, "state", n // 40, b"\xc0", b"%05d" % n, b"", b"x" * 900) for n in range(40 * 128)]
    log.seal(0, puts)
    snapshot = take_snapshot(DurableDirectory(tmp_path))
    chain = read_chain(DurableDirectory(tmp_path))
    assert chain is not None and snapshot is not None
    wanted = KeyGroupRange(60, 62)
    found = [one for part in chain.parts(chain.bases[0], groups=wanted) for one in part.changes]
    assert [one for one in found if one.group in wanted] == [one for one in puts if one.group in wanted]
    assert len(found) < len(puts) / 2


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_crash_at_every_call_of_a_snapshot_loses_nothing(tmp_path: Path, after: bool) -> None:
    for call in range(1, MOST_CALLS):
        directory = tmp_path / f"crash {call}"
        log = open_log(directory)
        epochs(log, 0, 2)
        take_snapshot(DurableDirectory(directory), retained=1)
        wanted = epochs(log, 3, 5)
        files = MortalDirectory(directory, call, after)
        if not dies_in(take_snapshot, files, retained=1):
            break
        assert read_with_any_base(open_log(directory)) == wanted
        take_snapshot(DurableDirectory(directory), retained=1)
        remove_unneeded(DurableDirectory(directory), 1)
        assert read_with_any_base(open_log(directory)) == wanted
        assert not list(directory.glob("*.tmp"))
    else:
        raise AssertionError("the snapshot made more calls than expected")


def test_power_loss_at_every_call_of_a_snapshot_loses_nothing(tmp_path: Path) -> None:
    for call in range(1, MOST_CALLS):
        directory = tmp_path / f"loss {call}"
        log = open_log(directory)
        wanted = epochs(log, 0, 5)
        files = MortalDirectory(directory, call, True)
        if not dies_in(take_snapshot, files, retained=1):
            break
        files.lose_power(files.unsynced_names)
        assert read_with_any_base(open_log(directory)) == wanted
    else:
        raise AssertionError("the snapshot made more calls than expected")


def test_snapshot_beside_a_newer_opening_is_given_up_or_whole(tmp_path: Path) -> None:
    class OpenedMeanwhile(DurableDirectory):
        def publish(self, temporary: str, name: str) -> None:
            open_log(tmp_path)  # removes what others left unfinished
            super().publish(temporary, name)

    wanted = epochs(open_log(tmp_path), 0, 2)
    with pytest.raises(CheckpointError, match="cannot write"):
        take_snapshot(OpenedMeanwhile(tmp_path))
    assert state_of(open_log(tmp_path)) == wanted


def test_base_of_a_writer_precedes_its_epochs(tmp_path: Path) -> None:
    epochs(open_log(tmp_path), 0, 2)
    schema = schema_of(2)
    log = EpochLog.open(tmp_path, read_chain(DurableDirectory(tmp_path)).identity, lambda chain: (schema,))  # type: ignore[union-attr]
    log.write_base([change("converted", b"x")])
    log.seal(3, [change("z", b"y")])
    found = open_log(tmp_path)
    assert found.bases[0] is not None and found.bases[0].states == (schema,)
    assert held(found) == [change("converted", b"x"), change("z", b"y")]
    take_snapshot(DurableDirectory(tmp_path), retained=1)
    assert held(open_log(tmp_path)) == [change("z", b"y"), change("converted", b"x")]  # ascending


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_files_are_smaller_and_read_the_same(tmp_path: Path, compression: str) -> None:
    wanted = [change(f"key {number:04d}", b"x" * 100) for number in range(2000)]
    sizes = []
    for name in ("none", compression):
        log = open_log(tmp_path / name)
        log.compression = name
        log.seal(0, wanted)
        take_snapshot(DurableDirectory(tmp_path / name), compression=name)
        assert held(open_log(tmp_path / name)) == wanted
        sizes.append([path.stat().st_size for path in sorted((tmp_path / name).iterdir())])
    plain, compressed = sizes
    assert all(one > 3 * other for one, other in zip(plain, compressed, strict=True) if one > 10_000)


def test_compression_that_is_not_known_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.compression = "lzma"
    with pytest.raises(CheckpointError, match="'lzma' is not one of none, lz4, zstd"):
        log.seal(0, [change("a")])


def test_state_that_is_queryable_by_another_name_still_has_snapshots(tmp_path: Path) -> None:
    epochs(open_log(tmp_path), 0, 2)
    identity = read_chain(DurableDirectory(tmp_path)).identity  # type: ignore[union-attr]
    for number, name in enumerate(("old", "new", None)):
        schema = {**schema_of(1), "queryable_name": name}
        log = EpochLog.open(tmp_path, identity, lambda _, schema=schema: (schema,))
        log.seal(3 + number, [change(f"named {name}")])
    snapshot = take_snapshot(DurableDirectory(tmp_path))
    assert snapshot is not None and snapshot.epoch == 5


def test_data_of_two_schemas_is_not_brought_together(tmp_path: Path) -> None:
    epochs(open_log(tmp_path), 0, 2)
    identity = read_chain(DurableDirectory(tmp_path)).identity  # type: ignore[union-attr]
    for version in (1, 2):
        log = EpochLog.open(tmp_path, identity, lambda _, version=version: (schema_of(version),))
        log.seal(2 + version, [change("a")])
    with pytest.raises(CheckpointError, match="with two schemas; start the job once"):
        take_snapshot(DurableDirectory(tmp_path))
