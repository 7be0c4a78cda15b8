"""A run that left laws out is a partial run, in every report: it never says that a subject conforms."""

from __future__ import annotations

import json as plain_json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Outcome, Verdict
from qstate_conformance.reports import html, json, junit, text
from tests.framework_backends import BROKEN_LAW, KEPT_LAW
from tests.made_up import fails, made_up_law, made_up_outcome, made_up_recording, passes
from tests.suite_command import python, suite

ONE, TWO = made_up_law("one"), made_up_law("two")
SOAK = made_up_law("soak", soak=True)


def partial_outcome() -> Outcome:
    recording = made_up_recording([ONE, TWO], selection=(ONE.id,))
    passes(recording, ONE)
    return recording.outcome()


def test_a_selection_is_a_partial_run_that_does_not_fail() -> None:
    outcome = partial_outcome()
    assert outcome.partial == "1 of 2 laws, as selected"
    assert not outcome.conforms
    assert outcome.exit_code == 0


def test_a_selection_of_everything_is_a_whole_run() -> None:
    recording = made_up_recording([ONE, TWO], selection=("backend.made_up.*",))
    passes(recording, ONE, TWO)
    outcome = recording.outcome()
    assert outcome.partial == ""
    assert outcome.conforms


def test_a_run_that_was_stopped_is_partial_and_blames_no_law_that_did_not_run() -> None:
    recording = made_up_recording([ONE, TWO])
    fails(recording, ONE)
    recording.stopped = True
    outcome = recording.outcome()
    assert outcome.partial == "1 of 2 laws, stopped after 1 that failed"
    assert outcome.problems == ()
    assert outcome.exit_code == 1


def test_an_interrupted_run_is_partial() -> None:
    recording = made_up_recording([ONE, TWO])
    passes(recording, ONE)
    recording.interrupted = True
    assert recording.outcome().partial == "1 of 2 laws, then interrupted"


def test_a_law_that_does_not_apply_leaves_a_run_whole() -> None:
    recording = made_up_recording([ONE, SOAK])
    passes(recording, ONE)
    recording.begins(SOAK)
    recording.skipped(SOAK, 0.0, "takes long")
    recording.ends(SOAK)
    assert recording.outcome().conforms


def test_text_report_marks_a_partial_run_at_the_verdict() -> None:
    assert text.render(partial_outcome()).splitlines()[-2:] == [
        "PARTIAL RUN: 1 of 2 laws, as selected",
        "made_up keeps the laws that ran",
    ]


def test_json_report_keeps_that_a_run_is_partial() -> None:
    outcome = partial_outcome()
    (written,) = plain_json.loads(json.render([outcome]))["outcomes"]
    assert (written["partial"], written["conforms"]) == ("1 of 2 laws, as selected", False)
    assert json.read(json.render([outcome])) == [outcome]


def test_junit_report_marks_a_partial_run() -> None:
    root = ElementTree.fromstring(junit.render([partial_outcome()]))
    found = root.find("testsuite")
    assert found is not None
    assert found.get("name") == "qstate-conformance backend made_up (partial: 1 of 2 laws, as selected)"
    properties = {entry.get("name"): entry.get("value") for entry in found.iter("property")}
    assert properties["partial"] == "1 of 2 laws, as selected"


def test_html_report_marks_a_partial_run() -> None:
    page = html.render([partial_outcome(), made_up_outcome("whole", {"tables.kept": Verdict.PASSED})])
    assert "partial run: 1 of 2 laws, as selected" in page
    assert page.count(" conforms</td>") == 1


def test_maxfail_stops_after_so_many_laws() -> None:
    ran = suite("backend", "tests.framework_backends:Forgetful", "--profile", "dev", "--maxfail", "2")
    assert ran.returncode == 1
    assert ran.stdout.count("\nFAILED ") == 2
    assert "PARTIAL RUN: " in ran.stdout
    assert "stopped after 2 that failed" in ran.stdout
    assert "PROBLEM" not in ran.stdout
    assert ran.stdout.splitlines()[-1] == "tests.framework_backends:Forgetful does NOT conform"


def test_maxfail_counts_laws_and_not_their_cases() -> None:
    """The first law is broken in most of its cases."""
    laws = ("backend.life_cycle.close_twice_is_close_once", BROKEN_LAW)
    selected = [word for law in laws for word in ("--select", law)]
    ran = suite("backend", "tests.framework_backends:Raising", "--profile", "dev", "--maxfail", "2", *selected)
    assert ran.stdout.count("\nFAILED ") == 2


@pytest.mark.parametrize("number", ["0", "-1", "some"])
def test_maxfail_is_a_positive_number(number: str) -> None:
    ran = suite("backend", "heap", "--maxfail", number)
    assert ran.returncode == 2
    assert "--maxfail" in ran.stderr


def test_a_pytest_run_that_stops_early_is_partial(tmp_path: Path) -> None:
    plugin = ("-m", "pytest", "-x", "-p", "qstate_conformance.plugin", "--conformance-profile", "dev")
    of_backend = (
        "--conformance-backend",
        "tests.framework_backends:Forgetful",
        "--pyargs",
        "qstate_conformance.backend",
    )
    ran = python(
        *plugin, "-k", f"{KEPT_LAW.split('.')[1]} and get_gives or byte_stores", *of_backend, directory=tmp_path
    )
    assert ran.returncode == 1
    assert "PARTIAL RUN: " in ran.stdout
    assert "was not run" not in ran.stdout


# --- soak laws ---------------------------------------------------------------------------------------------------


def test_soak_laws_are_skipped_in_the_quick_profiles_and_say_where_they_run() -> None:
    quick, nightly = made_up_recording([SOAK]), made_up_recording([SOAK], profile="nightly")
    assert quick.inapplicable(SOAK) == "takes long: it runs with --profile nightly"
    assert nightly.inapplicable(SOAK) is None
    assert quick.inapplicable(ONE) is None


# --- what lists say ----------------------------------------------------------------------------------------------


def test_a_list_as_json_has_what_is_known_of_each_law() -> None:
    listed = suite("list", "--json", "backend")
    assert listed.returncode == 0, listed.stderr
    entries = plain_json.loads(listed.stdout)
    laws = find_laws("backend")
    assert [entry["id"] for entry in entries] == [law.id for law in laws]
    for entry, law in zip(entries, laws, strict=True):
        assert entry == {
            "id": law.id,
            "area": "backend",
            "text": law.text,
            "requirements": list(law.requirements),
            "needs": sorted(capability.name.lower() for capability in law.needs),
            "proves": sorted(capability.name.lower() for capability in law.proves),
            "soak": law.soak,
        }
