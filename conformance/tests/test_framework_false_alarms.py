"""A sound subject passes, whatever the seed.

Every seed is a run of a whole area, so a usual run has two of them; QSTATE_CONFORMANCE_SEEDS says how many.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.suite_command import outcome_of

SEEDS = range(1, 1 + int(os.environ.get("QSTATE_CONFORMANCE_SEEDS", "2")))


@pytest.mark.parametrize("seed", SEEDS)
def test_heap_keeps_every_law_under_many_seeds(seed: int, tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "backend", "heap", "--profile", "dev", "--seed", str(seed))
    assert [(law.law, law.message) for law in outcome.laws if law.message] == []
    assert outcome.problems == ()
    assert len(outcome.laws) > 80
