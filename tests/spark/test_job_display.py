"""The figures of a job as a table: rates between two readings, escaped names, an end when the job stops."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from qstate.backends.contract import StateSizes
from qstate.errors import ClosedError
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


def test_in_a_notebook_the_table_changes_until_the_job_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def display(self, table: Any) -> None:
            shown.append(table._repr_html_())

        update = display

    notebook = SimpleNamespace(get_ipython=lambda: True, display=SimpleNamespace(DisplayHandle=Handle))
    monkeypatch.setitem(sys.modules, "IPython", notebook)  # the real one: test_notebook_kernel
    readings = iter([figures(1), figures(2)])

    def statistics() -> JobStatistics:
        found = next(readings, None)
        if found is None:
            raise ClosedError("job 'job' has been stopped")
        return found

    show_figures(statistics, None, 0.01)
    assert [">1</td>" in shown[0], ">2</td>" in shown[1], len(shown)] == [True, True, 2]
