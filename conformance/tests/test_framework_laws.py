"""What a law is, how laws are found and listed."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Capability
from qstate_conformance.laws import AREAS, find_laws, law, law_of, laws_of
from tests.suite_command import python, suite

LISTS = "from qstate_conformance.cli import main; raise SystemExit(main(['list']))"
FORBIDS = "import pytest, _pytest.runner; pytest.main = _pytest.runner.call_and_report = None; "


def _in_laws_module(function: object) -> ModuleType:
    module = ModuleType("qstate_conformance.backend.laws_made_up")
    function.__module__ = module.__name__
    vars(module)[function.__name__] = function  # type: ignore[attr-defined]
    return module


def test_a_law_is_known_by_its_area_module_and_name() -> None:
    @law("T1", "T2", needs=[Capability.SNAPSHOT_READS], proves=[Capability.COMMITTED_READS])
    @given(value=st.integers())
    def test_it_holds(value: int) -> None:
        """It holds.

        And this is why.
        """

    (found,) = laws_of(_in_laws_module(test_it_holds))
    assert (found.id, found.area, found.group) == ("backend.made_up.it_holds", "backend", "made_up")
    assert found.text == "It holds."
    assert found.requirements == ("T1", "T2")
    assert found.proves == {Capability.COMMITTED_READS}
    assert found.needs == {Capability.SNAPSHOT_READS, Capability.COMMITTED_READS}
    assert law_of(test_it_holds) == found


def test_law_without_a_docstring_or_rule_is_refused() -> None:
    def test_bare() -> None:
        """A sentence."""

    @law()
    def test_of_nothing() -> None:
        """A sentence."""

    @law("T1")
    def test_without_words() -> None:
        pass

    for function in (test_bare, test_of_nothing, test_without_words):
        with pytest.raises(TypeError, match=f"{function.__name__} is no law: it needs @law"):
            laws_of(_in_laws_module(function))


def test_what_a_laws_module_imports_is_not_its_law() -> None:
    module = _in_laws_module(lambda: None)
    vars(module)["test_of_another"] = pytest.raises
    assert [found for found in vars(module) if found.startswith("test_")] == ["test_of_another"]
    assert laws_of(module) == []


def test_list_prints_every_law_once_with_its_rules_and_its_sentence() -> None:
    listed = suite("list")
    assert listed.returncode == 0, listed.stderr
    laws = [found for area in AREAS for found in find_laws(area)]
    assert listed.stdout.splitlines() == [f"{f.id} [{', '.join(f.requirements)}] {f.text}" for f in laws]


def test_list_of_an_area_prints_that_area() -> None:
    listed = suite("list", "server")
    assert {line.split(".")[0] for line in listed.stdout.splitlines()} == {"server"}


def test_list_runs_nothing() -> None:
    """Neither pytest nor its runner is there to be called."""
    listed = python("-c", FORBIDS + LISTS)
    assert listed.returncode == 0, listed.stderr
    assert listed.stderr == ""


def test_the_command_itself_does_not_import_laws() -> None:
    """They are imported by pytest, which rewrites their assertions."""
    code = "import sys, qstate_conformance.cli; print([n for n in sys.modules if '.laws_' in n])"
    assert python("-c", code).stdout == "[]\n"
