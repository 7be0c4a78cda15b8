"""The heap's table of list states. It distinguishes appends from rewrites, so that a commit writes only added elements.

Rules of this module: as in `table`, which explains the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from qstate.backends.admission import admit_list, admit_values
from qstate.backends.answers import list_answer, pack_elements, unpack_elements
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import Change, ChangeOp
from qstate.backends.heap.containers import HeapContainerTable
from qstate.descriptors import StateDescriptor
from qstate.keys import Key

__all__ = ["HeapListTable"]

#: In place of a number of unchanged elements: the list was written as a whole.
_WHOLE = -1
_MISSING: Any = object()


class HeapListTable(HeapContainerTable):
    """List states. `_before` has the number of elements that are unchanged since S, or `_WHOLE`."""

    _before: dict[Key, int]
    _committed: dict[Key, list[bytes]]
    _staged: dict[Key, list[bytes]]
    # A committed list only grows at its end or is replaced, so the list and a length are an image.
    _sealed: dict[Key, tuple[list[bytes], int] | None]
    _admit = staticmethod(admit_list)
    _whole = _WHOLE

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        admit_values(values)
        found = self.live.get(key)
        if key not in self._before:
            standing = len(self._committed.get(key, ()))
            # If user code shortened or extended the list in place, the elements added now are not the only change.
            self._touch(key, standing if standing == len(found or ()) else _WHOLE)
        if found is not None:
            found.extend(values)
        elif values:
            self.live[key] = list(values)

    def _changes(self) -> Iterator[Change]:
        self._staged = staged = {}
        key: Any = None
        try:
            for key, standing in list(self._before.items()):
                elements = self.live.get(key) or []
                added = [self._dump(element) for element in islice(elements, max(standing, 0), None)]
                staged[key] = added
                op = ChangeOp.LIST_ADD if standing > 0 else ChangeOp.PUT
                if added:
                    yield self.change(op, self._group_of(key), self._encode(key), pack_elements(added))
                elif standing <= 0 and key in self._committed:
                    yield self.change(ChangeOp.DELETE, self._group_of(key), self._encode(key))
        except Exception as exc:
            raise self._failure(key, exc) from exc

    def seal(self) -> None:
        committed, sealed = self._committed, self._sealed
        for key, standing in self._before.items():
            found, added = committed.get(key), self._staged[key]
            if key not in sealed:
                sealed[key] = None if found is None else (found, len(found))
            if found is not None and standing > 0:
                found.extend(added)
            elif added:
                committed[key] = added
            elif found is not None:
                del committed[key]
        self._before, self._staged = {}, {}

    def _loaded(self, committed: list[bytes]) -> list[Any]:
        return list(map(self._load, committed))

    def image(self, key: Key) -> list[bytes] | None:
        sealed = self._sealed.get(key, _MISSING)
        if sealed is not _MISSING:
            return None if sealed is None else sealed[0][: sealed[1]]
        found = self._committed.get(key)
        return None if found is None else found[:]

    def frozen(self) -> HeapListTable:
        copy = type(self)(self.state, self.namespace)
        lengths = zip(self._committed.values(), map(len, self._committed.values()), strict=True)
        copy._sealed = {**dict(zip(self._committed, lengths, strict=True)), **self._sealed}
        return copy

    def final_keys(self) -> Iterable[Key]:
        return self._sealed

    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: list[bytes]) -> bytes:
        return list_answer(descriptor, image)

    def committed_data(self, key: Key) -> bytes | None:
        elements = self._committed.get(key)
        return None if elements is None else pack_elements(elements)

    def _load_data(self, block: ChangeBlock, keys: Sequence[Any]) -> None:
        live, committed = self.live, self._committed
        data = repeat(b"") if block.data is None else block.data
        for key, stored in zip(keys, data, strict=False):
            if block.op is ChangeOp.PUT:
                live.pop(key, None)
                committed.pop(key, None)
            elements = unpack_elements(stored)
            committed.setdefault(key, []).extend(elements)
            live.setdefault(key, []).extend(map(self._load, elements))
