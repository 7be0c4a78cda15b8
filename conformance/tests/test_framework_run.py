"""A run of the suite: what it runs, how it is isolated, how it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from qstate_conformance.outcomes import INTERRUPTED, USAGE, Outcome, Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.recording import Listener
from qstate_conformance.run import SelectionError, run
from qstate_conformance.subjects import backend_subject
from tests.framework_backends import BROKEN_LAW, KEPT_LAW
from tests.suite_command import ROOT, suite


def run_backend(name: str, *selection: str, profile: str = "dev", seed: int = 0) -> Outcome:
    return run(Plan(backend_subject(name), selection, profile, seed))


def test_a_law_that_holds_passes() -> None:
    outcome = run_backend("heap", KEPT_LAW)
    assert [(law.law, law.verdict) for law in outcome.laws] == [(KEPT_LAW, Verdict.PASSED)]
    assert outcome.exit_code == 0


def test_a_broken_law_fails_with_the_short_program_that_breaks_it() -> None:
    (law,) = run_backend("tests.framework_backends:Forgetful", BROKEN_LAW).laws
    assert law.verdict is Verdict.FAILED
    assert "value='" in law.message
    assert "AssertionError" in law.message
    assert "reproduce_failure" not in law.message


def test_assertions_of_laws_say_what_they_compared() -> None:
    """They do only when pytest has rewritten the laws' modules."""
    ran = suite("backend", "tests.framework_backends:Forgetful", "--select", BROKEN_LAW, "--profile", "dev")
    assert ran.returncode == 1
    assert "expected: " in ran.stdout


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ((KEPT_LAW,), {KEPT_LAW}),
        ((KEPT_LAW, BROKEN_LAW), {KEPT_LAW, BROKEN_LAW}),
        (("backend.tables.a_key_*",), {KEPT_LAW}),
    ],
)
def test_selection_is_by_id_and_by_glob(selection: tuple[str, ...], expected: set[str]) -> None:
    assert {law.law for law in run_backend("heap", *selection).laws} == expected


def test_selection_is_by_rule() -> None:
    laws = run_backend("heap", "B7").laws
    assert laws
    assert all("B7" in law.requirements for law in laws)


def test_selection_without_a_law_runs_nothing() -> None:
    with pytest.raises(SelectionError, match=f"no backend law is meant by '{KEPT_LAW}s'; did you mean {KEPT_LAW}"):
        run_backend("heap", KEPT_LAW + "s", BROKEN_LAW)


def test_progress_is_reported_law_by_law() -> None:
    heard: list[str] = []

    class Ear(Listener):
        def begins(self, law: object, total: int) -> None:
            heard.append(f"begins, of {total}")

        def ended(self, outcome: object, done: int, total: int) -> None:
            heard.append(f"{done} of {total}")

    run(Plan(backend_subject("heap"), (KEPT_LAW, BROKEN_LAW), "dev"), Ear())
    assert heard == ["begins, of 2", "1 of 2", "begins, of 2", "2 of 2"]


def test_a_run_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    before = settings.get_current_profile_name()
    assert run_backend("heap", KEPT_LAW).exit_code == 0
    assert settings.get_current_profile_name() == before
    assert os.environ["PYTEST_ADDOPTS"] == "--no-such-option"
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in os.environ


def test_a_run_takes_nothing_from_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\npython_functions = nothing\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a conftest of somebody else')\n")
    monkeypatch.chdir(tmp_path)
    assert run_backend("heap", KEPT_LAW).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"pytest.ini", "conftest.py", "__pycache__"}


def test_every_profile_runs() -> None:
    ran = [run_backend("heap", KEPT_LAW, profile=profile).run.profile for profile in ("dev", "ci")]
    assert ran == ["dev", "ci"]


def test_a_factory_is_a_subject() -> None:
    outcome = run_backend("tests.framework_backends:make_backend", KEPT_LAW)
    assert outcome.exit_code == 0
    assert outcome.run.versions["backend class"] == "qstate.backends.heap.backend.HeapBackend"


def answers(fields: str) -> str:
    """A client's driver that answers `hello` with these fields."""
    answer = f'{{"id": 1, {fields}}}'
    return f"input(); print({answer!r}, flush=True); input()"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("backend", "no_such_name"), "heap, rocksdb"),
        (("backend", "no_such_module:thing"), "cannot import 'no_such_module'"),
        (("backend", "tests.framework_that_exits:thing"), "cannot import 'tests.framework_that_exits'"),
        (("backend", "tests.framework_backends:nothing"), "has no 'nothing'"),
        (("backend", "tests.framework_backends:NOT_A_BACKEND"), "neither a StateBackend class nor a factory"),
        (("backend", "tests.framework_backends:make_nothing"), "gave None, which is not a StateBackend"),
        (("backend", "tests.framework_backends:Unopenable"), "cannot be opened: RuntimeError: no room on the disk"),
        (("backend", "heap", "--option", "colour=red"), "has no option 'colour'"),
        (("backend", "heap", "--option", "colour"), "an option is NAME=VALUE"),
        (("backend", "heap", "--select", "no.such.law"), "no backend law is meant by 'no.such.law'"),
        (("backend", "heap", "--waivers", "no-such-file.toml"), "cannot read the waivers"),
        (("server", "localhost"), "a server is HOST:PORT"),
        (("server", "localhost:1"), "no server answers at localhost:1"),
        (("server", "localhost:1", "--token-file", "no-such-file"), "cannot read the token"),
        (("client", "--", "no-such-program"), "there is no program 'no-such-program'"),
        (("client", "--", sys.executable, "-c", "raise SystemExit(3)"), "has exited with code 3"),
        (("client", "--", sys.executable, "-m", "no_such_driver"), "No module named no_such_driver"),
        (("client", "--", sys.executable, "-c", "print('hello')"), "wrote a line that is no JSON"),
        (
            ("client", "--", sys.executable, "-c", answers('"error": {"code": "NOT_READY"}')),
            "answered hello with the er",
        ),
        (("client", "--", sys.executable, "-c", answers('"error": {"code": "INVALID"}')), "answered hello with the er"),
        (("client", "--", sys.executable, "-c", answers('"ok": {"features": [["async"]]}')), "protocol is None"),
        (("client", "--", "./pyproject.toml"), "./pyproject.toml cannot be executed"),
        (("client", "--", "./tests"), "./tests is a directory"),
        (("report", "no-such-file.json"), "no-such-file.json"),
        (("report", "pyproject.toml"), "not a JSON report"),
    ],
)
def test_run_that_cannot_start_ends_with_one_line(arguments: tuple[str, ...], says: str) -> None:
    ran = suite(*arguments)
    assert ran.returncode == USAGE
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_a_registered_backend_that_cannot_be_imported_is_no_verdict(tmp_path: Path) -> None:
    """Whatever its module does when it is imported."""
    (tmp_path / "broken_backend.py").write_text("raise ValueError('this needs a licence')\n")
    info = tmp_path / "broken_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qstate.backends]\nbroken = broken_backend:Backend\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    ran = suite("backend", "broken", PYTHONPATH=paths)
    assert ran.returncode == USAGE
    assert "this needs a licence" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_interrupted_run_reports_what_it_has_and_gives_no_verdict() -> None:
    ran = suite("backend", "tests.framework_backends:Interrupting", "--profile", "dev")
    assert ran.returncode == INTERRUPTED
    assert "interrupted, no verdict" in ran.stdout
    assert "not run" in ran.stdout
    assert "Traceback" not in ran.stderr
