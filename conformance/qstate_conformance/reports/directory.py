"""A directory of reports: every form of each run, and one matrix of all runs in the directory.

backend-heap.txt  backend-heap.json  backend-heap.xml      one set per subject, replaced by its next run
matrix.html                                                made again from every JSON report in the directory
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qstate_conformance.outcomes import Outcome
from qstate_conformance.reports import html, json, junit, text

__all__ = ["MATRIX", "write_reports"]

MATRIX = "matrix.html"


def write_reports(outcomes: Iterable[Outcome], directory: Path) -> list[Path]:
    """Write the reports of these runs; the directory is made. Gives the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for outcome in outcomes:
        name = f"{outcome.run.area}-{_file_name(outcome.run.subject)}"
        for suffix, content in (
            (".txt", text.render(outcome) + "\n"),
            (".json", json.render([outcome])),
            (".xml", junit.render([outcome])),
        ):
            written.append(directory / f"{name}{suffix}")
            written[-1].write_text(content, encoding="utf-8", errors="backslashreplace")
    written.append(directory / MATRIX)
    written[-1].write_text(html.render(list(_all_in(directory))), encoding="utf-8", errors="backslashreplace")
    return written


def _all_in(directory: Path) -> Iterable[Outcome]:
    """The outcomes of all JSON reports; other files are ignored."""
    for path in sorted(directory.glob("*.json")):
        try:
            yield from json.read(path.read_text(encoding="utf-8"))
        except (json.NotAReport, OSError):
            continue


def _file_name(subject: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", subject).strip("-.")[:100] or "subject"
