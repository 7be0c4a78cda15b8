"""Every seeded defect of a client is caught by the law that it names. `prove_all` proves that sound ones pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from qstate_conformance.client.driver import end_drivers
from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.subjects import ClientSubject
from tests.defects.clients.program import MODULES
from tests.defects.clients.seeds import SEEDS
from tests.unshrunk import UNSHRUNK

#: The laws that take too long for the quick profiles.
SOAK = {law.id for law in find_laws("client") if law.soak}


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs find what this process finds, and end with the test."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    yield
    end_drivers()


def test_there_are_many_defects_and_each_names_a_law() -> None:
    assert MODULES
    assert len(SEEDS) >= 40
    assert {seed.caught_by for seed in SEEDS.values()} <= {law.id for law in find_laws("client")}


@pytest.mark.parametrize("name", SEEDS)
def test_a_defect_is_caught(name: str) -> None:
    subject = ClientSubject((sys.executable, "-m", "tests.defects.clients.program", name))
    law = SEEDS[name].caught_by
    outcome = run(Plan(subject, selection=(law,), profile="nightly" if law in SOAK else UNSHRUNK))
    assert outcome.exit_code == 1
    assert [found.verdict for found in outcome.laws] == [Verdict.FAILED]
    assert law in outcome.laws[0].reproduction
    assert "described itself" not in outcome.laws[0].message, "the program did not even start"
    assert "has exited" not in outcome.laws[0].message, "the program did not even start"
