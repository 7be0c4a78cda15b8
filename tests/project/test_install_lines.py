"""Every install line names this project: the name `qstate` on the package index is another one.

Every `pip install` in the documentation, the examples, the settings and the messages of the code is read.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from qstate.installation import DISTRIBUTION
from tests.project.documentation import ROOT

SUFFIXES = {".md", ".py", ".toml", ".ini", ".yml", ".yaml"}
_LINE = re.compile(r"pip install((?: +(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s`'\")(#;|&]+))+)")
_OPTIONS_WITH_VALUE = {"--find-links", "-d", "--wheel-dir"}
#: Packages of others that the install lines may name.
OTHERS = {"pyspark-client", "tox"}
OURS = {DISTRIBUTION, "qstate-conformance"}


def install_lines() -> list[tuple[str, str]]:
    """(file, what follows `pip install`) for each that a file under version control holds."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if path.suffix in SUFFIXES and path.is_file() and not name.startswith("tests/"):
            text = path.read_text(encoding="utf-8").replace("{DISTRIBUTION}", DISTRIBUTION)
            found += [(name, match[1].strip()) for match in _LINE.finditer(text)]
    return found


def requirements(arguments: str) -> list[str]:
    """The requirements of a `pip install`, without its options."""
    words = iter(shlex.split(arguments))
    return [word for word in words if not _is_option(word, words)]


def _is_option(word: str, following: Iterator[str]) -> bool:
    if word in _OPTIONS_WITH_VALUE:
        next(following)
    return word.startswith("-")


@pytest.mark.parametrize(("name", "arguments"), install_lines())
def test_every_install_line_installs_this_project_or_a_known_one(name: str, arguments: str) -> None:
    named = requirements(arguments)
    assert named, f"{name}: pip install {arguments}"
    for requirement in named:
        project = re.split(r"[\[<>=! ]", requirement)[0]
        local = (ROOT / requirement.partition("[")[0]).exists() and requirement.startswith((".", "examples/"))
        assert local or project in OURS | OTHERS, f"{name} tells people to install {requirement!r}"
        if project in OURS and name.endswith(".md") and not name.startswith("changelog.d/"):
            assert "--find-links" in arguments, (
                f"{name}: no release of {project} is out, so the line needs wheels: pip install {arguments}"
            )


def test_install_lines_are_found() -> None:
    assert len(install_lines()) > 10


def test_a_line_that_installs_the_other_project_is_refused() -> None:
    for arguments in ("qstate", '"qstate[spark,rocksdb]"', "-U qstate"):
        with pytest.raises(AssertionError, match="tells people to install 'qstate"):
            test_every_install_line_installs_this_project_or_a_known_one("README.md", arguments)
