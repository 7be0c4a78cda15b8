"""The metronome: a process that wakes up on one processor while it is asked to, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from qstate.runtime.metronome import LEASE_S, PERIOD_S, Metronome
from tests.job.running_job import until

TIMEOUT_S = 20.0

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "sched_getcpu"), reason="the C library does not tell a thread's processor"
)


@pytest.fixture
def metronome() -> Iterator[Metronome]:
    metronome = Metronome()
    yield metronome
    metronome.close()


def _process(metronome: Metronome) -> psutil.Process:
    assert metronome._process is not None
    return psutil.Process(metronome._process.pid)


def _wake_ups(process: psutil.Process) -> int:
    return process.num_ctx_switches().voluntary


def _wake_ups_within(process: psutil.Process, seconds: float) -> int:
    before, end = _wake_ups(process), time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return _wake_ups(process) - before


def test_one_word_is_good_for_many_beats_however_long_there_was_none(metronome: Metronome) -> None:
    def are_many_after_a_rest() -> bool:
        if _wake_ups_within(process, 2 * LEASE_S) > 2 * LEASE_S / PERIOD_S + 1:
            raise AssertionError("it beats without a pause")
        metronome._told = -1
        metronome.beat()
        return _wake_ups_within(process, LEASE_S) >= 5  # in place of a hundred: the machine may be busy

    metronome.beat()
    process = _process(metronome)
    until(lambda: _wake_ups(process) > 0, "it is up")
    until(are_many_after_a_rest, "one word is good for many beats")


def test_it_rests_when_nobody_asks_any_more(metronome: Metronome) -> None:
    metronome.beat()
    process = _process(metronome)
    until(lambda: _wake_ups_within(process, 2 * LEASE_S) == 0, "it rests")


def test_it_is_where_the_thread_is_that_asks(metronome: Metronome) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        for processor in sorted(allowed):
            os.sched_setaffinity(0, {processor})
            metronome.beat()
            process = _process(metronome)
            there = [processor]
            until(lambda there=there, process=process: process.cpu_affinity() == there, "it is there")  # type: ignore[misc]
    finally:
        os.sched_setaffinity(0, allowed)


def test_it_has_a_session_of_its_own(metronome: Metronome) -> None:
    metronome.beat()
    pid = _process(metronome).pid
    assert os.getsid(pid) == pid != os.getsid(0)


def test_close_ends_it_for_good(metronome: Metronome) -> None:
    metronome.beat()
    process = _process(metronome)
    metronome.close()
    metronome.close()
    metronome.beat()
    assert not process.is_running()
    assert metronome._process is None


def test_one_that_is_held_is_ended_all_the_same(metronome: Metronome) -> None:
    metronome.beat()
    process = _process(metronome)
    process.suspend()
    metronome.close()
    assert not process.is_running()


def test_whoever_asks_does_not_wait_for_one_that_is_held(metronome: Metronome) -> None:
    metronome.beat()
    process = _process(metronome)
    process.suspend()
    for _ in range(100_000):  # more than its pipe takes
        metronome._told = -1
        metronome.beat()
    process.resume()
    assert process.is_running()


def test_one_that_was_killed_is_missed_once(metronome: Metronome, caplog: pytest.LogCaptureFixture) -> None:
    metronome.beat()
    process = _process(metronome)
    process.kill()
    assert metronome._process is not None
    metronome._process.wait(TIMEOUT_S)
    for _ in range(3):
        metronome._told = -1
        metronome.beat()
    assert [record.message for record in caplog.records if "no beats any more" in record.message] == [
        "live gets may take some milliseconds longer: no beats any more: [Errno 32] Broken pipe"
    ]
    assert metronome._process is None


@pytest.mark.parametrize("processor_of_thread", [None, lambda: -1], ids=["no such call", "the call is refused"])
def test_nothing_happens_where_a_thread_cannot_learn_its_processor(
    metronome: Metronome, processor_of_thread: Callable[[], int] | None
) -> None:
    metronome._processor_of_thread = processor_of_thread
    metronome.beat()
    assert metronome._process is None


OWNER = """
import time
from qstate.runtime.metronome import Metronome

metronome = Metronome()
metronome.beat()
print(metronome._process.pid, flush=True)
time.sleep(60)
"""


def test_it_does_not_outlive_its_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        process = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait(TIMEOUT_S)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "it ends")
