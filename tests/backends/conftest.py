"""A fresh backend of every sort for each test that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstate.backends import StateBackend
from qstate.keys import KeyGroupRange
from tests.backends.factories import ALL_GROUPS, FACTORIES, open_named

OpenBackend = Callable[..., StateBackend]


@pytest.fixture(params=list(FACTORIES))
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_backend(backend_name: str, tmp_path: Path) -> Iterator[OpenBackend]:
    """Opens as many backends as the test wants; all are closed in the end."""
    opened: list[StateBackend] = []

    def open_one(key_groups: KeyGroupRange = ALL_GROUPS, name: str = backend_name) -> StateBackend:
        opened.append(open_named(name, tmp_path / str(len(opened)), key_groups))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@pytest.fixture
def backend(open_backend: OpenBackend) -> StateBackend:
    return open_backend()
