"""Laws of a task manager's life: how it starts, what it takes with it, and what its user's code may do to it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from qstate.errors import ClosedError, JobError
from qstate.runtime.control.processes import runs
from qstate.runtime.control.rpc import RpcPeer, connect
from qstate.runtime.job import job_manager
from tests.runtime.job.functions import Close, Hold, Once, Open, Totals, change_directory, fail, write_to_stdout
from tests.runtime.job.running_job import Background, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]


def test_a_taken_port_is_named_to_the_query(job_of: JobOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = job_of(Totals(), server_ports=str(port))
        with pytest.raises(JobError, match=f"no free port for the .*'{port}'"):
            job.epoch(0, rows_batch(("a", 1)))


def test_an_error_of_open_reaches_the_query_and_the_next_try_starts_again(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Open(Once(tmp_path / "flag", fail)))
    with pytest.raises(JobError, match=r"operator 'it', function Open, open\(\): ValueError: as the test wants"):
        job.epoch(0, rows_batch(("a", 1)))
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]


def test_the_proxy_of_a_new_job_is_given_out_when_there_are_states_to_ask_for(job_of: JobOf, tmp_path: Path) -> None:
    hold = Hold(tmp_path)
    job = job_of(Open(hold))
    running = Background(lambda: job.epoch(0, rows_batch(("a", 1))))
    until(hold.reached.exists, "the function opens")
    assert job.task_manager().proxy is not None
    with pytest.raises(TimeoutError, match="first micro-batch"):
        job.manager.wait_for_proxy(0.0)
    hold.go.touch()
    assert job.totals("b") == {"b": None}
    assert running.result() == [("a", 1)]


def test_a_close_that_raises_does_not_keep_the_task_manager(job_of: JobOf) -> None:
    job = job_of(Close(fail))
    job.epoch(0, rows_batch(("a", 1)))
    manager = job.task_manager()
    process, scratch = psutil.Process(manager.pid), Path(manager.unix_path).parent
    job.stop()
    process.wait(5)
    assert not scratch.exists()
    assert "as the test wants" in job.log_text()


def test_output_of_the_users_code_is_in_the_log(job_of: JobOf) -> None:
    job = job_of(Totals(write_to_stdout))
    job.epoch(0, rows_batch(("mischief", 1)))
    assert "a line of the user's own\n" in job.log_text()


def test_another_working_directory_changes_nothing(job_of: JobOf) -> None:
    job = job_of(Totals(change_directory))
    job.epoch(0, rows_batch(("mischief", 1)))
    assert job.epoch(1, rows_batch(("mischief", 1))) == [("mischief", 2)]


def test_the_files_of_a_killed_task_manager_are_removed_by_the_next(job_of: JobOf) -> None:
    job = job_of(Totals(), backend="rocksdb")
    job.epoch(0, rows_batch(("a", 1)))
    lost = job.task_manager()
    kill(lost)
    job.successor_of(lost)
    assert not Path(lost.unix_path).parent.exists()


def test_temporary_directory_may_be_too_long_for_a_unix_socket(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    job = job_of(Totals())
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
    assert job.task_manager().unix_path == ""


def test_subtasks_share_a_task_manager_by_slots(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=3, slots=2)
    for subtask in range(3):
        assert job.epoch(0, rows_batch((f"of {subtask}", 1)), subtask=subtask) == [(f"of {subtask}", 1)]
    assert sorted(manager.index for manager in job.manager.task_managers()) == [0, 1]


def test_another_relay_gets_the_order_to_start_when_the_first_is_gone(job_of: JobOf) -> None:
    job = job_of(Totals())
    peer = RpcPeer(connect(*job.manager.address, job.manager.secret), {}).start()
    order = peer.call("acquire", 0, 0, 0.1)
    peer.close()
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
    assert job.task_manager().incarnation == order.incarnation + 1


def test_a_task_of_a_stopped_job_says_so(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_manager, "STOP_TIMEOUT_S", 2.0)
    job = job_of(Totals(Once(tmp_path / "flag", Hold(tmp_path))))
    running = Background(lambda: job.epoch(0, rows_batch(("mischief", 1))))
    until((tmp_path / "reached").exists, "the function holds a row")
    job.stop()
    with pytest.raises(JobError, match="has been stopped"):
        running.result()
    with pytest.raises(JobError, match="has been stopped"):
        job.epoch(0, rows_batch(("a", 1)))
    with pytest.raises(ClosedError, match="has been stopped"):
        job.manager.wait_for_proxy(10)


def test_concurrent_stops_return_when_the_job_has_ended(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    process = psutil.Process(job.task_manager().pid)
    ended: list[bool] = []

    def stop() -> None:
        job.stop()
        ended.append(not runs(process))

    stopping = [threading.Thread(target=stop) for _ in range(4)]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join(30)
    assert ended == [True] * 4


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_the_next_stop_finishes_an_interrupted_one(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, while a task manager is still busy."""
    monkeypatch.setattr(job_manager, "STOP_TIMEOUT_S", 4.0)
    job = job_of(Totals(Once(tmp_path / "flag", Hold(tmp_path))))
    running = Background(lambda: job.epoch(0, rows_batch(("mischief", 1))))
    until((tmp_path / "reached").exists, "the function holds a row")
    process = psutil.Process(job.task_manager().pid)

    def stops() -> bool:
        try:
            job.manager.wait_for_proxy(0.0)
        except ClosedError:
            return True
        return False

    def interrupt() -> None:
        until(stops, "the job is being stopped")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.stop()
    interrupting.result()
    assert process.is_running()
    job.stop()
    assert not runs(process)
    with pytest.raises(JobError, match="has been stopped"):
        running.result()


def test_stop_waits_a_bounded_time_for_a_starting_task_manager(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_manager, "STOP_TIMEOUT_S", 2.0)
    job = job_of(Open(Hold(tmp_path)))
    starting = Background(lambda: job.epoch(0, rows_batch(("a", 1))))
    until((tmp_path / "reached").exists, "the task manager is in open()")
    job.stop()
    with pytest.raises(JobError, match="has been stopped"):
        starting.result()
