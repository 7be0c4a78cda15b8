"""The reports: what they say, and that other programs can read them."""

from __future__ import annotations

import json as plain_json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qstate_conformance.outcomes import Outcome, Verdict
from qstate_conformance.reports import html, json, junit, text
from qstate_conformance.reports.directory import write_reports
from tests.framework_backends import BROKEN_LAW, KEPT_LAW
from tests.made_up import made_up_outcome
from tests.suite_command import suite

ALL = {
    "tables.kept": Verdict.PASSED,
    "tables.broken": Verdict.FAILED,
    "reads.waived": Verdict.WAIVED,
    "reads.skipped": Verdict.SKIPPED,
    "reads.left_out": Verdict.NOT_RUN,
}
HOSTILE = '<script>alert(1)</script> & "quotes" \x00\x1b \ud800 ]]>'


def outcomes() -> list[Outcome]:
    return [
        made_up_outcome("heap", dict.fromkeys(ALL, Verdict.PASSED)),
        made_up_outcome("my_pkg:thing with a problem", ALL, message=HOSTILE),
        made_up_outcome("localhost:9069", {"frames.short": Verdict.PASSED}, area="server"),
    ]


class Cells(HTMLParser):
    """The text of every table cell, the tags that were opened, and whether they were closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.unclosed: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.unclosed.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.unclosed):
            self.rows[-1][-1] += data


def test_json_reads_back_what_it_wrote() -> None:
    assert json.read(json.render(outcomes())) == outcomes()


def test_json_is_plain_data() -> None:
    report = plain_json.loads(json.render(outcomes()))
    assert report["format"] == json.FORMAT
    assert [entry["conforms"] for entry in report["outcomes"]] == [True, False, True]
    assert [law["verdict"] for law in report["outcomes"][1]["laws"]] == [verdict.value for verdict in ALL.values()]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 1}', '{"format": 99, "outcomes": []}', '{"format": 1, "outcomes": [{}]}']
)
def test_json_of_something_else_is_refused(content: str) -> None:
    with pytest.raises(json.NotAReport):
        json.read(content)


def test_junit_counts_laws_and_problems() -> None:
    root = ElementTree.fromstring(junit.render(outcomes()))
    suites = root.findall("testsuite")
    assert [element.get("name") for element in suites] == [
        "qstate-conformance backend heap",
        "qstate-conformance backend my_pkg:thing with a problem",
        "qstate-conformance server localhost:9069",
    ]
    counted = [tuple(int(element.get(name, "-1")) for name in ("tests", "failures", "skipped")) for element in suites]
    assert counted == [(5, 0, 0), (6, 2, 3), (1, 0, 0)]
    for element, (tests, failures, skipped) in zip(suites, counted, strict=True):
        assert len(element.findall("testcase")) == tests
        assert len(element.findall("testcase/failure")) == failures
        assert len(element.findall("testcase/skipped")) == skipped


def test_junit_carries_any_failure_message() -> None:
    failure = ElementTree.fromstring(junit.render(outcomes())).find("*/testcase[@name='broken']/failure")
    assert failure is not None
    assert failure.text is not None
    assert '<script>alert(1)</script> & "quotes"' in failure.text


def test_html_has_a_column_for_each_subject_and_a_row_for_each_law() -> None:
    page = Cells(html.render(outcomes()))
    assert page.unclosed == []
    assert ["law", "checks", "heap", "my_pkg:thing with a problem"] in page.rows
    cells = {row[0].split("About")[0]: row[2:] for row in page.rows if "About" in row[0]}
    assert cells["backend.tables.kept"] == ["✓ passed", "✓ passed"]
    assert cells["backend.tables.broken"] == ["✓ passed", "✗ failed"]
    assert cells["backend.reads.waived"] == ["✓ passed", "w waived"]
    assert cells["server.frames.short"] == ["✓ passed"]


def test_html_runs_no_script_and_loads_nothing() -> None:
    hostile = made_up_outcome(HOSTILE, ALL, message=HOSTILE)
    page = Cells(html.render([hostile]))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "onclick", "onload"} & names
    assert all(
        value.startswith(("#", "https://example.org")) for name, value in page.attributes if name == "href" and value
    )


def test_html_links_a_failure_to_its_program() -> None:
    page = Cells(html.render(outcomes()))
    targets = {value for name, value in page.attributes if name == "id"}
    links = {value[1:] for name, value in page.attributes if name == "href" and value and value.startswith("#")}
    assert links
    assert links <= targets


def test_text_report_ends_with_the_failures_and_the_verdict() -> None:
    good, bad, _ = (text.render(outcome).splitlines() for outcome in outcomes())
    assert good[-1] == "heap conforms"
    assert bad[-1] == "my_pkg:thing with a problem does NOT conform"
    assert bad[-3] == "5 laws: 1 passed, 1 failed, 1 waived, 1 skipped, 1 not run"
    assert "PROBLEM a problem" in bad
    assert "FAILED backend.tables.broken [T1, R2]" in bad


def test_text_report_cuts_a_long_program() -> None:
    long = made_up_outcome("heap", {"tables.broken": Verdict.FAILED}, message="\n".join(map(str, range(1000))))
    assert len(text.render(long).splitlines()) < 60


def test_a_directory_collects_subjects_into_one_matrix(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"not": "ours"}')
    for outcome in outcomes():
        write_reports([outcome], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "package.json",
        "matrix.html",
        *(f"backend-heap.{suffix}" for suffix in ("txt", "json", "xml")),
        *(f"backend-my_pkg-thing-with-a-problem.{suffix}" for suffix in ("txt", "json", "xml")),
        *(f"server-localhost-9069.{suffix}" for suffix in ("txt", "json", "xml")),
    }
    matrix = (tmp_path / "matrix.html").read_text(encoding="utf-8")
    assert ["law", "checks", "heap", "my_pkg:thing with a problem"] in Cells(matrix).rows


def test_a_subject_is_called_by_the_name_that_it_is_given(tmp_path: Path) -> None:
    options = ("--select", BROKEN_LAW, "--profile", "dev", "--name", "Version 2", "--report", str(tmp_path))
    ran = suite("backend", "tests.framework_backends:Forgetful", *options)
    assert ran.stdout.startswith("Conformance of the backend Version 2\n")
    assert f"qstate-conformance backend tests.framework_backends:Forgetful --select {BROKEN_LAW}" in ran.stdout
    assert (tmp_path / "backend-Version-2.json").exists()


def test_the_command_writes_reports_and_combines_them(tmp_path: Path) -> None:
    options = ("--profile", "dev", "--select", KEPT_LAW, "--select", BROKEN_LAW, "--report", str(tmp_path))
    assert suite("backend", "heap", *options).returncode == 0
    assert suite("backend", "tests.framework_backends:Forgetful", *options).returncode == 1
    inputs = sorted(map(str, tmp_path.glob("*.json")))
    page, tests, merged = tmp_path / "page.html", tmp_path / "all.xml", tmp_path / "all.json.txt"
    combined = suite("report", *inputs, "--html", str(page), "--junit", str(tests), "--json", str(merged))
    assert combined.returncode == 0, combined.stderr
    rows = Cells(page.read_text(encoding="utf-8")).rows
    assert ["law", "checks", "heap", "tests.framework_backends:Forgetful"] in rows
    assert len(ElementTree.fromstring(tests.read_text(encoding="utf-8"))) == 2
    assert len(json.read(merged.read_text(encoding="utf-8"))) == 2
    assert "heap keeps the laws that ran" in suite("report", *inputs).stdout
