"""A seed repeats a run: the same examples, the same shrunk program, from the line that a failure prints."""

from __future__ import annotations

import re
import shlex

import pytest

from qstate_conformance.outcomes import LawOutcome
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.subjects import backend_subject
from tests.framework_backends import BROKEN_LAW
from tests.suite_command import suite

PROPERTY = BROKEN_LAW
MACHINE = "backend.machine.*"


def puts_of(selection: str, seed: int) -> list[str]:
    """What the laws put into a backend, in order."""
    subject = backend_subject("tests.framework_backends:Noting")
    noted: list[str] = vars(subject.backend)["puts"]
    noted.clear()
    outcome = run(Plan(subject, (selection,), "dev", seed))
    assert outcome.exit_code == 0, outcome.laws
    return list(noted)


@pytest.mark.parametrize("selection", [PROPERTY, MACHINE])
def test_the_seed_decides_the_examples(selection: str) -> None:
    first = puts_of(selection, 0)
    assert len(first) > 10
    assert puts_of(selection, 0) == first
    assert puts_of(selection, 1) != first


def test_a_failure_is_reproduced_by_the_line_that_it_prints() -> None:
    failure = broken()
    words = shlex.split(failure.reproduction)
    assert words[0] == "qstate-conformance"
    again = suite(*words[1:])
    assert again.returncode == 1
    assert (
        without_addresses(failure.message)[-4:]
        == without_addresses(again.stdout[: again.stdout.index("\n\n    qstate")])[-4:]
    )
    assert failure.reproduction in again.stdout


def test_a_failure_shrinks_to_the_shortest_program() -> None:
    """Every text of one character does, so none that is shown has more (in its decomposed form)."""
    shown = re.search(r"key='(.*)',\s+value='(.*)',", broken().message)
    assert shown is not None
    assert len(shown[1]) <= 2
    assert 1 <= len(shown[2]) <= 2


def broken() -> LawOutcome:
    subject = backend_subject("tests.framework_backends:Forgetful")
    (law,) = run(Plan(subject, (BROKEN_LAW,), "ci", 5)).laws
    return law


def without_addresses(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if " at 0x" not in line]
