"""Two writers of one epoch log: the newer one wins, whatever the older one was about to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from qstate.backends.contract import Change
from qstate.checkpoint import EpochLog
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import CheckpointError, FencedError
from tests.checkpoint.logs import change, held, open_log, output_of


def test_each_opening_has_a_higher_generation(tmp_path: Path) -> None:
    first = open_log(tmp_path)
    first.seal(0, [])
    generations = [first.generation, open_log(tmp_path).generation, open_log(tmp_path).generation]
    assert generations == sorted(set(generations))


def test_older_writer_cannot_seal_and_leaves_nothing(tmp_path: Path) -> None:
    older = open_log(tmp_path)
    older.seal(0, [change("a")], [b"frame"])
    newer = open_log(tmp_path)
    before = sorted(tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(FencedError, match="another writer has opened the epoch log"):
            older.seal(1, [change("zombie")], [b"zombie"])
    newer.seal(1, [change("b")], [b"right"])
    assert set(before) < set(tmp_path.iterdir())
    again = open_log(tmp_path)
    assert held(again) == [change("a"), change("b")]
    assert output_of(again, 1) == [b"right"]


def test_older_writer_is_cut_off_while_it_writes_its_changes(tmp_path: Path) -> None:
    older = open_log(tmp_path)

    def overtaken() -> Iterator[Change]:
        yield change("zombie")
        open_log(tmp_path).seal(0, [change("right")])

    with pytest.raises(FencedError):
        older.seal(0, overtaken(), [b"zombie"])
    assert held(open_log(tmp_path)) == [change("right")]


class WakesUpLate(DurableDirectory):
    """Sleeps between its last check and the act: another writer runs just before the link."""

    def __init__(self, path: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(path)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def publish(self, temporary: str, name: str) -> None:
        if name != "000000000001.log" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().publish(temporary, name)


def test_writer_that_sleeps_before_the_link_is_fenced(tmp_path: Path) -> None:
    sleeper = open_log(WakesUpLate(tmp_path, lambda: open_log(tmp_path)))
    with pytest.raises(FencedError):
        sleeper.seal(0, [change("zombie")], [b"zombie"])
    assert open_log(tmp_path).latest() is None


def test_opening_that_was_overtaken_opens_again_behind(tmp_path: Path) -> None:
    open_log(tmp_path).seal(0, [change("a")])
    sleeper = open_log(WakesUpLate(tmp_path, lambda: open_log(tmp_path).seal(1, [change("b")])))
    assert held(sleeper) == [change("a"), change("b")]
    sleeper.seal(2, [])


def test_opening_gives_up_when_it_is_always_overtaken(tmp_path: Path) -> None:
    class AlwaysLate(DurableDirectory):
        def publish(self, temporary: str, name: str) -> None:
            open_log(tmp_path)
            super().publish(temporary, name)

    with pytest.raises(CheckpointError, match="other writers keep opening it"):
        open_log(AlwaysLate(tmp_path))


def test_opening_spares_the_files_of_newer_writers(tmp_path: Path) -> None:
    newer: list[EpochLog] = []

    class SleepsAfterTheLink(DurableDirectory):
        def publish(self, temporary: str, name: str) -> None:
            super().publish(temporary, name)
            newer.append(open_log(tmp_path))
            self.spool = newer[0].begin_output()
            self.spool.append(b"frame")

    files = SleepsAfterTheLink(tmp_path)
    open_log(files)
    newer[0].seal(0, [], files.spool)
    assert output_of(open_log(tmp_path), 0) == [b"frame"]


def test_only_one_of_two_racing_writers_seals(tmp_path: Path) -> None:
    """Threads through a barrier: the older writer's seal and a new opening, at the same moment, many times."""
    for turn in range(20):
        directory = tmp_path / str(turn)
        older = open_log(directory)
        barrier = threading.Barrier(2)
        sealed: list[bool] = []

        def seal(log: EpochLog = older, start: threading.Barrier = barrier, done: list[bool] = sealed) -> None:
            start.wait(10)
            try:
                log.seal(0, [change("older")])
                done.append(True)
            except FencedError:
                done.append(False)

        thread = threading.Thread(target=seal)
        thread.start()
        barrier.wait(10)
        newer = open_log(directory)
        thread.join(10)
        assert (newer.latest() == 0) == sealed[0]
        assert held(newer) == [change("older")] * sealed[0]


RACING_PROCESS = """
import sys
from pathlib import Path
from qstate.errors import FencedError
from tests.checkpoint.logs import change, open_log
sys.stdin.readline()
for turn in range(15):
    log = open_log(Path(sys.argv[1]))
    epoch = 0 if log.latest() is None else log.latest() + 1
    try:
        for epoch in range(epoch, epoch + 3):
            log.seal(epoch, [change(f"{sys.argv[2]} {epoch}")], [sys.argv[2].encode()])
            print(epoch, flush=True)
    except FencedError:
        pass
"""


def test_racing_processes_seal_each_epoch_once(tmp_path: Path) -> None:
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", RACING_PROCESS, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for name in ("a", "b", "c")
    }
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    confirmed: list[tuple[int, str]] = []
    for name, process in processes.items():
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        confirmed += [(int(line), name) for line in output.split()]
    confirmed.sort()
    assert [epoch for epoch, _ in confirmed] == list(range(len(confirmed)))
    assert held(open_log(tmp_path)) == [change(f"{name} {epoch}") for epoch, name in confirmed]


class ManyWriters(RuleBasedStateMachine):
    """Any interleaving of writers, against a list: only the newest one seals, and everyone who opens sees all."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.writers: list[EpochLog] = []
        self.sealed: list[tuple[int, Change, bytes]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule()
    def open(self) -> None:
        log = open_log(self.directory)
        self.writers.append(log)
        self.assert_complete(log)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), skipped=st.integers(0, 2), spooled=st.booleans())
    def seal(self, data: st.DataObject, skipped: int, spooled: bool) -> None:
        log = data.draw(st.sampled_from(self.writers), label="writer")
        epoch = (-1 if log.latest() is None else log.latest()) + 1 + skipped
        one, frame = change(f"{len(self.sealed)}"), b"%d" % len(self.sealed)
        if log is not self.writers[-1]:
            with pytest.raises(FencedError):
                log.seal(epoch, [one], [frame])
            return
        output = log.begin_output() if spooled else [frame]
        if not isinstance(output, list):
            output.append(frame)
        log.seal(epoch, [one], output)
        self.sealed.append((epoch, one, frame))
        self.assert_complete(log)

    @precondition(lambda self: self.writers and self.sealed)
    @rule()
    def drop_output(self) -> None:
        self.writers[-1].drop_output(self.sealed[-1][0])

    def assert_complete(self, log: EpochLog) -> None:
        assert held(log) == [one for _, one, _ in self.sealed]
        assert log.latest() == (self.sealed[-1][0] if self.sealed else None)
        if self.sealed:
            assert output_of(log, self.sealed[-1][0]) == [self.sealed[-1][2]]


TestManyWriters = ManyWriters.TestCase
