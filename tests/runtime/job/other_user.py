"""Another user of the host, and a temporary directory that all users can write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["OTHER_UID", "OtherUser", "other_user", "shared_temporary"]

#: The user "nobody", by convention. As root, the tests act as this user.
OTHER_UID = 65534

#: Runs a shell script in the shared temporary directory, as another user.
OtherUser = Callable[[str], None]


@pytest.fixture
def shared_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory of this test: like /tmp, writable for all, with the sticky bit."""
    directory = Path(tempfile.mkdtemp(prefix="qstate-shared-"))
    directory.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def other_user(shared_temporary: Path, monkeypatch: pytest.MonkeyPatch) -> OtherUser:
    """Acts as another user. Without root's rights, the test acts itself, and then pretends to be a different user."""

    def act(script: str) -> None:
        own = os.geteuid()
        user: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []} if own == 0 else {}
        subprocess.run(["sh", "-ec", script], cwd=shared_temporary, timeout=30, check=True, **user)
        if not user:
            monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    return act
