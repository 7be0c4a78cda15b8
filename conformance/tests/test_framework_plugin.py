"""The plugin in a third party's pytest run, whose configuration the suite cannot choose."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.framework_backends import BROKEN_LAW, KEPT_LAW
from tests.suite_command import python

CONFIGURATION = """
[pytest]
addopts = --import-mode=importlib --strict-markers --strict-config -p no:cacheprovider
filterwarnings = error
python_files = *.py
python_functions = check_*
"""
OWN_TESTS = """
from hypothesis import core, given, settings, strategies

def check_that_the_suite_leaves_other_tests_alone():
    assert not settings.get_current_profile_name().startswith("qstate")
    assert core.global_force_seed is None

@given(strategies.integers())
def check_of_their_own(number):
    assert number == number
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    (tmp_path / "checks.py").write_text(OWN_TESTS)
    return tmp_path


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = ("-m", "pytest", "-p", "qstate_conformance.plugin", "--conformance-profile", "dev")
    return python(*plugin, *arguments, directory=project)


def of_backend(name: str, *laws: str) -> list[str]:
    selection = [word for law in laws for word in ("--conformance-select", law)]
    return ["--conformance-backend", name, *selection, "--pyargs", "qstate_conformance.backend"]


def test_laws_run_beside_other_tests(project: Path) -> None:
    ran = run_pytest(project, *of_backend("heap", KEPT_LAW), "checks.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
    assert "heap keeps the laws that ran" in ran.stdout


def test_broken_law_fails_and_shows_how_to_run_it_alone(project: Path) -> None:
    ran = run_pytest(project, *of_backend("tests.framework_backends:Forgetful", KEPT_LAW, BROKEN_LAW))
    assert ran.returncode == 1
    assert "1 failed, 1 passed" in ran.stdout
    assert f"qstate-conformance backend tests.framework_backends:Forgetful --select {BROKEN_LAW} " in ran.stdout
    assert "value='" in ran.stdout
    assert " where " in ran.stdout


def test_waivers_work_as_they_do_for_the_command(project: Path) -> None:
    (project / "waivers.toml").write_text(
        f'[[waiver]]\nlaw = "{BROKEN_LAW}"\nreason = "not yet"\nlink = "https://example.org/1"\n'
    )
    waivers = ("--conformance-waivers", "waivers.toml")
    broken = run_pytest(project, *waivers, *of_backend("tests.framework_backends:Forgetful", BROKEN_LAW))
    assert broken.returncode == 0, broken.stdout
    assert "1 xfailed" in broken.stdout
    kept = run_pytest(project, *waivers, *of_backend("heap", BROKEN_LAW))
    assert kept.returncode == 1
    assert "is not needed: the law passes" in kept.stdout


def test_laws_that_pytest_deselects_are_not_reported_missing(project: Path) -> None:
    """A capability is judged where all laws run."""
    ran = run_pytest(project, *of_backend("heap"), "-k", KEPT_LAW.rpartition(".")[2])
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_laws_without_a_subject_are_refused(project: Path) -> None:
    ran = run_pytest(project, "--pyargs", "qstate_conformance.backend")
    assert ran.returncode != 0
    assert "the laws of the backend area need a subject: say --conformance-backend" in ran.stdout + ran.stderr


def test_a_subject_that_cannot_be_opened_is_a_usage_error(project: Path) -> None:
    ran = run_pytest(project, *of_backend("tests.framework_backends:Unopenable"))
    assert ran.returncode == 4
    assert "no room on the disk" in ran.stderr


def test_reports_are_written_to_the_given_paths(project: Path) -> None:
    ran = run_pytest(project, *of_backend("heap", KEPT_LAW), "--conformance-report", "reports")
    assert ran.returncode == 0, ran.stdout
    assert {path.name for path in (project / "reports").iterdir()} >= {"backend-heap.json", "matrix.html"}


def test_without_laws_the_plugin_does_nothing(project: Path) -> None:
    ran = run_pytest(project, "checks.py")
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    assert "conformance of" not in ran.stdout
