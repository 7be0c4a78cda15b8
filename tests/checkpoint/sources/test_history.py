"""What a checkpoint directory holds, read without the job: the right epoch, and nothing that is not there."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import NO_EPOCH
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.merge import merged_parts
from qstate.checkpoint.manifest import FINAL_FILE, JobManifest, subtask_directory, write_final
from qstate.checkpoint.sources.entries import read_entries
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import JobHistory, in_one_form
from qstate.checkpoint.sources.origins import open_source, origin_of
from qstate.checkpoint.sources.savepoint import Savepoint, write_savepoint
from qstate.checkpoint.sources.verification import verify
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange, encode_key
from tests.checkpoint.checkpoints import (
    EVERY,
    MAX_PARALLELISM,
    QUERY,
    SCHEMAS,
    UID,
    StoredJob,
    begin_with,
    changes_of,
    entries_of,
    held,
    identity_of,
    state_after,
)

NEW_QUERY = "query-2"


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "checkpoint")


def test_state_is_that_of_the_epoch_that_is_asked_for(job: StoredJob) -> None:
    job.run(range(7))
    source = open_source(str(job.root))
    for epoch in range(7):
        assert source.epoch(UID, EVERY, epoch) == epoch
        assert held(source, epoch) == state_after(epoch), epoch


def test_epoch_is_final_when_spark_said_so_or_began_the_next(job: StoredJob) -> None:
    job.run([0])
    job.run([1, 2], commit=False)
    stored = open_source(str(job.root)).operators()[UID]
    assert (stored.epoch, stored.sealed, stored.committed) == (1, 2, 1)
    (job.root / FINAL_FILE).write_text("damaged")
    assert open_source(str(job.root)).operators()[UID] == stored


def test_snapshot_proves_that_its_epoch_is_committed(job: StoredJob) -> None:
    """The job takes it when the driver has told it so, and the driver may not have recorded that yet."""
    job.run(range(3), commit=False)
    assert open_source(str(job.root)).operators()[UID].committed == 1
    job.snapshot(retained=1)
    stored = open_source(str(job.root)).operators()[UID]
    assert (stored.epoch, stored.committed) == (2, 2)
    assert held(open_source(str(job.root)), 2) == state_after(2)
    followed = FollowedOperator(job.root, UID)
    followed.look(job.manifest)
    assert followed.proved == 2


def test_committed_epoch_that_cannot_be_read_any_more_shows(job: StoredJob) -> None:
    job.run(range(4))
    newest = max(job.directory(1).glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    stored = open_source(str(job.root)).operators()[UID]
    assert (stored.epoch, stored.sealed, stored.committed) == (2, 2, 3)
    assert held(open_source(str(job.root)), 2) == state_after(2)


@pytest.mark.parametrize("subtask", [0, 1])
def test_lost_directory_is_no_empty_state(job: StoredJob, subtask: int) -> None:
    job.run(range(2))
    shutil.rmtree(job.directory(subtask))
    with pytest.raises(DamagedCheckpoint, match=f"lacks the epoch logs of the key groups {4 * subtask} to"):
        open_source(str(job.root)).operators()
    assert open_source(str(job.root)).epoch(UID, EVERY, 1) == NO_EPOCH, "a job that rescales sees the gap"


def test_files_that_are_replaced_before_they_are_read_do_not_matter(job: StoredJob) -> None:
    job.run(range(3))
    job.snapshot(retained=1)
    job.run(range(3, 6))
    changes = open_source(str(job.root)).state(UID, EVERY, 5)
    found = [next(changes)]
    job.snapshot(retained=1)
    assert not list(job.directory(0).glob("*.log"))
    found += changes
    assert entries_of(found) == state_after(5)


def restored(tmp_path: Path, source: Path, query: str, *, parallelism: int = 2) -> tuple[Path, JobManifest]:
    root = tmp_path / "restored"
    root.mkdir()
    manifest = JobManifest("job", MAX_PARALLELISM, (parallelism,), {UID: query}, str(source))
    manifest.write(root)
    return root, manifest


def take_up(root: Path, manifest: JobManifest, subtask: int, first_epoch: int) -> EpochLog:
    """What a subtask without a log of its own does first."""
    groups = KeyGroupRange.of_subtask(subtask, manifest.parallelism, MAX_PARALLELISM)
    origin = origin_of(root, manifest, UID, groups, first_epoch)
    assert origin is not None
    directory = DurableDirectory(subtask_directory(root, UID, 0, subtask))
    identity = identity_of(manifest, subtask)
    begin_with(directory, identity, origin.epoch, origin.source.state(UID, groups, origin.upto))
    return EpochLog.open(directory, identity, lambda _: SCHEMAS)


@pytest.mark.parametrize("taken_up", [0, 1, 2])
def test_restored_job_that_committed_nothing_yet_has_what_it_was_restored_from(
    job: StoredJob, tmp_path: Path, taken_up: int
) -> None:
    job.run(range(4))
    root, manifest = restored(tmp_path, job.root, NEW_QUERY)
    for subtask in range(taken_up):
        take_up(root, manifest, subtask, 0).seal(0, [])
    source = open_source(str(root))
    stored = source.operators()[UID]
    assert stored.epoch == (3 if not taken_up else NO_EPOCH)
    assert held(source, stored.epoch) == state_after(3)


def test_restored_job_may_lose_what_it_took_up(job: StoredJob, tmp_path: Path) -> None:
    job.run(range(4))
    root, manifest = restored(tmp_path, job.root, NEW_QUERY)
    for subtask in range(2):
        take_up(root, manifest, subtask, 0).seal(0, [])
    shutil.rmtree(job.root)
    assert held(open_source(str(root)), NO_EPOCH) == state_after(3)
    shutil.rmtree(subtask_directory(root, UID, 0, 1))
    with pytest.raises(DamagedCheckpoint, match="lacks the epoch logs of the key groups 4 to 7"):
        open_source(str(root)).operators()


def test_job_that_goes_on_with_its_query_goes_on_with_its_epochs(job: StoredJob, tmp_path: Path) -> None:
    job.run(range(4))
    root, manifest = restored(tmp_path, job.root, QUERY)
    one = take_up(root, manifest, 0, 4)
    write_final(root, {QUERY: 3})  # the job knows that Spark, who asks for epoch 4, has committed 3
    assert open_source(str(root)).operators()[UID].epoch == 3
    one.seal(4, [change for change in changes_of(4) if change.group < 4])
    source = open_source(str(root))
    assert (source.operators()[UID].epoch, source.operators()[UID].sealed) == (3, 3)
    assert held(source, 3) == state_after(3)


def test_operator_that_has_not_begun_is_in_the_savepoint(job: StoredJob, tmp_path: Path) -> None:
    """Of a restored job's operators, only those whose query was started are its own."""
    job.run(range(4))
    root, _ = restored(tmp_path, job.root, NEW_QUERY)
    JobManifest("job", MAX_PARALLELISM, (2,), {}, str(job.root)).write(root)
    savepoint = write_savepoint(open_source(str(root)), tmp_path / "savepoint")
    assert savepoint.operators()[UID].query == QUERY
    assert held(savepoint, 3) == state_after(3)


def test_operator_that_the_origin_does_not_have_is_empty_there(job: StoredJob, tmp_path: Path) -> None:
    job.run([0])
    root, _ = restored(tmp_path, job.root, NEW_QUERY)
    source = open_source(str(root))
    assert list(source.state("another", EVERY, 0)) == []
    assert source.epoch("another", EVERY, 0) == NO_EPOCH


def test_state_in_two_forms_is_not_read_as_one(job: StoredJob) -> None:
    job.run(range(2))
    other = [{**plain, "value_type": "float"} if plain["name"] == "total" else plain for plain in SCHEMAS]
    log = EpochLog.open(job.directory(0), job.identity(0), lambda _: other)
    log.seal(2, [change for change in changes_of(2) if change.group < 4])
    source = open_source(str(job.root))
    stored = source.operators()[UID]
    with pytest.raises(CheckpointError, match=r"state 'total' is stored with two schemas.*start the job once"):
        list(source.state(UID, EVERY, 2, in_one_form(stored.states, source.location)))


def test_new_queryable_name_is_no_other_form(job: StoredJob) -> None:
    job.run(range(2))
    other = [{**plain, "queryable_name": "renamed"} for plain in SCHEMAS]
    EpochLog.open(job.directory(0), job.identity(0), lambda _: other).seal(2, [])
    source = open_source(str(job.root))
    checked = source.state(UID, EVERY, 1, in_one_form(source.operators()[UID].states, source.location))
    assert len(list(checked)) == len(state_after(1))


def test_layout_that_begins_before_there_is_any_state_has_lost_nothing(tmp_path: Path) -> None:
    manifest = JobManifest("job", MAX_PARALLELISM, (2, 4), {UID: QUERY})
    manifest.write(tmp_path)
    begin_with(DurableDirectory(subtask_directory(tmp_path, UID, 1, 0)), identity_of(manifest, 0), NO_EPOCH, [])
    stored = open_source(str(tmp_path)).operators()[UID]
    assert (stored.epoch, stored.sealed, stored.committed) == (NO_EPOCH, NO_EPOCH, NO_EPOCH)


def test_epoch_older_than_every_snapshot_is_refused(job: StoredJob) -> None:
    job.run(range(4))
    job.snapshot(retained=1)
    source = open_source(str(job.root))
    with pytest.raises(CheckpointError, match="no state as old as epoch 1"):
        list(source.state(UID, EVERY, 1))


class Outrun(JobHistory):
    """The job seals more epochs and makes a snapshot, so many times, just before each read."""

    def __init__(self, job: StoredJob, times: int) -> None:
        super().__init__(job.root, job.manifest)
        self._job = job
        self._epochs = iter(range(3, 3 + times))

    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Any = iter) -> Iterator[Change]:
        for epoch in islice(self._epochs, 1):
            self._job.run([epoch])
            self._job.snapshot(retained=1)
        return super().state(operator, groups, upto, prepare)


def test_savepoint_is_begun_anew_when_the_job_outruns_it(job: StoredJob, tmp_path: Path) -> None:
    job.run(range(3))
    savepoint = write_savepoint(Outrun(job, 2), tmp_path / "savepoint")
    assert savepoint.operators()[UID].epoch == 4
    assert held(savepoint, 4) == state_after(4)
    assert sorted(path.name for path in (tmp_path / "savepoint").iterdir()) == ["0001.savepoint", "savepoint.json"]


def test_savepoint_fails_after_the_last_attempt(job: StoredJob, tmp_path: Path) -> None:
    job.run(range(3))
    with pytest.raises(CheckpointError, match=r"no state as old as epoch \d+ any more.*retained_snapshots"):
        write_savepoint(Outrun(job, 99), tmp_path / "savepoint")
    assert Savepoint.read(tmp_path / "savepoint") is None


def test_verify_looks_at_results_only_when_an_epoch_names_them(job: StoredJob) -> None:
    job.run(range(3))
    spool = job.logs[0].begin_output()
    spool.append(b"being written")
    (job.directory(1) / "000000000009-000000000001.output").write_bytes(b"left over")
    assert [found.damage for found in verify(str(job.root)) if found.damage is not None] == []
    spool.discard()


def test_reading_holds_a_block_and_not_the_state(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    value, count = b"x" * 10_000, 2_000
    puts = [
        Change(ChangeOp.PUT, "secret", n % MAX_PARALLELISM, b"\xc0", encode_key(n), b"", value) for n in range(count)
    ]
    job.logs[0].seal(0, puts)
    job.snapshot()
    job.logs[0].seal(1, [])
    write_savepoint(open_source(str(job.root)), tmp_path / "savepoint")
    for location in (job.root, tmp_path / "savepoint"):
        tracemalloc.start()
        try:
            found = sum(1 for _ in read_entries(open_source(str(location)), UID))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == count
        assert peak < 0.25 * count * len(value), location


def widened() -> list[dict[str, Any]]:
    """The states of a program that declares the totals as floats and does not ask for the secret any more."""
    found = [dict(plain) for plain in SCHEMAS if plain["name"] != "secret"]
    return [{**plain, "value_type": "float"} if plain["name"] == "total" else plain for plain in found]


def go_on_converted(job: StoredJob, subtasks: range) -> None:
    """What opening a log with another schema does, but for the bytes of values, which readers do not look at."""
    for subtask in subtasks:
        log = EpochLog.open(job.directory(subtask), job.identity(subtask), lambda _: widened())
        log.write_base(change for change in merged_parts(log.parts(log.bases[0])) if change.state != "secret")
        job.logs[subtask] = log


def test_epochs_from_before_a_conversion_are_read_in_their_own_form(job: StoredJob) -> None:
    job.run(range(3))
    go_on_converted(job, range(2))
    for subtask, log in enumerate(job.logs):
        groups = KeyGroupRange.of_subtask(subtask, 2, MAX_PARALLELISM)
        log.seal(3, [one for one in changes_of(3) if one.group in groups and one.state != "secret"])
    source = open_source(str(job.root))
    for epoch in range(4):
        found = {(one.state, one.key): one for one in read_entries(source, UID, epoch=epoch)}
        assert ("secret" in {state for state, _ in found}) is (epoch < 2), "as of the last one, it is converted"
        forms = {str(plain["name"]): plain["value_type"] for plain in source.states(UID, epoch)}
        assert forms["total"] == ("int" if epoch < 2 else "float")
        if epoch < 2:
            assert {one.decoded for (state, _), one in found.items() if state == "secret"} == {False}
            assert len(list(read_entries(source, UID, epoch=epoch))) == len(state_after(epoch))


def test_epoch_of_two_forms_says_which_ones_can_be_read(job: StoredJob) -> None:
    job.run(range(3))
    job.logs[0].seal(3, [one for one in changes_of(3) if one.group < 4])  # this one is ahead, and converts as of 3
    go_on_converted(job, range(2))
    for log in job.logs:
        log.seal(4, [])
    source = open_source(str(job.root))
    with pytest.raises(CheckpointError, match=r"with two schemas, .* ask for an earlier epoch, or for a later one"):
        list(read_entries(source, UID, epoch=2))
    assert list(read_entries(source, UID, epoch=1)) and list(read_entries(source, UID, epoch=4))


@pytest.mark.parametrize("place", ["header", "body"])
def test_log_whose_first_state_is_damaged_is_refused(job: StoredJob, place: str) -> None:
    """It must not be read as a log that began without any state."""
    job.run(range(3))
    job.rescale(1, 3, [0])
    job.restart()
    job.run([3])
    assert held(open_source(str(job.root)), 3) == state_after(3)
    path = Path(job.directory(0)) / "000000000000.snapshot"
    data = bytearray(path.read_bytes())
    data[30 if place == "header" else len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"000000000000\.snapshot"):
        held(open_source(str(job.root)), 3)
