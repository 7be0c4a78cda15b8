"""Snapshots that hold only what changed since another one: the same state for fewer bytes, whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qstate.backends.catalog import open_backend
from qstate.backends.change_blocks import chained
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import Chain, Snapshot, read_chain
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.merge import ascending
from qstate.checkpoint.log.segment import SegmentReader
from qstate.checkpoint.log.snapshots import remove_unneeded, take_snapshot
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.checkpoint.sources.verification import verify
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange, encode_key
from tests.checkpoint.book_reader import read_checkpoint
from tests.checkpoint.checkpoints import (
    DESCRIPTORS,
    EVERY,
    MAX_PARALLELISM,
    UID,
    StoredJob,
    entries_of,
    filled_state_after,
    held,
)
from tests.checkpoint.histories import histories, plain
from tests.checkpoint.logs import open_log, read_with_any_base
from tests.checkpoint.mortal_directory import MortalDirectory, dies_in

#: Keys of the first epoch, of which later ones change one in a hundred.
KEYS, GROUPS = 400, 8
#: The newest epoch of the stored job.
LAST = 7
#: More than the calls that a snapshot makes.
MOST_CALLS = 60


def put(number: int, data: bytes) -> Change:
    return Change(ChangeOp.PUT, "filler", number * GROUPS // KEYS, encode_key(None), b"%05d" % number, b"", data)


def first_epoch() -> list[Change]:
    return [put(number, b"x" * 100) for number in range(KEYS)]


def changes_of(epoch: int) -> list[Change]:
    """One key in a hundred, and a deletion."""
    found = [put((number * 100 + 7 * epoch) % KEYS, b"%0100d" % epoch) for number in range(KEYS // 100)]
    return [*found, put((7 * epoch - 3) % KEYS, b"")._replace(op=ChangeOp.DELETE)]


def history(last: int) -> list[Change]:
    return [*first_epoch(), *(change for epoch in range(1, last + 1) for change in changes_of(epoch))]


def seal(log: EpochLog, epochs: Iterable[int]) -> None:
    for epoch in epochs:
        log.seal(epoch, changes_of(epoch) if epoch else first_epoch())


def snapshot(directory: Path, **settings: int) -> Snapshot:
    taken = take_snapshot(DurableDirectory(directory), **{"whole_bytes": 0, **settings})  # type: ignore[arg-type]
    assert taken is not None
    return taken


def stacked(directory: Path, last: int, **settings: int) -> EpochLog:
    """A log with a snapshot after each epoch."""
    log = open_log(directory)
    for epoch in range(last + 1):
        seal(log, [epoch])
        snapshot(directory, **settings)
    return log


def chain_of(directory: Path) -> Chain:
    chain = read_chain(DurableDirectory(directory))
    assert chain is not None
    return chain


def newest(directory: Path) -> Snapshot:
    base = chain_of(directory).bases[0]
    assert base is not None
    return base


def sequences(directory: Path) -> list[int]:
    """The stack of the newest base."""
    return [one.sequence for one in newest(directory).stack]


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.snapshot"))


# -- the same state -------------------------------------------------------------------------------------------


#: What is done after an epoch.
DEEDS = ["nothing", "snapshot", "snapshot", "snapshot", "snapshot of the one before", "open"]


@given(st.lists(st.tuples(histories, st.sampled_from(DEEDS)), max_size=16), st.integers(1, 3))
@settings(max_examples=60)
def test_any_base_leads_to_the_state_that_all_epochs_make(steps: list[tuple[list[Change], str]], retained: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        log = stacked(directory, 0)
        sealed = [first_epoch()]
        for epoch, (changes, then) in enumerate(steps, 1):
            log.seal(epoch, changes)
            sealed.append(changes)
            if then == "open":
                log = open_log(directory)
            elif then != "nothing":
                upto = epoch if then == "snapshot" else epoch - 1
                take_snapshot(DurableDirectory(directory), upto=upto, retained=retained, whole_bytes=0)
        chain = chain_of(directory)
        for base in chain.bases:
            for upto in range(base.epoch if base else 0, len(sealed)):
                wanted = [change for changes in sealed[: upto + 1] for change in changes]
                found = [change for part in chain.parts(base, upto) for change in part.changes]
                assert plain(found) == plain(wanted)
                for groups in (KeyGroupRange(0, 1), KeyGroupRange(2, 4)):
                    some = [
                        one for part in chain.parts(base, upto, groups) for one in part.changes if one.group in groups
                    ]
                    assert plain(some) == plain([one for one in wanted if one.group in groups])


def test_stack_is_the_state_and_few_bytes_are_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    written = whole = partial = 0
    for epoch in range(150):
        seal(log, [epoch])
        taken = snapshot(tmp_path)
        size = (tmp_path / taken.name).stat().st_size
        written += size
        if taken.below is None:
            whole, bottom = whole + 1, size
        else:
            partial += 1
        sizes = [(tmp_path / one.name).stat().st_size for one in newest(tmp_path).stack]
        # Twice, but that a snapshot's header is larger than an epoch's.
        assert all(below >= 1.8 * above for below, above in pairwise(sizes))
        assert len(sizes) <= 6
        if epoch % 10 == 0:
            assert read_with_any_base(chain_of(tmp_path)) == list(ascending(history(epoch)))
    assert (whole, partial) == (4, 146)
    assert written < 150 * bottom / 10


def test_partial_snapshot_holds_what_changed_and_says_what_it_stands_on(tmp_path: Path) -> None:
    stacked(tmp_path, 1)
    below, taken = newest(tmp_path).stack
    assert taken.below == below and below.below is None
    (part,) = chain_of(tmp_path).parts(taken, above=below)
    assert (part.epoch, part.ascending) == (1, True)
    assert sorted(part.changes, key=lambda one: one.key) == sorted(changes_of(1), key=lambda one: one.key)


def test_small_state_is_written_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(4):
        seal(log, [epoch])
        assert snapshot(tmp_path, whole_bytes=1 << 20).below is None
    seal(log, [4])
    assert snapshot(tmp_path, whole_bytes=(tmp_path / newest(tmp_path).name).stat().st_size).below is not None
    seal(log, [5])
    assert take_snapshot(DurableDirectory(tmp_path)).below is None, "small, by default"  # type: ignore[union-attr]


def test_first_snapshot_after_an_opening_is_whole(tmp_path: Path) -> None:
    """The process of an older task manager may remove what it thinks is not needed, as late as it likes."""
    stacked(tmp_path, 2)
    assert len(sequences(tmp_path)) == 2
    log = open_log(tmp_path)
    seal(log, range(3, 5))
    assert snapshot(tmp_path).below is None
    seal(log, [5])
    assert snapshot(tmp_path).below is not None


def test_snapshot_of_an_epoch_of_the_writer_before_is_whole(tmp_path: Path) -> None:
    log = stacked(tmp_path, 1)
    seal(log, [2])
    open_log(tmp_path)
    assert snapshot(tmp_path).below is None


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_partial_snapshots_are_read(tmp_path: Path, compression: str) -> None:
    log = stacked(tmp_path, 0)
    for epoch in (1, 2):
        seal(log, [epoch])
        taken = take_snapshot(DurableDirectory(tmp_path), whole_bytes=0, compression=compression)
        assert taken is not None and taken.below is not None
    assert read_with_any_base(chain_of(tmp_path)) == list(ascending(history(2)))


# -- retention ------------------------------------------------------------------------------------------------


def test_retained_snapshots_stay_with_all_that_they_stand_on(tmp_path: Path) -> None:
    stacked(tmp_path, 20, retained=2)
    chain = chain_of(tmp_path)
    kept = [base for base in chain.bases if base is not None]
    assert len(kept) == 2
    assert snapshots(tmp_path) == sorted({one.name for base in kept for one in base.stack})
    logs = sorted(path.name for path in tmp_path.glob("*.log"))
    assert logs == [segment.name for segment in chain.segments if segment.sequence > kept[-1].sequence]
    assert read_with_any_base(chain) == list(ascending(history(20)))


def test_removal_goes_from_the_top_of_a_stack_down_and_then_to_the_logs(tmp_path: Path) -> None:
    class Watched(DurableDirectory):
        removed: list[str] = []  # noqa: RUF012

        def remove(self, name: str) -> None:
            if self.exists(name):
                self.removed.append(name)
            super().remove(name)

    stacked(tmp_path, 5, retained=9)
    opened = open_log(tmp_path)
    seal(opened, [6])
    snapshot(tmp_path, retained=9)
    remove_unneeded(Watched(tmp_path), 1)
    kinds = [name.rpartition(".")[2] for name in Watched.removed]
    assert kinds == sorted(kinds, reverse=True)
    gone = [name for name in Watched.removed if name.endswith(".snapshot")]
    assert len(gone) == 6 and gone == sorted(gone, reverse=True)


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("last", [3, 4])
def test_crash_at_every_call_of_a_partial_snapshot_loses_nothing(tmp_path: Path, after: bool, last: int) -> None:
    """A crash while a snapshot merges another one, whose file it then removes, and while one builds on it."""
    wanted = list(ascending(history(last)))
    for call in range(1, MOST_CALLS):
        directory = tmp_path / f"crash {call}"
        log = stacked(directory, last - 1, retained=1)
        seal(log, [last])
        before = sequences(directory)
        files = MortalDirectory(directory, call, after)
        if not dies_in(take_snapshot, files, retained=1, whole_bytes=0):
            assert (len(before), len(sequences(directory))) == ((2, 2) if last == 3 else (2, 3))
            break
        assert read_with_any_base(open_log(directory)) == wanted
        take_snapshot(DurableDirectory(directory), retained=1, whole_bytes=0)
        remove_unneeded(DurableDirectory(directory), 1)
        assert read_with_any_base(open_log(directory)) == wanted
        assert len(snapshots(directory)) == len(sequences(directory))
        assert not list(directory.glob("*.tmp"))
    else:
        raise AssertionError("the snapshot made more calls than expected")


def test_power_loss_at_every_call_of_a_partial_snapshot_loses_nothing(tmp_path: Path) -> None:
    wanted = list(ascending(history(4)))
    for call in range(1, MOST_CALLS):
        directory = tmp_path / f"loss {call}"
        log = stacked(directory, 3, retained=1)
        seal(log, [4])
        files = MortalDirectory(directory, call, True)
        if not dies_in(take_snapshot, files, retained=1, whole_bytes=0):
            break
        files.lose_power(files.unsynced_names)
        assert read_with_any_base(open_log(directory)) == wanted
    else:
        raise AssertionError("the snapshot made more calls than expected")


# -- damage ---------------------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1 << (at % 8)
    return bytes(damaged)


def damages(data: bytes) -> list[bytes | None]:
    step = max(1, len(data) // 40)
    return [None, b"", data[: len(data) // 2], data[:-1], *(flipped(data, at) for at in range(0, len(data), step))]


def test_damage_to_a_file_of_a_stack_gives_the_state_or_an_error_that_names_it(tmp_path: Path) -> None:
    """No other base replaces a file that both kept stacks need; one replaces the newest file of each stack."""
    log = stacked(tmp_path / "log", 5, retained=2)
    seal(log, [6])
    wanted = list(ascending(history(6)))
    one, other = (base for base in chain_of(tmp_path / "log").bases if base is not None)
    shared = set(one.stack) & set(other.stack)
    assert shared and (one not in shared or other not in shared)
    for snapshot in {*one.stack, *other.stack}:
        sound = (tmp_path / "log" / snapshot.name).read_bytes()
        for damaged in damages(sound):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "log", copy)
            (copy / snapshot.name).unlink()
            if damaged is not None:
                (copy / snapshot.name).write_bytes(damaged)
            if snapshot in shared:
                with pytest.raises(DamagedCheckpoint, match=snapshot.name):
                    read_with_any_base(open_log(copy))
            else:
                assert read_with_any_base(open_log(copy)) == wanted
            shutil.rmtree(copy)


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
def test_damaged_snapshot_is_replaced_by_the_next_one(tmp_path: Path, whole_bytes: int) -> None:
    """Made of what there is beside it."""
    log = open_log(tmp_path)
    for epoch in range(3):
        seal(log, [epoch])
        snapshot(tmp_path, whole_bytes=whole_bytes)
    top = tmp_path / newest(tmp_path).name
    data = top.read_bytes()
    top.write_bytes(flipped(data, len(data) // 2))
    seal(log, [3])
    if whole_bytes:
        assert snapshot(tmp_path, whole_bytes=whole_bytes).below is None
    else:
        seal(log, range(4, 8))  # so much that what is damaged would be taken up
        assert snapshot(tmp_path).below == chain_of(tmp_path).bases[0].stack[0]  # type: ignore[union-attr]
    assert read_with_any_base(chain_of(tmp_path)) == list(ascending(history(3 if whole_bytes else 7)))


def test_file_of_another_stack_is_refused(tmp_path: Path) -> None:
    for name, data in (("one", b"1"), ("other", b"2")):
        log = open_log(tmp_path / name)
        log.seal(0, [*first_epoch(), put(0, data)])
        snapshot(tmp_path / name, retained=1)
        seal(log, [1])
        snapshot(tmp_path / name, retained=1)
    bottom, _ = snapshots(tmp_path / "one")
    shutil.copy(tmp_path / "other" / bottom, tmp_path / "one")
    with pytest.raises(DamagedCheckpoint, match=r"0003\.snapshot builds on 000000000002\.snapshot, which is .*another"):
        open_log(tmp_path / "one")


def test_removed_base_of_a_stack_is_not_mended_by_files_that_do_not_reach_it(tmp_path: Path) -> None:
    """Without the stack an older state would be left: that is no way out, epochs are missing."""
    stacked(tmp_path, 0, retained=9)
    log = open_log(tmp_path)
    seal(log, [1])
    snapshot(tmp_path, retained=9)
    seal(log, [2])
    snapshot(tmp_path, retained=9)
    for gone in ("000000000004.log", "000000000005.log", "000000000004.snapshot"):
        (tmp_path / gone).unlink()
    assert snapshots(tmp_path) == ["000000000002.snapshot", "000000000005.snapshot"]
    with pytest.raises(DamagedCheckpoint, match="000000000004"):
        open_log(tmp_path)


def test_number_of_missing_files_does_not_count(tmp_path: Path) -> None:
    """Each file between the bottom of a stack and its top would have to be looked for."""
    log = stacked(tmp_path, 0)
    for epoch in range(1, 60):
        log.seal(epoch, [])
    assert snapshot(tmp_path, retained=1).below is not None
    assert not list(tmp_path.glob("*.log"))
    log.seal(60, [])
    looked_for = []

    class Counting(DurableDirectory):
        def open(self, name: str) -> object:  # type: ignore[override]
            looked_for.append(name)
            return super().open(name)

    assert read_chain(Counting(tmp_path)) is not None
    assert len(looked_for) < 10


def test_readers_of_the_format_before_refuse_a_stack_and_read_all_else(tmp_path: Path) -> None:
    stacked(tmp_path, 2)
    formats = {name: header(tmp_path / name)["format"] for name in snapshots(tmp_path)}
    assert sorted(formats.values()) == [2, *[3] * (len(formats) - 1)]
    assert {header(path)["format"] for path in tmp_path.glob("*.log")} <= {2}


def header(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return dict(SegmentReader(file, str(path)).info().header)


# -- who reads them -------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return stored_job(tmp_path / "checkpoint")


def stored_job(root: Path, **settings: int) -> StoredJob:
    """Two subtasks, each with a stack of three snapshots and two epochs more."""
    found = StoredJob(root)
    found.run([0], filled=True)
    found.snapshot(whole_bytes=0, **settings)
    found.run(range(1, 5))
    found.snapshot(whole_bytes=0, **settings)
    found.run([5])
    found.snapshot(whole_bytes=0, **settings)
    found.run(range(6, LAST + 1))
    for subtask in range(2):
        assert sequences(found.directory(subtask)) == [2, 6, 7]
    return found


def test_state_as_of_an_epoch_is_read_from_the_newest_stack_before_it(job: StoredJob) -> None:
    source = open_source(str(job.root))
    for epoch in range(4, LAST + 1):
        assert held(source, epoch) == filled_state_after(epoch), epoch
    with pytest.raises(CheckpointError, match="no state as old as epoch 3"):
        held(source, 3)


def test_stack_is_read_by_the_book(job: StoredJob) -> None:
    for epoch in range(4, LAST + 1):
        assert read_checkpoint(job.root, UID, epoch) == filled_state_after(epoch)


def test_savepoint_from_a_stack_is_that_from_a_whole_snapshot(job: StoredJob, tmp_path: Path) -> None:
    for name in ("of a stack", "of one file"):
        savepoint = write_savepoint(open_source(str(job.root)), tmp_path / name)
        assert held(savepoint, LAST) == filled_state_after(LAST)
        job.snapshot(retained=1)
    assert len(list(job.directory(0).glob("*.snapshot"))) == 1
    one, other = ((tmp_path / name / "0001.savepoint").read_bytes() for name in ("of a stack", "of one file"))
    assert one == other


@pytest.mark.parametrize("number", [1, 2])
def test_damaged_body_is_noticed_before_anything_is_given(tmp_path: Path, number: int) -> None:
    job = stored_job(tmp_path, retained=3)
    path = job.directory(0) / newest(job.directory(0)).stack[number].name
    with path.open("rb") as file:
        ((_, begin), *_) = SegmentReader(file, str(path)).info().footer["index"]
    path.write_bytes(flipped(path.read_bytes(), begin + 30))
    assert len(newest(job.directory(0)).stack) == 3, "headers and footers are sound"
    assert held(open_source(str(job.root)), LAST) == filled_state_after(LAST)


def test_stack_that_is_replaced_while_it_is_read_does_not_matter(job: StoredJob) -> None:
    changes = open_source(str(job.root)).state(UID, EVERY, LAST)
    found = [next(changes)]
    job.snapshot(retained=1)
    assert not list(job.directory(0).glob("*.log"))
    found += changes
    assert entries_of(found) == filled_state_after(LAST)


def test_damage_gives_an_error_or_the_right_state_and_never_a_wrong_value(job: StoredJob) -> None:
    outcomes = set()
    for path in sorted(job.root.rglob("*.snapshot")):
        sound = path.read_bytes()
        for damaged in damages(sound):
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
            try:
                source = open_source(str(job.root))
                stored = source.operators()[UID]
                assert held(source, stored.epoch) == filled_state_after(stored.epoch)
                outcomes.add("read")
            except CheckpointError as exc:
                assert path.name in str(exc)
                outcomes.add("found")
        path.write_bytes(sound)
    assert outcomes == {"read", "found"}


def test_verify_reads_all_files_of_a_stack(job: StoredJob) -> None:
    found = list(verify(str(job.root)))
    assert {file.damage for file in found} == {None}
    names = [file.path for file in found if file.path.endswith(".snapshot")]
    assert len(names) == 6
    for name in names:
        path = Path(name)
        sound = path.read_bytes()
        path.write_bytes(flipped(sound, len(sound) // 2))
        assert name in [file.path for file in verify(str(job.root)) if file.damage is not None]
        path.write_bytes(sound)


@pytest.mark.parametrize("how", ["missing", "another"])
def test_verify_reports_a_missing_snapshot_below_though_the_state_is_readable(tmp_path: Path, how: str) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    for epoch in range(2):
        job.run([epoch], filled=epoch == 0)
        job.snapshot(whole_bytes=0, retained=9)
    bottom, top = (job.directory(0) / one.name for one in newest(job.directory(0)).stack)
    bottom.unlink()
    if how == "another":
        take_snapshot(DurableDirectory(job.directory(0)), upto=0, retained=9, compression="lz4")
    assert held(open_source(str(job.root)), 1) == filled_state_after(1)
    (found,) = [file for file in verify(str(job.root)) if file.damage is not None]
    assert found.path == str(top)
    assert found.damage is not None and f"builds on {bottom.name}, which is missing or another one" in found.damage


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_backend_is_restored_from_a_stack(job: StoredJob, tmp_path: Path, backend: str) -> None:
    for subtask in range(2):
        groups = job.identity(subtask).key_groups
        chain = chain_of(job.directory(subtask))
        parts = list(chain.parts(chain.bases[0]))
        assert [part.ascending for part in parts] == [True, True, True, False, False]
        (tmp_path / str(subtask)).mkdir()
        with open_backend(
            backend, key_groups=groups, max_parallelism=MAX_PARALLELISM, directory=tmp_path / str(subtask), options={}
        ) as restored:
            for descriptor in DESCRIPTORS:
                restored.table(descriptor)
            restored.restore(LAST, chained(part.changes for part in parts))
            found = list(ascending(restored.entries(groups)))
        assert found == list(open_source(str(job.root)).state(UID, groups, LAST))
