"""Jobs and standbys that are always stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.standby import Standby, serve_checkpoint
from tests.runtime.conftest import job_of

__all__ = ["job_of", "standby_of"]


@pytest.fixture
def standby_of(tmp_path: Path) -> Iterator[Callable[..., Standby]]:
    """`standby_of(location, **settings)`: a standby, of `tmp_path / "checkpoint"` by default, that looks often."""
    standbys: list[Standby] = []

    def make(location: Path | None = None, **settings: Any) -> Standby:
        settings = {"proxy_ports": "0", "server_ports": "0", "interval_s": 0.02, **settings}
        standbys.append(serve_checkpoint(location or tmp_path / "checkpoint", **settings))
        return standbys[-1]

    yield make
    for standby in standbys:
        standby.close()
