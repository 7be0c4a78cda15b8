"""The command line: exit codes, and errors in one line on standard error."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import qstate
from qstate import installation
from qstate.cli import main as cli

ROOT = Path(qstate.__file__).parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m qstate` in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "qstate", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def assert_one_line_error(answer: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert answer.returncode == cli.ERROR, answer.stderr
    assert "Traceback" not in answer.stderr
    (line,) = answer.stderr.strip().splitlines()
    assert line.startswith("qstate: ")
    for part in parts:
        assert part in line


def test_version_is_printed() -> None:
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, f"qstate {qstate.__version__}\n")


def test_check_of_installed_features_succeeds() -> None:
    answer = run("check", "core")
    assert answer.returncode == cli.SUCCESS
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * (1 + len(installation.FEATURES["core"]))


def test_check_succeeds_without_the_features_that_were_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"no-such-package-here": ("1", None)}
    monkeypatch.setitem(installation.FEATURES, "demo", needs)  # type: ignore[arg-type]
    output = io.StringIO()
    with redirect_stdout(output):
        assert cli.main(["check"]) == cli.SUCCESS
    (line,) = [line for line in output.getvalue().splitlines() if "no-such-package-here" in line]
    assert line.split()[0] == "absent"
    assert line.endswith('-> pip install "spark-qstate[demo]"')
    with redirect_stdout(output):
        assert cli.main(["check", "demo"]) == cli.NO


def test_check_without_java_says_what_to_do_and_fails(tmp_path: Path) -> None:
    answer = run("check", JAVA_HOME=str(tmp_path))
    assert answer.returncode == cli.NO
    (line,) = [line for line in answer.stdout.splitlines() if " Java " in line]
    assert line.startswith("MISSING")
    assert "-> install a JDK of version 17 or newer" in line


def test_check_of_unknown_feature_lists_the_valid_ones() -> None:
    assert_one_line_error(run("check", "rocks"), "'rocks'", "rocksdb, spark")


def test_demo_without_java_is_one_line(tmp_path: Path) -> None:
    assert_one_line_error(run("demo", JAVA_HOME=str(tmp_path)), "Java", "install a JDK of version 17")


@pytest.mark.parametrize("option", ["--parallelism=0", "--speed=-1", "--speed=inf", "--parallelism=two"])
def test_demo_refuses_invalid_options(option: str) -> None:
    answer = run("demo", option)
    assert answer.returncode == cli.ERROR
    assert "Traceback" not in answer.stderr
    assert option.split("=")[0] in answer.stderr


def test_unknown_command_is_refused() -> None:
    answer = run("frobnicate")
    assert answer.returncode == cli.ERROR
    assert "frobnicate" in answer.stderr
