"""Laws of scratch directories: each has one owner, those of killed owners are removed, other users cannot interfere."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.runtime.control.scratch_directory import LOCK_FILE, ScratchDirectory
from tests.runtime.job.other_user import OTHER_UID, OtherUser, other_user, shared_temporary
from tests.runtime.job.running_job import Background

__all__ = ["other_user", "shared_temporary"]

#: Far longer than it takes, far shorter than forever.
SOON_S = 20.0

LEAVES_ONE = """
import os, signal
from qstate.runtime.control.scratch_directory import ScratchDirectory
scratch = ScratchDirectory()
(scratch.path / "backend-0" / "deep").mkdir(parents=True)
(scratch.path / "backend-0" / "deep" / "file").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_scratch_directory_is_private_and_locked(shared_temporary: Path) -> None:
    scratch = ScratchDirectory()
    assert scratch.path.parent == shared_temporary
    assert stat.S_IMODE(scratch.path.stat().st_mode) == 0o700
    lock = scratch.path / LOCK_FILE
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with lock.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    scratch.remove()
    scratch.remove()
    assert not list(shared_temporary.iterdir())


def test_directories_of_killed_owners_are_removed_and_others_stay(shared_temporary: Path) -> None:
    living = ScratchDirectory()
    killed = subprocess.run(
        [sys.executable, "-c", LEAVES_ONE], env={**os.environ, "TMPDIR": str(shared_temporary)}, timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(shared_temporary.glob("*/backend-0/deep/file"))) == 1
    scratch = ScratchDirectory()
    assert {living.path, scratch.path} == set(shared_temporary.iterdir())
    living.remove()
    scratch.remove()


def test_rest_of_an_interrupted_removal_is_removed(shared_temporary: Path) -> None:
    (shared_temporary / "qstate-scratch-begun").mkdir(0o700)
    (shared_temporary / "qstate-scratch-begun" / LOCK_FILE).touch(0o600)
    ScratchDirectory().remove()
    assert not list(shared_temporary.iterdir())


def test_concurrent_owners_do_not_remove_each_others_directories(shared_temporary: Path) -> None:
    lost: list[Path] = []

    def make_and_remove() -> None:
        for _ in range(100):
            scratch = ScratchDirectory()
            if not (scratch.path / LOCK_FILE).exists():
                lost.append(scratch.path)
            scratch.remove()

    threads = [threading.Thread(target=make_and_remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost
    assert not list(shared_temporary.iterdir())


def test_unlistable_temporary_directory_is_used(shared_temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_temporary.chmod(0o1333)
    own = os.geteuid()
    if own == 0:  # root may list every directory
        os.seteuid(OTHER_UID)
    try:
        with pytest.raises(PermissionError):
            list(shared_temporary.iterdir())
        scratch = ScratchDirectory()
        assert (scratch.path / LOCK_FILE).exists()
        scratch.remove()
        assert not scratch.path.exists()
    finally:
        os.seteuid(own)
        shared_temporary.chmod(0o1777)


TRAPS: dict[str, str] = {
    "a FIFO as the lock": "mkdir -m 777 qstate-scratch-x; mkfifo -m 666 qstate-scratch-x/owner.lock",
    "a link to a file that is not there": "mkdir -m 777 qstate-scratch-x; ln -s ../made qstate-scratch-x/owner.lock",
    "a link to a device": "mkdir -m 777 qstate-scratch-x; ln -s /dev/zero qstate-scratch-x/owner.lock",
    "a link to a directory": "mkdir -m 777 kept; touch kept/file; ln -s kept qstate-scratch-x; touch kept/owner.lock",
    "a file in the place of a directory": "touch qstate-scratch-x",
    "no lock": "mkdir -m 777 qstate-scratch-x; touch qstate-scratch-x/file",
    "a lock that anybody can write": "mkdir -m 777 qstate-scratch-x; touch qstate-scratch-x/owner.lock; "
    "chmod 666 qstate-scratch-x/owner.lock; touch qstate-scratch-x/file",
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_files_of_another_user_neither_block_nor_misdirect_the_removal(
    trap: str, shared_temporary: Path, other_user: OtherUser
) -> None:
    other_user(trap)
    before = sorted(shared_temporary.rglob("*"))
    scratch = Background(ScratchDirectory).result(SOON_S)
    scratch.remove()
    assert sorted(shared_temporary.rglob("*")) == before


OWN_TRAPS: dict[str, Callable[[Path], None]] = {
    "a FIFO": lambda lock: os.mkfifo(lock),
    "a link": lambda lock: lock.symlink_to(lock.parent.parent / "made"),
    "a link to a device": lambda lock: lock.symlink_to("/dev/zero"),
    "a directory": lambda lock: lock.mkdir(),
}


@pytest.mark.parametrize("trap", OWN_TRAPS.values(), ids=OWN_TRAPS)
def test_nothing_but_a_regular_file_is_a_lock(trap: Callable[[Path], None], shared_temporary: Path) -> None:
    directory = shared_temporary / "qstate-scratch-x"
    directory.mkdir(0o700)
    trap(directory / LOCK_FILE)
    scratch = Background(ScratchDirectory).result(SOON_S)
    scratch.remove()
    assert sorted(shared_temporary.iterdir()) == [directory]
    assert list(directory.iterdir()) == [directory / LOCK_FILE]
