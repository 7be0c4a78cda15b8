"""The epoch log when its writer dies: at every single system call, by power loss, and by a real SIGKILL.

The law: after a crash the next writer finds exactly the epochs that were sealed, whole; the one that was being
sealed is there as a whole or not at all; what `seal` has confirmed is always there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import CheckpointError
from tests.checkpoint.logs import IDENTITY, change, held, open_log, output_of
from tests.checkpoint.mortal_directory import Crash, MortalDirectory

#: More than the calls that the scenario makes; the last crash point has to find nothing left to interrupt.
MOST_CALLS = 60


def run_until_crash(files: MortalDirectory) -> tuple[bool, int]:
    """Open, seal three epochs, drop output: whether it died, and how many epochs were confirmed."""
    confirmed = 0
    try:
        log = open_log(files)
        for epoch in range(3):
            log.seal(epoch, [change(f"key {epoch}")], [b"frame %d" % epoch])
            confirmed += 1
            log.drop_output(before_epoch=epoch)
    except Crash:
        return True, confirmed
    finally:
        files.bury()
    return False, confirmed


def assert_whole(directory: Path, confirmed: int) -> None:
    log = open_log(directory)
    sealed = 0 if log.latest() is None else log.latest() + 1
    assert confirmed <= sealed <= confirmed + 1
    assert held(log) == [change(f"key {epoch}") for epoch in range(sealed)]
    if sealed:
        assert output_of(log, sealed - 1) == [b"frame %d" % (sealed - 1)]
    assert not list(directory.glob("*.tmp"))
    assert len(list(directory.glob("*.output"))) <= 2
    log.seal(sealed, [change("next")], [b"next"])
    assert held(open_log(directory))[-1] == change("next")


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_crash_at_every_call_leaves_whole_epochs(tmp_path: Path, after: bool) -> None:
    for call in range(1, MOST_CALLS):
        directory = tmp_path / str(call)
        files = MortalDirectory(directory, call, after)
        died, confirmed = run_until_crash(files)
        assert_whole(directory, confirmed)
        if not died:
            return
    pytest.fail("the scenario makes more calls than were interrupted")


@pytest.mark.parametrize("which", ["no names", "all names", "each name"])
def test_power_loss_at_every_call_leaves_whole_epochs(tmp_path: Path, which: str) -> None:
    for call in range(1, MOST_CALLS):
        files = MortalDirectory(tmp_path / str(call) / "probe", call, after=True)
        died, confirmed = run_until_crash(files)
        choices: list[set[Path]] = {
            "no names": [set()],
            "all names": [files.unsynced_names],
            "each name": [{path} for path in files.unsynced_names],
        }[which]
        for number, names in enumerate(choices):
            again = MortalDirectory(tmp_path / str(call) / str(number), call, after=True)
            assert run_until_crash(again) == (died, confirmed)
            # Temporary names are random: lose the same ones by their order and suffix.
            lost = {path for path in again.unsynced_names if _kind(path) in {_kind(name) for name in names}}
            again.lose_power(lost)
            assert_whole(again.path, confirmed)
        if not died:
            return
    pytest.fail("the scenario makes more calls than were interrupted")


def _kind(path: Path) -> tuple[str, str]:
    return path.name[:12], path.suffix


class FailingDirectory(DurableDirectory):
    """A disk that fails at one call, once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.failing = ""

    def _fail(self, name: str) -> None:
        if self.failing == name:
            self.failing = ""
            raise OSError(28, "No space left on device", str(self.path))

    def create(self, name: str) -> BinaryIO:
        self._fail("create")
        return super().create(name)

    def finish(self, file: BinaryIO) -> None:
        self._fail("finish")
        super().finish(file)

    def publish(self, temporary: str, name: str) -> None:
        self._fail("publish")
        super().publish(temporary, name)

    def sync(self) -> None:
        self._fail("sync after publish" if list(self.path.glob("*2.log")) else "sync")
        super().sync()


@pytest.mark.parametrize("call", ["create", "finish", "publish", "sync"])
def test_disk_failure_before_the_epoch_has_its_name_leaves_the_log_usable(tmp_path: Path, call: str) -> None:
    files = FailingDirectory(tmp_path)
    log = open_log(files)
    files.failing = call
    with pytest.raises(CheckpointError, match=r"cannot .*No space left on device"):
        log.seal(0, [change("lost")], [b"frame"])
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.log"]
    log.seal(0, [change("kept")], [b"frame"])
    assert held(open_log(tmp_path)) == [change("kept")]


def test_disk_failure_after_the_epoch_has_its_name_asks_to_open_the_log_again(tmp_path: Path) -> None:
    files = FailingDirectory(tmp_path)
    log = open_log(files)
    files.failing = "sync after publish"
    with pytest.raises(CheckpointError, match="No space left"):
        log.seal(0, [change("a")], [b"frame"])
    with pytest.raises(CheckpointError, match="open it again"):
        log.seal(0, [change("b")])
    again = open_log(tmp_path)
    assert again.latest() == 0
    assert held(again) == [change("a")]
    assert output_of(again, 0) == [b"frame"]


SEALING_PROCESS = """
import sys
from pathlib import Path
from tests.checkpoint.logs import change, open_log
log = open_log(Path(sys.argv[1]))
first = 0 if log.latest() is None else log.latest() + 1
for epoch in range(first, 100_000):
    log.seal(epoch, [change(f"key {epoch}", bytes(epoch % 5000))], [b"frame"])
    log.drop_output(epoch)
    print(epoch, flush=True)
"""


def test_killed_process_loses_nothing_it_confirmed(tmp_path: Path) -> None:
    confirmed = -1
    for lines in (1, 7, 20, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", SEALING_PROCESS, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        with process:
            assert process.stdout is not None
            for _ in range(lines):
                confirmed = int(process.stdout.readline())
            process.kill()
            confirmed = max([confirmed, *map(int, process.stdout.read().split())])
    log = open_log(tmp_path, IDENTITY)
    latest = log.latest()
    assert latest is not None and confirmed <= latest <= confirmed + 1
    assert held(log) == [change(f"key {epoch}", bytes(epoch % 5000)) for epoch in range(latest + 1)]
    assert output_of(log, latest) == [b"frame"]
