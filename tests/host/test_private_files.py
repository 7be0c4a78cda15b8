"""Laws of what is made and opened: the user's alone, whatever the umask; shared only where that was asked for; and
nothing but regular files is read."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstate.checkpoint import open_source, verify, write_savepoint
from qstate.checkpoint.manifest import JobManifest, read_final
from qstate.checkpoint.sources.history import JobHistory
from qstate.checkpoint.sources.savepoint import Savepoint
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.config import JobConfig
from qstate.errors import CheckpointError, ConfigError, DamagedCheckpoint
from qstate.host import private_files
from qstate.host.private_files import (
    NotRegular,
    create_file,
    make_directories,
    open_lock,
    open_own,
    open_regular,
    open_trusted,
)
from qstate.runtime.job.job_directory import JobDirectory
from tests.checkpoint.checkpoints import UID, StoredJob
from tests.runtime.job.other_user import OTHER_UID, OtherUser, other_user, shared_temporary

__all__ = ["other_user", "shared_temporary"]

#: Far longer than any of this takes.
SOON_S = 20.0


@pytest.fixture(params=[0, 0o022, 0o077, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> set[tuple[str, str]]:
    """The kinds and modes of all that is in a directory, and of itself."""
    found = [root, *root.rglob("*")]
    return {("directory" if path.is_dir() else "file", oct(stat.S_IMODE(path.stat().st_mode))) for path in found}


def bounded(call: Callable[[], object]) -> None:
    """Make a call that must not wait for anything."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive(), "it waits"
    for failure in failures:
        raise failure


def write_everything(root: Path) -> None:
    """A checkpoint with all that it can have, and a savepoint, below directories that are not there."""
    job = StoredJob(root / "deep" / "checkpoint")
    job.run(range(2))
    job.snapshot()
    job.run(range(2, 4))
    job.rescale(1, 4, [0])
    JobDirectory("job", JobConfig(checkpoint_dir=str(job.root), max_parallelism=8), 1).close()
    write_savepoint(open_source(str(job.root)), root / "savepoints" / "first")


def test_all_that_is_written_is_the_users_alone(tmp_path: Path, umask: int) -> None:
    write_everything(tmp_path / "own")
    assert modes(tmp_path / "own") == {("directory", "0o700"), ("file", "0o600")}


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path, umask: int) -> None:
    (tmp_path / "deep" / "checkpoint").mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "deep", tmp_path / "deep" / "checkpoint"):
        directory.chmod(0o755)
    write_everything(tmp_path)
    assert stat.S_IMODE((tmp_path / "deep" / "checkpoint").stat().st_mode) == 0o755
    below = {mode for path in (tmp_path / "deep" / "checkpoint").iterdir() for mode in modes(path)}
    assert below == {("directory", "0o700"), ("file", "0o600")}


@pytest.mark.parametrize(("shared", "files"), [(0o2750, "0o640"), (0o2770, "0o660"), (0o2700, "0o600")])
def test_a_directory_with_the_set_group_id_bit_is_shared_with_its_group(
    tmp_path: Path, umask: int, shared: int, files: str
) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(shared)
    write_everything(root)
    assert modes(root) == {("directory", oct(shared)), ("file", files)}


def test_two_that_make_one_directory_both_have_it(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b" / "c"
    begin = threading.Barrier(4)
    failures: list[OSError] = []

    def make() -> None:
        begin.wait()
        try:
            make_directories(wanted)
        except OSError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and wanted.is_dir()
    assert make_directories(wanted) == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            make_directories(path)


TRAPS: dict[str, Callable[[Path], None]] = {
    "a FIFO": lambda path: os.mkfifo(path),
    "a link to a FIFO": lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to("fifo"))[1],
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a silent device": lambda path: path.symlink_to("/dev/tty"),
    "a directory": lambda path: path.mkdir(),
}


@pytest.fixture(params=TRAPS.values(), ids=TRAPS)
def trap(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something else in the place of a file."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        request.param(path)

    return put


def test_only_regular_files_are_opened(tmp_path: Path, trap: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    trap(path)
    with pytest.raises(NotRegular, match="is no regular file"):
        bounded(lambda: open_regular(path))
    for opened in (open_own, open_lock):
        with pytest.raises(OSError, match=str(path)):
            bounded(lambda opened=opened: opened(path))
    with pytest.raises(FileExistsError):
        bounded(lambda: create_file(path))


def test_reading_follows_a_link_and_making_does_not(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "nowhere").symlink_to("made")
    with os.fdopen(open_regular(tmp_path / "link"), "rb") as file:
        assert file.read() == b"kept"
    for opened in (open_own, open_lock):
        for name in ("link", "nowhere"):
            with pytest.raises(OSError) as failed:
                opened(tmp_path / name)
            assert failed.value.errno == errno.ELOOP
    assert not (tmp_path / "made").exists()


def test_what_is_opened_is_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for opened in (create_file, open_regular, open_own, open_lock):
        descriptor = opened(path)
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_own_directories_exclude_those_that_others_can_write_to(shared_temporary: Path, other_user: OtherUser) -> None:
    made = private_files.own_directory("qstate-x-")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert private_files.own_directory("qstate-x-") == made, "there is one already"
    (shared_temporary / "qstate-x-open").mkdir()
    (shared_temporary / "qstate-x-open").chmod(0o777)
    (shared_temporary / "qstate-x-file").touch()
    (shared_temporary / "qstate-x-link").symlink_to(made)
    (shared_temporary / "other").mkdir(0o700)
    assert private_files.own_directories("qstate-x-") == [made]
    other_user("mkdir -m 700 qstate-x-!; mkdir -m 777 qstate-x-0")
    if os.geteuid() == made.stat().st_uid:
        assert private_files.own_directories("qstate-x-") == [made]
    else:  # this process takes itself for another user: nothing is its own any more
        assert private_files.own_directories("qstate-x-") == []


def test_a_directory_that_cannot_be_looked_at_is_not_ours(
    shared_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of one of two directories is longer than the system takes (4096), so that its `lstat` fails."""
    deep = shared_temporary
    while len(str(deep)) < 4000:
        deep /= "d" * min(200, 4050 - len(str(deep)))
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made = private_files.own_directory("qstate-x-")
    place = os.open(deep, os.O_RDONLY)
    os.mkdir("qstate-x-" + "l" * 100, 0o700, dir_fd=place)
    os.close(place)
    with os.scandir(deep) as entries, pytest.raises(OSError, match="name too long"):
        [entry.stat(follow_symlinks=False) for entry in entries]
    assert private_files.own_directories("qstate-x-") == [made]
    assert private_files.own_directory("qstate-x-") == made


def test_a_file_of_another_user_is_not_opened_for_writing(
    shared_temporary: Path, other_user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_user("touch file; chmod 666 file")
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_own(shared_temporary / "file")


def test_a_hard_link_in_a_directory_of_others_is_not_opened_for_writing(
    shared_temporary: Path, other_user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have linked any file of this user there."""
    (shared_temporary / "kept").write_bytes(b"kept")
    (shared_temporary / "file").hardlink_to(shared_temporary / "kept")
    with pytest.raises(PermissionError, match="has another name"):
        open_own(shared_temporary / "file")
    own = shared_temporary / "own"
    own.mkdir(0o700)
    (own / "file").hardlink_to(shared_temporary / "kept")  # such as a backup makes them
    os.close(open_own(own / "file"))


UNTRUSTED = {
    "of others, where all can create files": "printf x > file; chmod 644 file",
    "that all can write": "mkdir -m 755 theirs; printf x > theirs/file; chmod 666 theirs/file; ln -s theirs/file file",
    "a link to one of others": "printf x > theirs; ln -s theirs file",
}


@pytest.mark.parametrize("script", UNTRUSTED.values(), ids=UNTRUSTED)
def test_settings_that_others_can_change_are_not_read(
    script: str, shared_temporary: Path, other_user: OtherUser
) -> None:
    other_user(script)
    with pytest.raises(PermissionError, match="other users can change it"):
        open_trusted(shared_temporary / "file")


def test_settings_of_this_user_or_in_a_closed_directory_are_read(shared_temporary: Path, other_user: OtherUser) -> None:
    (shared_temporary / "own").write_bytes(b"x")
    other_user("mkdir -m 755 theirs; printf x > theirs/file; chmod 644 theirs/file")  # such as a deploying user's
    for name in ("own", "theirs/file"):
        if os.geteuid() == (shared_temporary / "own").stat().st_uid or name != "own":
            os.close(open_trusted(shared_temporary / name))


@pytest.fixture
def stored(tmp_path: Path) -> StoredJob:
    """A checkpoint, and a savepoint beside it."""
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(2))
    job.snapshot()
    job.run(range(2, 4))
    write_savepoint(open_source(str(job.root)), tmp_path / "savepoint")
    return job


@pytest.mark.parametrize("name", ["job.json", "final.json"])
def test_a_manifest_that_is_no_regular_file_is_damage(
    stored: StoredJob, name: str, trap: Callable[[Path], None]
) -> None:
    trap(Path(stored.root) / name)
    if name == "final.json":
        bounded(lambda: read_final(stored.root) == {} or pytest.fail("it says nothing"))
        bounded(lambda: open_source(str(stored.root)).operators())
    else:
        with pytest.raises(DamagedCheckpoint, match=f"{name} is no regular file"):
            bounded(lambda: JobManifest.read(stored.root))
    bounded(lambda: assert_damage(str(stored.root), name))


def test_a_savepoints_manifest_that_is_no_regular_file_is_damage(
    stored: StoredJob, tmp_path: Path, trap: Callable[[Path], None]
) -> None:
    trap(tmp_path / "savepoint" / "savepoint.json")
    with pytest.raises(DamagedCheckpoint, match=r"savepoint\.json is no regular file"):
        bounded(lambda: Savepoint.read(tmp_path / "savepoint"))
    bounded(lambda: assert_damage(str(tmp_path / "savepoint"), "savepoint.json"))


@pytest.mark.parametrize("suffix", [".log", ".snapshot", ".output"])
def test_a_file_of_the_log_that_is_no_regular_file_is_damage(
    stored: StoredJob, suffix: str, trap: Callable[[Path], None]
) -> None:
    path = max(stored.directory(0).glob(f"*{suffix}"))
    trap(path)
    bounded(lambda: assert_damage(str(stored.root), path.name))
    bounded(lambda: JobHistory(stored.root, stored.manifest).operators()[UID])


def test_a_savepoints_file_that_is_no_regular_file_is_damage(
    stored: StoredJob, tmp_path: Path, trap: Callable[[Path], None]
) -> None:
    trap(tmp_path / "savepoint" / "0001.savepoint")
    bounded(lambda: assert_damage(str(tmp_path / "savepoint"), "0001.savepoint"))


def assert_damage(location: str, name: str) -> None:
    damages = [found.damage for found in verify(location) if found.damage is not None]
    assert any(f"{name} is no regular file" in damage for damage in damages), damages


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_a_place_that_is_no_directory_is_said(tmp_path: Path, kind: str, trap: Callable[[Path], None]) -> None:
    trap(tmp_path / "place")
    with pytest.raises(CheckpointError, match="place"):
        bounded(lambda: open_source(str(tmp_path / "place")))


def test_a_lock_that_is_no_regular_file_is_refused_by_name(tmp_path: Path, trap: Callable[[Path], None]) -> None:
    trap(tmp_path / "job.lock")
    with pytest.raises(ConfigError, match=r"job\.lock"):
        bounded(lambda: JobDirectory("job", JobConfig(checkpoint_dir=str(tmp_path)), 1))


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "job.lock").symlink_to(tmp_path / "made")
    with pytest.raises(ConfigError, match=r"job\.lock"):
        JobDirectory("job", JobConfig(checkpoint_dir=str(tmp_path / "checkpoint")), 1)
    assert not (tmp_path / "made").exists()


def test_another_user_of_the_group_reads_a_shared_checkpoint(shared_temporary: Path, other_user: OtherUser) -> None:
    root = shared_temporary / "shared"
    root.mkdir()
    if os.geteuid() == 0:
        os.chown(root, -1, OTHER_UID)
    root.chmod(0o2750)
    StoredJob(root).run(range(2))
    assert {path.stat().st_gid for path in root.rglob("*")} == {root.stat().st_gid}
    other_user("cat shared/job.json > read; test -s read")


def test_another_user_of_the_host_reads_nothing(shared_temporary: Path, other_user: OtherUser) -> None:
    StoredJob(shared_temporary / "own").run(range(2))
    if os.geteuid() == 0:
        other_user("! cat own/job.json")
    assert modes(shared_temporary / "own") == {("directory", "0o700"), ("file", "0o600")}


def test_a_directory_that_others_can_change_is_warned_of(
    shared_temporary: Path, other_user: OtherUser, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(path: Path) -> str:
        caplog.clear()
        JobDirectory("job", JobConfig(checkpoint_dir=str(path)), 1).close()
        return caplog.text

    for mode in (0o700, 0o755, 0o2770):
        (shared_temporary / oct(mode)).mkdir()
        (shared_temporary / oct(mode)).chmod(mode)
        assert warnings(shared_temporary / oct(mode)) == ""
    (shared_temporary / "open").mkdir()
    (shared_temporary / "open").chmod(0o777)
    assert "every user of this host can change the checkpoints in" in warnings(shared_temporary / "open")
    other_user("mkdir -m 755 another")
    assert "can be changed by another user" in warnings(shared_temporary / "another")


def test_what_is_replaced_is_the_users_alone_as_well(tmp_path: Path) -> None:
    files = DurableDirectory(tmp_path)
    (tmp_path / "job.json").write_bytes(b"old")
    (tmp_path / "job.json").chmod(0o644)
    files.replace("job.json", b"new")
    assert stat.S_IMODE((tmp_path / "job.json").stat().st_mode) == 0o600
