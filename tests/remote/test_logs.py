"""Epoch logs, snapshots, savepoints and their readers in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Change
from qstate.checkpoint import EpochLog, open_source, verify, write_savepoint
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import subtask_directory
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import in_one_form
from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import open_directory
from qstate.errors import CheckpointError, DamagedCheckpoint, FencedError
from qstate.keys import KeyGroupRange
from tests.checkpoint.checkpoints import MAX_PARALLELISM, UID, StoredJob, state_after
from tests.checkpoint.logs import IDENTITY, change, held, open_log, output_of
from tests.cli.test_command_line import assert_one_line_error, run
from tests.remote.s3_server import CREDENTIALS, S3Server

EVERY = KeyGroupRange(0, MAX_PARALLELISM)


def state_of(location: str, options: dict[str, Any]) -> dict[tuple[object, ...], bytes]:
    source = open_source(location, options)
    stored = source.operators()[UID]
    changes = source.state(UID, EVERY, stored.epoch, in_one_form(stored.states, source.location))
    return {(one.state, one.namespace, one.key, one.map_key): one.data for one in changes}


def as_found(state: dict[Any, bytes]) -> list[bytes]:
    return sorted(state.values())


def test_a_log_is_sealed_and_opened_again(files: Directory) -> None:
    log = open_log(files)
    for epoch in range(3):
        log.drop_output(before_epoch=epoch)
        log.seal(epoch, [change(f"k{epoch}")], [b"frame %d" % epoch])
    again = open_log(files)
    assert again.latest() == 2
    assert held(again) == [change(f"k{epoch}") for epoch in range(3)]
    assert output_of(again, 2) == [b"frame 2"]
    outputs = [name for name in files.names() if name.endswith(".output")]
    assert outputs == ["000000000004-000000000001.output"], "what is not needed any more is removed"


def test_an_older_writer_is_fenced(files: Directory, s3: S3Server) -> None:
    old = open_log(files)
    old.seal(0, [change("a")])
    new = EpochLog.open(open_directory(str(files.path), s3.options), IDENTITY)
    with pytest.raises(FencedError, match=f"another writer has opened the epoch log in {files.path}"):
        old.seal(1, [change("b")], [b"of the old one"])
    new.seal(1, [change("c")], [b"of the new one"])
    assert held(open_log(files)) == [change("a"), change("c")]
    assert output_of(new, 1) == [b"of the new one"]


def test_a_damaged_newest_file_does_not_count(files: Directory) -> None:
    log = open_log(files)
    log.seal(0, [change("a")])
    log.seal(1, [change("b")])
    files.replace("000000000003.log", files.read("000000000003.log", 1 << 20)[:-9])
    again = open_log(files)
    assert again.latest() == 0
    assert held(again) == [change("a")]
    files.replace("000000000002.log", b"")
    with pytest.raises(DamagedCheckpoint, match=f"{files.path}/000000000002.log is cut short"):
        open_log(files)


def test_snapshots_replace_the_files_before_them(files: Directory) -> None:
    log = open_log(files)
    for epoch in range(4):
        log.seal(epoch, [change("a", b"%d" % epoch), change(f"k{epoch}")])
        assert take_snapshot(files, retained=2) is not None
    names = sorted(name for name in files.names() if not name.endswith(".output"))
    assert names == ["000000000004.snapshot", "000000000005.log", "000000000005.snapshot"]
    assert take_snapshot(files) is None
    again = open_log(files)
    assert {one.key: one.data for one in held(again)} == {
        one.key: one.data for one in [change("a", b"3"), *(change(f"k{epoch}") for epoch in range(4))]
    }


@pytest.mark.parametrize(
    ("lost", "failure", "from_now_on"),
    [
        (1, FencedError, "another writer has opened"),  # its second attempt finds the name taken, by the first
        (1000, CheckpointError, "open it again"),
    ],
    ids=["the first attempt", "no attempt"],
)
def test_an_epoch_whose_upload_was_not_answered_is_sealed_whole(
    s3: S3Server, files: Directory, lost: int, failure: type[Exception], from_now_on: str
) -> None:
    """The writer cannot know whether the upload arrived; only the next opening of the log finds out."""
    log = open_log(files)
    log.seal(0, [change("a")])

    def changes() -> Iterator[Change]:
        s3.lose_answers(lost)
        yield change("b")

    try:
        with pytest.raises(failure, match=r"cannot seal epoch 1|epoch 1 is not sealed"):
            log.seal(1, changes(), [b"frame"])
    finally:
        s3.lose_answers(0)
    with pytest.raises(failure, match=from_now_on):
        log.seal(1, [change("c")])
    again = open_log(files)
    assert again.latest() == 1
    assert held(again) == [change("a"), change("b")]
    assert output_of(again, 1) == [b"frame"], "an output that may be referred to is not removed"
    again.seal(2, [change("c")])


def test_epoch_fails_while_the_store_pauses_and_the_log_continues_afterwards(s3: S3Server, url: str) -> None:
    log = EpochLog.open(open_directory(url, s3.impatient), IDENTITY)

    def changes() -> Iterator[Change]:
        s3.pause()
        yield change("a")

    try:
        with pytest.raises(CheckpointError, match="cannot seal epoch 0"):
            log.seal(0, changes(), [b"frame"])
    finally:
        s3.resume()
    again = open_log(open_directory(url, s3.options))
    assert again.latest() is None
    again.seal(0, [change("b")], [b"of the second attempt"])
    assert held(again) == [change("b")]
    assert output_of(again, 0) == [b"of the second attempt"]


def test_a_savepoint_is_written_to_a_url_and_read_from_it(s3: S3Server, url: str, tmp_path: Path) -> None:
    job = StoredJob(open_directory(f"{url}/job", s3.options))
    job.run(range(3))
    job.snapshot()
    job.run(range(3, 5))
    local = StoredJob(tmp_path / "job")
    local.run(range(5))
    source = open_source(f"{url}/job", s3.options)
    written = write_savepoint(source, open_directory(f"{url}/savepoint", s3.options))
    assert written.location == f"{url}/savepoint"
    write_savepoint(open_source(str(local.root)), tmp_path / "savepoint")
    remote = open_directory(f"{url}/savepoint", s3.options)
    assert remote.read("0001.savepoint", 1 << 20) == (tmp_path / "savepoint" / "0001.savepoint").read_bytes()
    assert as_found(state_of(f"{url}/savepoint", s3.options)) == as_found(state_after(4))
    with pytest.raises(CheckpointError, match=f"{url}/savepoint is not empty"):
        write_savepoint(source, remote)


def test_a_job_that_is_rescaled_reads_the_layout_before(s3: S3Server, url: str) -> None:
    job = StoredJob(open_directory(url, s3.options))
    job.run(range(3))
    job.rescale(3, 3, range(2))
    assert as_found(state_of(url, s3.options)) == as_found(state_after(2))


def test_every_byte_is_verified(s3: S3Server, url: str) -> None:
    job = StoredJob(open_directory(url, s3.options))
    job.run(range(3))
    assert all(found.damage is None for found in verify(url, s3.options))
    files = subtask_directory(open_directory(url, s3.options), UID, 0, 1)
    data = bytearray(files.read("000000000003.log", 1 << 20))
    data[len(data) // 2] ^= 1
    files.replace("000000000003.log", bytes(data))
    assert [found.path for found in verify(url, s3.options) if found.damage] == [f"{files.path}/000000000003.log"]


def test_a_follower_sees_what_another_process_seals(s3: S3Server, url: str) -> None:
    job = StoredJob(open_directory(url, s3.options))
    job.run([0])
    followed = FollowedOperator(open_directory(url, s3.options), UID)
    followed.look(job.manifest)
    assert followed.written_at() > 1e9
    for epoch in range(1, 5):
        followed.look(job.manifest)
        assert followed.sealed == epoch - 1
        job.run([epoch])
        if epoch == 2:
            job.snapshot(retained=1)


def test_commands_read_a_url(s3: S3Server, url: str) -> None:
    StoredJob(open_directory(url, s3.options)).run(range(3))
    environment = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    option = ["--storage-option", f"endpoint_url={s3.options['endpoint_url']}"]
    shown = json.loads(run("checkpoint", "show", url, "--format", "json", *option, **environment).stdout)
    assert (shown["location"], shown["operators"][0]["epoch"]) == (url, 2)
    assert "no damage" in run("checkpoint", "verify", url, *option, **environment).stdout
    assert run("savepoint", url, f"{url}-saved", *option, **environment).returncode == 0
    assert as_found(state_of(f"{url}-saved", s3.options)) == as_found(state_after(2))
    assert_one_line_error(run("checkpoint", "show", f"{url}-nothing", *option, **environment), "is neither a savepoint")
    assert_one_line_error(run("checkpoint", "show", "nothing://x/y"), "nothing:// is no protocol")
    assert_one_line_error(run("checkpoint", "show", url, "--storage-option", "x"), "takes NAME=VALUE")
