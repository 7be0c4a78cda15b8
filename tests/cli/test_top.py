"""`qstate top` shows what a job or standby serves and processes, from its metrics."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from qstate.backends.contract import StateSizes
from qstate.cli import main as cli
from qstate.cli.top import lines_of
from qstate.errors import ConfigError
from qstate.runtime.control.job_statistics import ProcessStatistics, StandbyStatistics, SubtaskStatistics
from qstate.runtime.control.readings import Reading, compare, read, url_of
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.metrics import MetricsServer
from tests.cli.test_command_line import ROOT, assert_one_line_error, run

SUBTASK = SubtaskStatistics(
    "alerts\x1b[31m", 0, epoch=4, epochs=5, rows_in=1000, rows_out=10, epoch_s=5.0, commit_s=0.5, watermark_ms=1_000,
    state=StateSizes(keys={"total": 7, "last": 3}, timers=2),
)  # fmt: skip


class Scraped:
    """The metrics of statistics that a test changes."""

    def __init__(self, *processes: ProcessStatistics) -> None:
        self.processes = list(processes)
        self.server = MetricsServer(lambda: "flights", lambda: self.processes, bind="127.0.0.1", ports="0")
        self.address = "{}:{}".format(*self.server.address)

    def read(self, at: float) -> Reading:
        return replace(read(url_of(self.address)), at=at)


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    counts = InMemoryStatistics()
    found = Scraped(ProcessStatistics("0", counts.snapshot(), None, subtasks=(SUBTASK,), restarts=1))
    yield found
    found.server.close()


def test_rates_and_means_are_those_between_two_readings(scraped: Scraped) -> None:
    before = scraped.read(100.0)
    counts = InMemoryStatistics()
    for _ in range(100):
        counts.report_request(2)
        counts.report_successful_request(0.0007)
    counts.report_failed_request(1)
    later = replace(SUBTASK, epoch=6, epochs=7, rows_in=3000, rows_out=30, epoch_s=9.0, commit_s=0.9)
    scraped.processes[0] = replace(scraped.processes[0], subtasks=(later,), server=counts.snapshot())
    found = compare(before, scraped.read(110.0))
    (subtask,), (serving,) = found.subtasks, found.serving
    assert (found.job, found.interval_s, found.restarts, found.silent) == ("flights", 10.0, 1, ())
    assert (subtask.epoch, subtask.rows_in_per_s, subtask.rows_out_per_s) == (6, 200.0, 2.0)
    assert (subtask.epoch_s, subtask.commit_s) == (pytest.approx(2.0), pytest.approx(0.2))
    assert (subtask.state_keys, subtask.state_entries, subtask.timers, subtask.watermark) == (10, None, 2, 1.0)
    assert (serving.requests_per_s, serving.keys_per_s, serving.failures_per_s) == (10.0, 20.0, 0.1)
    assert serving.p99_s is not None and 0.0005 < serving.p99_s <= 0.001


def test_a_counter_that_went_back_began_at_zero(scraped: Scraped) -> None:
    before = scraped.read(100.0)
    scraped.processes[0] = replace(scraped.processes[0], subtasks=(replace(SUBTASK, rows_in=500, epochs=1),))
    (subtask,) = compare(before, scraped.read(110.0)).subtasks
    assert subtask.rows_in_per_s == 50.0


def test_without_an_epoch_between_the_readings_the_mean_is_that_of_all(scraped: Scraped) -> None:
    (subtask,) = compare(scraped.read(100.0), scraped.read(110.0)).subtasks
    assert (subtask.rows_in_per_s, subtask.commit_s) == (0.0, pytest.approx(0.1))


def test_text_of_others_cannot_control_the_terminal(scraped: Scraped) -> None:
    text = "\n".join(lines_of(compare(scraped.read(100.0), scraped.read(110.0))))
    assert "alerts?[31m" in text and "\x1b" not in text
    assert "10 keys" in text


def test_once_prints_tables_or_one_json_object(scraped: Scraped) -> None:
    answer = run("top", scraped.address, "--once", "--interval", "0.05")
    assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
    assert answer.stdout.startswith("job flights") and "COMMIT_S" in answer.stdout
    document = json.loads(run("top", scraped.address, "--once", "--format", "jsonl", "--interval", "0.05").stdout)
    assert document["subtasks"][0]["state_keys"] == 10
    assert document["serving"][0]["endpoint"] == "server"


def test_a_standby_is_shown_with_the_epochs_that_it_serves() -> None:
    standby = Scraped(ProcessStatistics("standby", None, None, standby=StandbyStatistics((("alerts", 41),), 9, 1)))
    try:
        found = compare(standby.read(0.0), standby.read(1.0))
    finally:
        standby.server.close()
    assert [(one.operator, one.epoch) for one in found.standby] == [("alerts", 41)]
    assert "alerts    41" in "\n".join(lines_of(found))


def test_a_process_that_does_not_answer_is_named(scraped: Scraped) -> None:
    scraped.processes.append(ProcessStatistics("1", None, None, reachable=False))
    found = compare(scraped.read(0.0), scraped.read(1.0))
    assert found.silent == ("1",) and "no answer from 1" in next(lines_of(found))


def test_what_is_no_metrics_of_qstate_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer(text: bytes) -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(text)

        for text, part in (
            (b"HTTP/1.0 200 OK\r\n\r\nother_total 1\n", "not of a qstate job"),
            (b"HTTP/1.0 200 OK\r\n\r\nqstate_up{ 1\n", "no metrics at"),
            (b"HTTP/1.0 200 OK\r\n\r\nqstate_up \xff\n", "no metrics at"),
            (b'HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_epoch{subtask="x"} 1\n', "the subtask 'x'"),
            (b'HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_epoch{subtask="' + b"9" * 5000 + b'"} 1\n', "subtask '9999"),
            (b"HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_epoch NaN\n", "qstate_epoch has the value nan"),
            (b"HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_timers +Inf\n", "the value inf"),
            (b"HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_request_seconds_bucket 1\n", "'le'"),
            (b'HTTP/1.0 200 OK\r\n\r\nqstate_up 1\nqstate_request_seconds_bucket{le="x"} 1\n', "'x'"),
            (b"HTTP/1.0 404 Not Found\r\n\r\n", "404"),
            (b"nonsense", "no metrics at"),
        ):
            thread = threading.Thread(target=answer, args=(text,))
            thread.start()
            with pytest.raises(ConfigError, match=part):
                read(url_of(f"127.0.0.1:{port}"))
            thread.join(10)
    assert_one_line_error(run("top", f"127.0.0.1:{port}", "--once"), "no metrics at", "metrics_ports")


@pytest.mark.parametrize("address", ["localhost", "file:///etc/passwd", "host:port", "", "ftp://host:1/metrics"])
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        url_of(address)


def test_an_interval_that_cannot_be_one_is_one_line() -> None:
    assert_one_line_error(run("top", "localhost:1", "--interval", "0"), "--interval")


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_ends_it_quietly(scraped: Scraped, terminal: bool) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "qstate.cli.main", "top", scraped.address, "--interval", "0.05"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        seen = b""
        while b"COMMIT_S" not in seen:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        draining = threading.Thread(target=_drain, args=(ours,))
        draining.start()
        assert process.wait(30) == cli.SUCCESS
        assert process.stderr is not None and process.stderr.read() == b""
        draining.join(10)
    os.close(ours)


def _drain(descriptor: int) -> None:
    """Read what is still written, so that the process does not wait for room."""
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:  # a terminal whose other end is closed
        return
