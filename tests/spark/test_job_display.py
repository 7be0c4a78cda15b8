"""The figures of a job as a table: rates between two readings, escaped names, an end when the job stops."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from qstate.backends.contract import StateSizes
from qstate.errors import ClosedError, ConfigError
from qstate.runtime.control.job_statistics import JobStatistics, ProcessStatistics, SubtaskStatistics
from qstate.spark.job_display import figures_html, show_figures


def figures(rows: int, *, operator: str = "count", reachable: bool = True) -> JobStatistics:
    subtask = SubtaskStatistics(
        operator, 0, epoch=3, rows_in=rows, watermark_ms=1_374_105_600_000, state=StateSizes(entries=1234)
    )
    return JobStatistics("job", (ProcessStatistics("0", None, None, reachable=reachable, subtasks=(subtask,)),))


def test_rows_per_second_are_those_since_the_reading_before() -> None:
    html = figures_html(figures(5000), figures(1000), 2.0)
    for shown in ("count", "5,000", "2,000", "1,234", "2013-07-18 00:00:00"):
        assert f">{shown}</td>" in html


def test_a_subtask_that_begins_again_has_no_negative_rate() -> None:
    assert ">0</td>" in figures_html(figures(10), figures(1000), 1.0)


def test_names_are_escaped_and_silent_processes_are_counted() -> None:
    html = figures_html(figures(1, operator="<script>", reachable=False))
    assert "<script>" not in html
    assert "1 do not answer" in html


def test_outside_a_notebook_the_figures_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_figures(lambda: figures(7), None, 1.0)
    assert capsys.readouterr().out == f"{figures(7)}\n"


def test_in_a_terminal_of_ipython_the_figures_are_printed_once() -> None:
    program = "from qstate.spark.job_display import show_figures; show_figures(lambda: 'the figures', None, 0.01)"
    command = [sys.executable, "-m", "IPython", "--no-banner", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines() == ["the figures"]


@pytest.mark.parametrize("given", [0, -1, float("nan"), "3", True, [1.0]])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="seconds must be a number of seconds above zero"):
        show_figures(lambda: figures(1), given, 1.0)
    for interval_s in (given, None, float("inf"), 1e10):
        with pytest.raises(ConfigError, match="interval_s must be a number of seconds above zero and at most 86,400"):
            show_figures(lambda: figures(1), None, interval_s)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tables that a notebook shows. The real one: test_notebook_kernel."""
    tables: list[Any] = []

    class Handle:
        def display(self, table: Any) -> None:
            tables.append(table)

        update = display

    kernel = SimpleNamespace(kernel=True)
    notebook = SimpleNamespace(get_ipython=lambda: kernel, display=SimpleNamespace(DisplayHandle=Handle))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    return tables


def test_in_a_notebook_the_table_changes_until_the_job_is_stopped(shown: list[Any]) -> None:
    readings = iter([figures(1), figures(2)])

    def statistics() -> JobStatistics:
        found = next(readings, None)
        if found is None:
            raise ClosedError("job 'job' has been stopped")
        return found

    show_figures(statistics, None, 0.01)
    tables = [table._repr_html_() for table in shown]
    assert [">1</td>" in tables[0], ">2</td>" in tables[1], len(tables)] == [True, True, 2]
    assert [repr(table) for table in shown] == [str(figures(1)), str(figures(2))]  # for front ends without HTML


def test_the_display_ends_in_time_however_rarely_it_changes(shown: list[Any]) -> None:
    show_figures(lambda: figures(1), 1.0, 3600.0)
    assert len(shown) == 2


def test_an_interruption_ends_the_display_whenever_it_comes(shown: list[Any]) -> None:
    def statistics() -> JobStatistics:
        raise KeyboardInterrupt

    show_figures(statistics, None, 1.0)
    assert not shown
