"""Each public name has a level on the page of compatibility, and no release loses one silently."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.project.documentation import ROOT
from tests.releases.golden_files import NAMES, releases
from tests.releases.public_names import levels, public_modules, public_names

LEVELS = {"frozen", "stable", "stable from 1.0", "provisional", "none", "internal"}
#: Names of earlier releases that are gone, each with the release that announced it with a DeprecationWarning.
REMOVED: dict[str, str] = {}
#: Public functions return these; people do not import them.
RETURNED = ("qstate.runtime.control.job_statistics.", "qstate.operators.handles.StateHandle")


def test_every_interface_has_a_level() -> None:
    assert set(levels().values()) == LEVELS
    assert len(public_modules()) > 10


def test_every_module_of_the_reference_has_a_level() -> None:
    modules = public_modules()
    exported = {id(getattr(import_module(name), export)) for name in modules for export in import_module(name).__all__}
    without = []
    for page in (ROOT / "docs/reference/python").glob("*.md"):
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            module, _, thing = name.rpartition(".")
            known = name in modules or id(getattr(import_module(module), thing)) in exported
            if not known and not name.startswith(RETURNED):
                without.append(name)
    assert without == []


def test_commands_and_requests_are_among_the_names() -> None:
    names = set(public_names())
    assert {
        "REST GET /v1/jobs/{job}/states/{state}/value key",
        "command qstate get --proxy",
        "data source state",
        "failure 6 KEY_NOT_FOUND",
        "python qstate.client.QueryableStateClient.get",
        "setting parallelism",
    } <= names


@pytest.mark.parametrize("release", releases(), ids=lambda path: path.name)
def test_the_names_of_a_release_are_still_there(release: Path) -> None:
    lost = set((release / NAMES).read_text().splitlines()) - set(public_names()) - REMOVED.keys()
    assert not lost, "what is removed works for one more second number, and is then listed in REMOVED"
