"""The heap's table of value, reducing and aggregating states.

Rules of this module: as in `table`, which explains the layers and the order of writes that committed reads rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, islice
from typing import Any, NamedTuple, TypeVar

from qstate.backends.admission import admit_pairs, none_refused
from qstate.backends.answers import IMMUTABLE, accumulator_answer
from qstate.backends.change_blocks import FIRST_COUNT, ChangeBlock, next_count
from qstate.backends.contract import ChangeOp
from qstate.backends.heap.table import HeapState, HeapTable
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace

__all__ = ["HeapValueTable", "Image"]

_MISSING: Any = object()
_NONE = type(None)
_Item = TypeVar("_Item")


class Image(NamedTuple):
    """The bytes of a value as of F. A value of an immutable type is its own image."""

    data: bytes


class HeapValueTable(HeapTable):
    """Value, reducing and aggregating states."""

    _committed: dict[Key, bytes]
    _staged: dict[Key, bytes]

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self._sealed_bytes: dict[Key, bytes] = {}

    @cached_property
    def get(self) -> Callable[[Key], Any]:  # type: ignore[override]
        """`live`'s own `get`. The caller may keep it."""
        return self.live.get

    def put(self, key: Key, value: Any) -> None:
        if value is None:
            raise none_refused()
        before = self._before
        if key not in before:
            if not before:
                self._first_write()
            before.setdefault(key, self.live.get(key))  # the first write may have brought this key's
        self.live[key] = value

    def delete(self, key: Key) -> None:
        before = self._before
        if key not in before:
            if not before:
                self._first_write()
            before.setdefault(key, self.live.get(key))
        self.live.pop(key, None)

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        admit_pairs(keys, values)
        before, live = self._before, self.live
        if not before:
            self._first_write()
        # A loop is faster than `dict.update` here: the dicts are far larger than the processor's cache, so most time is
        # spent on fetching each key's entries, and the loop fetches them once.
        get = live.get
        for key, value in zip(keys, values, strict=True):
            if key not in before:
                before[key] = get(key)
            live[key] = value

    def _first_write(self) -> None:
        """Prepare the first write of the running epoch into `live`."""
        self.state.touched(self)

    def blocks(self) -> Iterator[ChangeBlock]:
        changed = list(self._before)
        return self._blocks(changed, map(self.live.get, changed))

    def _blocks(self, changed: Iterable[Key], current: Iterable[Any]) -> Iterator[ChangeBlock]:
        """The blocks of these keys with their current values."""
        self._staged = {}
        count = FIRST_COUNT
        remaining_keys, remaining_values = iter(changed), iter(current)
        while keys := list(islice(remaining_keys, count)):
            values = list(islice(remaining_values, len(keys)))
            types = set(map(type, values))
            if _NONE in types:
                pairs = list(zip(keys, values, strict=True))
                gone = [key for key, value in pairs if value is None and self._before[key] is not None]
                keys = [key for key, value in pairs if value is not None]
                values = [value for value in values if value is not None]
                if gone:
                    yield self._block(ChangeOp.DELETE, gone, None)
                if not keys:
                    continue
            data = self._dumped(keys, values)
            if not types <= IMMUTABLE:
                mutable = (type(value) not in IMMUTABLE for value in values)
                self._staged.update(compress(zip(keys, data, strict=True), mutable))
            yield self._block(ChangeOp.PUT, keys, data)
            count = next_count(len(keys), sum(map(len, data)))

    def _block(self, op: ChangeOp, keys: list[Key], data: list[bytes] | None) -> ChangeBlock:
        groups, encoded = self._column(self._group_of, keys, keys), self._column(self._encode, keys, keys)
        return ChangeBlock(op, self._name, self.encoded_namespace, groups, encoded, None, data)

    def _dumped(self, keys: list[Key], values: list[Any]) -> list[bytes]:
        try:
            return self._dump_all(values)
        except Exception:  # serialized one by one, so that the error names the key
            return self._column(self._dump, values, keys)

    def _column(self, convert: Callable[[Any], _Item], items: list[Any], keys: list[Key]) -> list[_Item]:
        column: list[_Item] = []
        try:
            column.extend(map(convert, items))
        except Exception as exc:
            raise self._failure(keys[len(column)], exc) from exc  # `extend` keeps the items before the failure
        return column

    def seal(self) -> None:
        before, committed = self._before, self._committed
        replaced = {key: committed.pop(key) for key in before.keys() & committed.keys()} if committed else {}
        if self._sealed:  # two commits without a finalize between them: the older image is that of F
            for key, old in self._sealed.items():
                before[key] = old
                replaced.pop(key, None)
            replaced.update(self._sealed_bytes)
        committed.update(self._staged)
        self._sealed, self._sealed_bytes = before, replaced
        self._before, self._staged = {}, {}

    def finalize(self) -> None:
        self._sealed, self._sealed_bytes = {}, {}

    def rollback(self) -> None:
        live, load = self.live, self._load
        for key, old in self._before.items():
            if old is None:
                live.pop(key, None)
            else:
                live[key] = old
        for key, data in self._committed.items():
            live[key] = load(data)

    def image(self, key: Key) -> Any:
        value = self.live.get(key)  # before looking into `_before` and `_sealed`: see the module's rules
        value = self._before.get(key, value)
        old = self._sealed.get(key, _MISSING)
        if old is not _MISSING:
            data = self._sealed_bytes.get(key)
        else:
            data = self._committed.get(key)
            old = value
        return old if data is None else Image(data)

    def frozen(self) -> HeapValueTable:
        copy = type(self)(self.state, self.namespace)
        copy.live = self.live.copy()  # first: see the module's rules
        copy._before = self._before.copy()
        copy._sealed, copy._sealed_bytes = self._sealed.copy(), self._sealed_bytes.copy()
        copy._committed = self._committed.copy()
        return copy

    def final_keys(self) -> Iterable[Key]:
        return self.live.keys() | self._before.keys() | self._sealed.keys()

    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: Any) -> bytes:
        return accumulator_answer(descriptor, dump, image.data) if type(image) is Image else dump(image)

    def committed_keys(self) -> list[Key]:
        return [*self.live, *(key for key in self._before if key not in self.live)]

    def committed_data(self, key: Key) -> bytes | None:
        data = self._committed.get(key)
        if data is None:
            value = self._before[key] if key in self._before else self.live.get(key)
            data = None if value is None else self._dump(value)
        return data

    def _load_data(self, block: ChangeBlock, keys: Sequence[Any]) -> None:
        committed = self._committed
        data = [b""] * len(keys) if block.data is None else block.data
        values = self._load_all(data)
        self.live.update(zip(keys, values, strict=True))
        if committed or not IMMUTABLE.issuperset(map(type, values)):
            for key, value, stored in zip(keys, values, data, strict=True):
                if type(value) in IMMUTABLE:
                    committed.pop(key, None)
                else:
                    committed[key] = stored
