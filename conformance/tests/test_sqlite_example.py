"""The example package is what the guide shows, and loads by its class; prove_all.py proves it by its entry point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qstate.backends.contract import Capability
from qstate.descriptors import ValueStateDescriptor
from qstate_conformance.subjects import backend_subject

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sqlite_backend"
GUIDE = ROOT / "docs" / "how-to" / "write-a-backend.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def lines_of_code(text: str) -> list[str]:
    """Without blank lines, because the guide cuts the module into parts, and without the module's docstring."""
    return [line for line in text.splitlines() if line and not line.startswith('"""')]


def test_the_guide_shows_the_example() -> None:
    of_example, _, _ = GUIDE.read_text(encoding="utf-8").partition("## Without a byte store")
    shown = "\n".join(_BLOCK.findall(of_example))
    assert lines_of_code(shown) == lines_of_code((EXAMPLE / "qstate_sqlite.py").read_text(encoding="utf-8"))


def test_the_entry_point_of_the_guide_is_the_packages() -> None:
    line = 'sqlite = "qstate_sqlite:SQLiteBackend"'
    assert line in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    assert line in GUIDE.read_text(encoding="utf-8")


def test_the_log_of_sqlite_does_not_grow_with_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    descriptor, sizes = ValueStateDescriptor("value"), []
    with backend_subject("qstate_sqlite:SQLiteBackend").open(tmp_path / "own") as backend:
        for epoch in range(40):
            backend.begin(epoch)
            for key in range(50):
                backend.table(descriptor).put(key, bytes(1024))
            for _ in backend.commit(epoch):
                pass
            backend.finalize(epoch)
            sizes.append(sum(path.stat().st_size for path in (tmp_path / "own").iterdir()))
    assert max(sizes[20:]) <= 1.5 * max(sizes[:5])


def test_the_example_claims_every_capability_which_prove_all_then_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    assert backend_subject("qstate_sqlite:SQLiteBackend").capabilities == set(Capability)
