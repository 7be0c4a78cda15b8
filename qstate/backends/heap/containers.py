"""What the heap's tables of lists and of maps have in common: each written key has a mark of what was written.

Rules of this module: as in `table`, which explains the layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qstate.backends.change_blocks import ChangeBlock, blocks_of
from qstate.backends.contract import Change
from qstate.backends.heap.table import HeapState, HeapTable, sized
from qstate.keys import Key, Namespace

__all__ = ["HeapContainerTable"]


class HeapContainerTable(HeapTable):
    """List or map states. `_before` has a mark for each key that was written since S."""

    #: Makes the list or dict to store of a value that is put.
    _admit: Callable[[Any], Any]
    #: The mark of a key that was written as a whole.
    _whole: Any

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self.get = self.live.get

    def put(self, key: Key, value: Any) -> None:
        contents = self._admit(value)
        self._touch(key, self._whole)
        if contents:
            self.live[key] = contents
        else:
            self.live.pop(key, None)

    def delete(self, key: Key) -> None:
        self._touch(key, self._whole)
        self.live.pop(key, None)

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

    def rollback(self) -> None:
        # A committed key keeps a value all the while, for live readers.
        for key in self._before:
            if key not in self._committed:
                self.live.pop(key, None)
        for key, contents in self._committed.items():
            self.live[key] = self._loaded(contents)

    @abstractmethod
    def _loaded(self, committed: Any) -> Any:
        """The live object of a committed list or map."""

    def committed_keys(self) -> list[Key]:
        return list(self._committed)

    def images(self, keys: Sequence[Key], most_bytes: int) -> list[Any]:
        return sized(map(self.image, keys), most_bytes)
