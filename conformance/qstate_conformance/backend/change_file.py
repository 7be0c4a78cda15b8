"""The changes of sealed epochs in one file, as a crashed process leaves them: whole epochs, and perhaps half of one.

Rules of this module: it replaces an epoch log and knows no backend. An epoch counts when its last line was written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from qstate.backends import Change, ChangeOp

__all__ = ["ChangeFile", "read_epochs"]


class ChangeFile:
    """Open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii")

    def __enter__(self) -> ChangeFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def seal(self, epoch: int, changes: Iterable[Change]) -> None:
        """Write the epoch's changes, and then that they are all there."""
        for op, state, group, namespace, key, map_key, data in changes:
            line = [op.value, state, group, namespace.hex(), key.hex(), map_key.hex(), data.hex()]
            self._file.write(json.dumps(line) + "\n")
        self._file.write(json.dumps(epoch) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_epochs(path: Path) -> Iterator[tuple[int, list[Change]]]:
    """The epochs that are complete, in order."""
    changes: list[Change] = []
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:  # the process was killed while it wrote this line
            return
        if isinstance(found, int):
            yield found, changes
            changes = []
        else:
            op, state, group, *rest = found
            changes.append(Change(ChangeOp(op), state, group, *map(bytes.fromhex, rest)))
