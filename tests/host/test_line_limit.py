"""Laws of bounded log lines: the first lines of a kind are written, the others are counted and reported."""

from __future__ import annotations

import logging
import socket

import pytest

from qstate.host.line_limit import INTERVAL_S, MOST_LINES, LineLimit, report_withheld
from qstate.runtime.serving import client_connection
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.clock import Clock

OPENINGS = 300


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logger(clock: Clock, caplog: pytest.LogCaptureFixture) -> logging.Logger:
    caplog.set_level(logging.INFO)
    made = logging.Logger("bounded")
    made.parent = logging.getLogger()
    made.addFilter(LineLimit(made, clock))
    return made


def limit_of(logger: logging.Logger) -> LineLimit:
    (found,) = (one for one in logger.filters if isinstance(one, LineLimit))
    return found


def test_lines_of_a_kind_are_bounded_and_the_next_one_reports_the_withheld(
    logger: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        logger.warning("line %d of %s", number, "one kind")
    assert caplog.messages == [f"line {number} of one kind" for number in range(MOST_LINES)]
    clock.now += INTERVAL_S
    logger.warning("line %d of %s", 100, "100 %")
    logger.warning("line %d of %s", 101, "one kind")
    assert caplog.messages[MOST_LINES:] == [
        f"line 100 of 100 % ({100 - MOST_LINES} more of this kind before)",
        "line 101 of one kind",
    ]


def test_each_kind_has_its_own_count(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        logger.info("one %d", number)
        logger.warning("one %d", number)
        logger.info("another %d", number)
    assert len(caplog.messages) == 3 * MOST_LINES


def test_withheld_lines_are_reported_without_another_line(
    logger: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_LINES + 5):
        logger.warning("line %d", number)
    caplog.clear()
    limit_of(logger).report()
    assert not caplog.messages, "the interval is not over"
    clock.now += INTERVAL_S
    for _ in range(2):
        limit_of(logger).report()
    assert caplog.messages == ["5 more lines of this kind were not written: line %d"]
    assert caplog.records[0].levelno == logging.WARNING


def test_many_broken_frames_are_a_few_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="qstate")
    limit = limit_of(client_connection.log)
    clock = Clock()
    monkeypatch.setattr(limit, "_clock", clock)
    server = StateServer(StateRegistry(), EndpointOptions())
    server.start()
    try:
        for _ in range(OPENINGS):
            with socket.create_connection(server.address, timeout=20) as peer:
                peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while peer.recv(4096):
                    pass
    finally:
        server.shutdown()
    assert sum("broke the protocol" in line for line in caplog.messages) == MOST_LINES
    clock.now += INTERVAL_S
    caplog.clear()
    report_withheld()
    (line,) = (line for line in caplog.messages if "broke the protocol" in line)
    assert line.startswith(f"{OPENINGS - MOST_LINES} more lines of this kind were not written")
