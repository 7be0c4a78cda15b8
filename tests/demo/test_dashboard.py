"""The dashboard shows its figures, on a terminal and without one, and gets values through the client."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from qstate.client import QueryableStateClient
from qstate.demo.dashboard import Picture, PlainLines, Stopwatch, StreamLine, Terminal, open_dashboard
from qstate.demo.probe import Probe, Reading
from tests.project.served_job import JOB, serve

PICTURE = Picture(
    elapsed_s=12.3,
    day="2013-07-18",
    streams=[StreamLine("flights", 250_000, 336_776, 9, 41_000.0)],
    readings=[Reading("lastTemperature", "EWR", "98.1 °F"), Reading("lastTemperature", "JFK", "100.0 °F")],
    keys_asked=1_234,
    request_ms=0.7,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryableStateClient]:
    with serve(tmp_path_factory.mktemp("served")) as address, QueryableStateClient(*address) as client:
        yield client


def test_plain_lines_show_progress_rate_and_one_value_per_state(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard = PlainLines()
    dashboard.open()
    dashboard.show(PICTURE)
    dashboard.close()
    printed = capsys.readouterr().out
    assert "flights: 250,000 of 336,776 rows, 9 epochs, 41,000 rows/s" in printed
    assert "lastTemperature EWR: 98.1 °F" in printed
    assert "JFK" not in printed


def test_terminal_shows_everything_and_leaves_no_thread_behind() -> None:
    output = StringIO()
    dashboard = Terminal(Console(file=output, force_terminal=True, width=120, height=50))
    dashboard.open()
    dashboard.show(PICTURE)
    dashboard.close()
    for part in ("2013-07-18", "250,000 / 336,776", "41,000", "98.1 °F", "JFK", "1,234 keys asked", "0.7 ms"):
        assert part in output.getvalue()


def test_output_that_is_no_terminal_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(open_dashboard(plain=False), PlainLines)


def test_rate_is_that_of_the_last_seconds() -> None:
    watch = Stopwatch()
    assert watch.rows_per_s(0, now=100.0) == 0.0
    assert watch.rows_per_s(1_000, now=101.0) == 1_000.0
    assert [watch.rows_per_s(1_000, now=second) for second in (103.0, 105.0, 107.0, 112.0)][-1] == 0.0


def test_probe_shows_stored_values_and_marks_missing_ones(client: QueryableStateClient) -> None:
    probe = Probe(client, JOB)
    readings = {(reading.state, reading.key): reading.text for reading in probe.look("2013-07-18")}
    assert readings["lastTemperature", "JFK"] == "71.1 °F"
    assert readings["lastTemperature", "EWR"] == "-"
    assert readings["totalDistance", "N725MQ"] == "-"
    # `serve` has neither of these two states.
    assert readings["lastFlight", ""] == readings["maxTemperature 2013-07-18", ""] == "(UnknownState)"
    assert probe.keys == 3 + 4 * 3
    assert probe.mean_ms > 0.0
