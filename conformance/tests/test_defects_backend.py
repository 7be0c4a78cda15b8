"""Every seeded defect of a backend is caught by the law that it names; sound backends pass, whatever the seed."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.subjects import backend_subject
from tests.defects.backends import (
    age,
    epochs,
    expiry,
    lives,
    mistyped,
    partial,
    readers,
    restores,
    scale,
    scanning,
    tables,
    timers,
)
from tests.suite_command import outcome_of
from tests.unshrunk import UNSHRUNK

_MODULES: tuple[ModuleType, ...] = (
    tables,
    mistyped,
    epochs,
    restores,
    readers,
    lives,
    scale,
    age,
    expiry,
    timers,
    scanning,
    partial,
)
if find_spec("rocksdict"):
    _MODULES += (import_module("tests.defects.backends.larger"),)
#: subject -> the law that catches it
DEFECTS: dict[str, str] = {
    f"{module.__name__}:{name}": found.caught_by
    for module in _MODULES
    for name, found in vars(module).items()
    if inspect.isclass(found) and found.__module__ == module.__name__ and getattr(found, "caught_by", "")
}
#: They have no examples, so the profile that runs them is no longer than another.
SOAKS = {law.id for law in find_laws("backend") if law.soak}
#: The backends that come with qstate pass `prove_all`.
SOUND = [
    "tests.defects.backends.sound:DictBackend",
    "tests.defects.backends.sound:PlainBackend",
    "tests.defects.backends.sound:StrictBackend",
    "tests.defects.backends.different:EagerBackend",
    "tests.defects.backends.different:TalkativeBackend",
    "tests.defects.backends.lives:made_by_a_factory",
]


def test_there_are_many_defects_and_each_names_a_law() -> None:
    assert len(DEFECTS) >= 40
    assert set(DEFECTS.values()) <= {law.id for law in find_laws("backend")}


@pytest.mark.parametrize("name", DEFECTS, ids=lambda name: name.rpartition(":")[2])
def test_a_defect_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFECTS_DIRECTORY", str(tmp_path))
    profile = "nightly" if DEFECTS[name] in SOAKS else UNSHRUNK
    outcome = run(Plan(backend_subject(name), selection=(DEFECTS[name],), profile=profile))
    assert outcome.exit_code == 1
    assert [law.verdict for law in outcome.laws] == [Verdict.FAILED]
    assert DEFECTS[name] in outcome.laws[0].reproduction


def test_the_heap_keeps_the_soak_laws(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "backend", "heap", "--profile", "nightly", "--select", "backend.soak.*")
    assert {law.law: law.verdict for law in outcome.laws} == dict.fromkeys(SOAKS, Verdict.PASSED)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_backend_passes(name: str, tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "backend", name, "--profile", "dev", "--seed", str(len(name)))
    assert {law.law: law.message for law in outcome.laws if law.verdict is Verdict.FAILED} == {}
    assert outcome.exit_code == 0
