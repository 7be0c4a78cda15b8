"""The suite does what its documentation says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate_conformance import cli
from qstate_conformance.profiles import DEFAULT_PROFILE, PROFILES
from qstate_conformance.waivers import read_waivers
from tests import law_reference
from tests.suite_command import python

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "run-the-conformance-suite.md"
PAGES = [
    GUIDE,
    *(GUIDE.with_name(f"write-a-{what}.md") for what in ("backend", "client")),
    ROOT / "conformance/README.md",
]


def commands(page: Path) -> Iterator[str]:
    """The lines of a page that call the suite, in blocks of commands and in CI files."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"(?:\$ |\s*(?:- )?run: )?(qstate-conformance .*)$", line.strip()):
            yield found[1]


def test_the_reference_has_the_laws() -> None:
    expected = law_reference.render()
    assert law_reference.PAGE.read_text(encoding="utf-8") == expected, (
        "run: PYTHONPATH=conformance python conformance/tests/law_reference.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_commands_have_arguments_that_the_suite_takes(page: Path) -> None:
    found = list(commands(page))
    assert found
    for command in found:
        words = shlex.split(re.sub(r"\$\([^)]*\)", "20300101", command).partition(" > ")[0], comments=True)
        cli._parser().parse_args(words[1:])


def test_the_guide_has_the_profiles_and_the_exit_codes() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name, examples in PROFILES.items():
        assert f"| `{name}` | {examples} |" in text
    assert re.search(rf"`{DEFAULT_PROFILE}`.*\(the default\)", text)
    assert "| 2 |" in text
    assert "| 130 |" in text


def test_waiver_of_the_guide_is_valid(tmp_path: Path) -> None:
    block = re.search(r"^```toml\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    (tmp_path / "waivers.toml").write_text(block[1])
    (waiver,) = read_waivers(tmp_path / "waivers.toml")
    assert f"`{waiver.law}`" in law_reference.render()


def test_the_guide_names_every_option_of_the_plugin() -> None:
    listed = python("-m", "pytest", "-p", "qstate_conformance.plugin", "--help")
    options = set(re.findall(r"--conformance-[a-z-]+", listed.stdout))
    assert len(options) == 10
    assert options <= set(re.findall(r"--conformance-[a-z-]+", GUIDE.read_text(encoding="utf-8")))
