"""Writes of qstate's where there is no room for them, each in a process of its own that prints what is said.

A file system that is full is a real one where this process may mount one (as root, or in a user namespace). Anywhere, a
process may be forbidden to write large files (RLIMIT_FSIZE).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from qstate.backends.catalog import open_backend
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import open_source, write_savepoint
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import write_final
from qstate.checkpoint.storage.locations import directory_of
from qstate.checkpoint.storage.object_directory import ObjectDirectory
from qstate.config import JobConfig
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import QStateError
from qstate.keys import KeyGroupRange, encode_key
from qstate.runtime.control.process_log import OpenedLog
from qstate.runtime.control.scratch_directory import ScratchDirectory, temporary_directory
from qstate.runtime.job.job_directory import JobDirectory
from tests.checkpoint.checkpoints import QUERY, StoredJob
from tests.checkpoint.logs import change, open_log
from tests.project.documentation import ROOT

__all__ = ["CAN_MOUNT", "LARGE_FILES", "NEW_FILES", "said_on_a_small_file_system", "said_with_small_files_only"]

ROOM_BYTES, ROOM_FILES = 1 << 20, 20
TIMEOUT_S = 120
#: More than there is room for.
MUCH = b"x" * (2 * ROOM_BYTES)


def seal(place: Path) -> None:
    open_log(place / "log").seal(0, [change("key", MUCH)])


def output(place: Path) -> None:
    open_log(place / "log").begin_output().append(MUCH)


def snapshot(place: Path) -> None:
    log = open_log(place / "log")
    for epoch in range(4):
        log.seal(epoch, [change(str(epoch), b"x" * (ROOM_BYTES // 4 - ROOM_BYTES // 64))])
    take_snapshot(directory_of(place / "log"))


def savepoint(place: Path) -> None:
    job = StoredJob(Path(tempfile.gettempdir()) / "checkpoint", parallelism=1)
    for epoch in range(4):
        data = b"\xc6" + (ROOM_BYTES // 3).to_bytes(4, "big") + b"x" * (ROOM_BYTES // 3)
        key = encode_key(str(epoch))
        job.logs[0].seal(epoch, [Change(ChangeOp.PUT, "total", 3, encode_key(None), key, b"", data)])
    write_final(job.root, {QUERY: 3})
    write_savepoint(open_source(str(job.root)), place / "savepoint")


def manifest(place: Path) -> None:
    write_final(place, {"x" * len(MUCH): 1})


def rocksdb(place: Path) -> None:
    backend = open_backend("rocksdb", key_groups=KeyGroupRange(0, 8), max_parallelism=8, directory=place)
    table = backend.table(ValueStateDescriptor("total", bytes))
    for epoch in range(100):
        backend.begin(epoch)
        table.put(epoch, os.urandom(len(MUCH)))
        list(backend.commit(epoch))


def upload(place: Path) -> None:
    tempfile.tempdir = str(place)
    directory = ObjectDirectory("x://y", None, "y")
    try:
        directory.create("file.tmp").write(MUCH)
    except OSError as exc:
        print(exc)


def opening(place: Path) -> None:
    _fill(place)
    open_log(place / "log")


def checkpoint(place: Path) -> None:
    _fill(place)
    JobDirectory("job", JobConfig(checkpoint_dir=str(place / "a" / "b")), 1)


def lock(place: Path) -> None:
    (place / "checkpoint").mkdir()
    _fill(place)
    JobDirectory("job", JobConfig(checkpoint_dir=str(place / "checkpoint")), 1)


def temporary_checkpoint(place: Path) -> None:
    tempfile.tempdir = str(place)
    _fill(place)
    JobDirectory("job", JobConfig(), 1)


def scratch(place: Path) -> None:
    tempfile.tempdir = str(place)
    _fill(place)
    ScratchDirectory()


def below_scratch(place: Path) -> None:
    (place / "scratch").mkdir()
    _fill(place)
    temporary_directory("backend-", place / "scratch")


def log(place: Path) -> None:
    _fill(place)
    OpenedLog(place / "logs" / "deep" / "a.log")


#: What writes much.
LARGE_FILES = {"seal": seal, "output": output, "snapshot": snapshot, "savepoint": savepoint, "manifest": manifest}
LARGE_FILES |= {"rocksdb": rocksdb, "upload": upload}
#: What makes files and directories.
NEW_FILES = {"opening": opening, "checkpoint": checkpoint, "lock": lock, "scratch": scratch, "log": log}
NEW_FILES |= {"temporary_checkpoint": temporary_checkpoint, "below_scratch": below_scratch}


def _fill(place: Path) -> None:
    """Leave no room for any file."""
    for number in range(2 * ROOM_FILES):
        try:
            (place / f"filler {number}").touch()
        except OSError:
            return
    raise AssertionError("there is still room")


def _mounted(*command: str) -> list[str]:
    """A command that sees a small file system in the place of $PLACE."""
    mount = f'mount -t tmpfs -o size={ROOM_BYTES},nr_inodes={ROOM_FILES} tmpfs "$PLACE" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]


def _run(action: str, place: Path, command: list[str], *, small_files: bool = False) -> str:
    place.mkdir(exist_ok=True)
    (place.parent / "elsewhere").mkdir(exist_ok=True)
    own = {"PLACE": str(place), "TMPDIR": str(place.parent / "elsewhere"), "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [*command, str(int(small_files)), action],
        env={**os.environ, **own},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


_PROGRAM = [sys.executable, "-m", "tests.checkpoint.full_disk"]


def said_on_a_small_file_system(action: str, place: Path) -> str:
    return _run(action, place, _mounted(*_PROGRAM))


def said_with_small_files_only(action: str, place: Path) -> str:
    return _run(action, place, _PROGRAM, small_files=True)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        answer = subprocess.run(_mounted("true"), env={**os.environ, "PLACE": place}, capture_output=True, check=False)
        return answer.returncode == 0


#: Whether this process may have a file system of its own.
CAN_MOUNT = sys.platform == "linux" and _can_mount()


def main() -> None:
    small_files, action = sys.argv[1] == "1", sys.argv[2]
    if small_files:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    every: dict[str, Callable[[Path], None]] = {**LARGE_FILES, **NEW_FILES}
    try:
        every[action](Path(os.environ["PLACE"]))
    except QStateError as exc:
        print(f"{type(exc).__name__}: {exc}")
    sys.stdout.flush()
    os._exit(0)  # what cannot be written any more is not wanted any more


if __name__ == "__main__":
    main()
