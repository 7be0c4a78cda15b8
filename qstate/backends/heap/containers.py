"""What the heap's tables of lists and of maps have in common: each written key has a mark of what was written.

Rules of this module: as in `table`, which explains the layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from qstate.backends.change_blocks import ChangeBlock, blocks_of
from qstate.backends.contract import Change
from qstate.backends.heap.table import HeapState, HeapTable, sized
from qstate.keys import Key, Namespace

__all__ = ["HeapContainerTable"]


class HeapContainerTable(HeapTable):
    """List or map states. `_before` has a mark for each key that was written since S."""

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self.get = self.live.get
        self._before: dict[Key, Any] = {}
        self._committed: dict[Key, Any] = {}
        self._staged: dict[Key, Any] = {}
        self._sealed: dict[Key, Any] = {}

    def _touch(self, key: Key, mark: Any) -> None:
        if not self._before:
            self.state.touched(self)
        self._before[key] = mark

    def blocks(self) -> Iterator[ChangeBlock]:
        return blocks_of(self._changes())

    @abstractmethod
    def _changes(self) -> Iterator[Change]:
        """The serialized changes of the running epoch."""

    def finalize(self) -> None:
        self._sealed = {}

    def forget_epoch(self) -> None:
        self._before, self._staged = {}, {}

    def committed_keys(self) -> list[Key]:
        return list(self._committed)

    def images(self, keys: Sequence[Key], most_bytes: int) -> list[Any]:
        return sized(map(self.image, keys), most_bytes)

    def is_empty(self) -> bool:
        return not (self.live or self._before or self._sealed)
