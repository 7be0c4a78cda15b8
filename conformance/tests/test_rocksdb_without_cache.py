"""Every history and every life of a job holds on RocksDB when each operation flushes the cache, as large epochs do."""

from __future__ import annotations

from pathlib import Path

from qstate_conformance.outcomes import Verdict
from tests.suite_command import outcome_of

OPTIONS = ("--option", "cache_entries=1", "--option", "flush_interval_s=0.0")
GROUPS = ("histories", "machine")


def test_histories_and_lives_hold_without_the_cache(tmp_path: Path) -> None:
    selection = [word for group in GROUPS for word in ("--select", f"backend.{group}.*")]
    outcome = outcome_of(tmp_path, "backend", "rocksdb", "--profile", "dev", *OPTIONS, *selection)
    assert {law.law: law.message for law in outcome.laws if law.verdict is Verdict.FAILED} == {}
    assert outcome.exit_code == 0
