"""The page of compatibility says what the code and the metadata of the packages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import qstate
from qstate.checkpoint import manifest
from qstate.checkpoint.log.file_facts import FORMAT, PARTIAL_FORMAT
from qstate.protocol.limits import PROTOCOL_VERSIONS

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
RELEASE = ".".join(qstate.__version__.split(".")[:2])
PROJECTS = [ROOT / folder / "pyproject.toml" for folder in (".", "conformance")]


def rows(section: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by their first cell."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells[2:]}


def project(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return found


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_the_interpreters_are_those_of_the_metadata(path: Path) -> None:
    first, _, last = rows("What it runs on")[RELEASE][0].partition(" to ")
    told = [line.rpartition(" ")[2] for line in project(path)["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert (first, last) == (told[0], told[-1])
    assert project(path)["requires-python"] == f">={first}"


def test_the_versions_of_spark_and_java_are_those_that_are_checked() -> None:
    _, spark, java, systems = rows("What it runs on")[RELEASE]
    (needed,) = [line for line in project(PROJECTS[0])["optional-dependencies"]["spark"] if line.startswith("pyspark")]
    least, most = re.findall(r"[\d.]+", needed)
    assert spark == f"{least} to {int(most) - 1}.x"
    assert java == "17 or newer"
    assert {f"{name}" for name in ("Linux", "macOS")} == set(systems.split(", "))


def test_the_protocol_and_the_formats_are_those_of_the_code() -> None:
    protocol, read, _ = rows("What it reads and speaks")[RELEASE]
    assert protocol == ", ".join(map(str, PROTOCOL_VERSIONS))
    assert read == ", ".join(str(number) for number in sorted({manifest.FORMAT, FORMAT, PARTIAL_FORMAT}))
