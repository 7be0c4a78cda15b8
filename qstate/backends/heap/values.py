"""The heap's table of value, reducing and aggregating states.

Rules of this module: as in `table`, which explains the layers and the order of writes that committed reads rely on.

A queryable sink writes its table a batch at a time, and its operator never reads it. Until the first read by key or
write of a single key, `put_many` writes into a layer of the epoch's own, ahead of `live`. So the table need not fetch
and keep old values, the commit iterates over that dict without look-ups, a rollback drops it, and a final epoch goes
into `live` at the speed of `dict.update`. With half a million keys, of which four fifths change in an epoch, a model of
both took 0.6 s instead of 1.0, because the dicts are far larger than the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, compress, islice
from typing import Any, NamedTuple, TypeVar

from qstate.backends.admission import admit_values, none_refused
from qstate.backends.answers import accumulator_answer
from qstate.backends.change_blocks import FIRST_COUNT, ChangeBlock, next_count
from qstate.backends.contract import Change, ChangeOp
from qstate.backends.heap.table import IMMUTABLE, HeapState, HeapTable, find_all
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, KeyGroupRange, Namespace, decode_keys

__all__ = ["HeapValueTable"]

_MISSING: Any = object()
_NONE = type(None)
#: How many keys go into a dict at a time: no other thread runs during a call into C, and queries must not wait long.
_AT_A_TIME = 1024
_Item = TypeVar("_Item")


class _Image(NamedTuple):
    """A value as of F: its bytes, or the immutable object itself."""

    data: bytes | None
    value: Any


class HeapValueTable(HeapTable):
    """Value, reducing and aggregating states."""

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self._before: dict[Key, Any] = {}
        self._committed: dict[Key, bytes] = {}
        self._staged: dict[Key, bytes] = {}
        self._sealed: dict[Key, Any] = {}
        self._sealed_bytes: dict[Key, bytes] = {}
        self._ahead: dict[Key, Any] = {}
        self._sealed_ahead: dict[Key, Any] = {}
        self._settling: dict[Key, Any] = {}
        #: Those of the last three that are not empty, oldest first: live readers read them besides `live`.
        self._layers: tuple[dict[Key, Any], ...] = ()
        self._read_by_key = False

    @cached_property
    def get(self) -> Callable[[Key], Any]:  # type: ignore[override]
        """`live`'s own `get`. The caller may keep it, so from now on every write goes into `live` at once."""
        self._catch_up()
        self._read_by_key = True
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
        admit_values(values)
        if len(keys) != len(values):
            raise ValueError(f"put_many got {len(keys)} keys for {len(values)} values")
        if self._may_go_ahead(values):
            self._put_ahead(keys, values)
            return
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

    def _may_go_ahead(self, values: Iterable[Any]) -> bool:
        if self._read_by_key or self._before or self._committed:
            return False
        return IMMUTABLE.issuperset(map(type, values))

    def _put_ahead(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        ahead = self._ahead
        first = not ahead
        for start in range(0, len(keys), _AT_A_TIME):
            stop = start + _AT_A_TIME
            ahead.update(zip(keys[start:stop], values[start:stop], strict=True))
        if first:
            self.state.touched(self)
            self._show_layers()

    def _first_write(self) -> None:
        """Prepare the first write of the running epoch into `live`."""
        self._catch_up()
        self.state.touched(self)

    def _catch_up(self) -> None:
        """Move the layers ahead into `live`, as if they had been written there."""
        for ahead, old in ((self._sealed_ahead, self._sealed), (self._ahead, self._before)):
            for key, value in ahead.items():
                old[key] = self.live.get(key)
                self.live[key] = value
        self._sealed_ahead, self._ahead = {}, {}
        self._show_layers()

    def _show_layers(self) -> None:
        self._layers = tuple(filter(None, (self._settling, self._sealed_ahead, self._ahead)))

    def values(self, keys: Sequence[Key]) -> Sequence[Any]:
        layers = self._layers  # read before `live`, because they may be moved into it meanwhile
        # `live` is empty until the first epoch is final: then only the layers are read.
        live, *newer = (self.live, *layers) if self.live or not layers else layers
        found = find_all(live, keys)
        for layer in newer:
            found = list(map(layer.get, keys, found))
        return found

    def blocks(self) -> Iterator[ChangeBlock]:
        self._staged = {}
        count = FIRST_COUNT
        changed = list(self._ahead or self._before)
        remaining = iter(changed)
        current = iter(self._ahead.values()) if self._ahead else map(self.live.get, changed)
        while keys := list(islice(remaining, count)):
            values = list(islice(current, len(keys)))
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
        return ChangeBlock(op, self._name, self._encoded_namespace, groups, encoded, None, data)

    def _dumped(self, keys: list[Key], values: list[Any]) -> list[bytes]:
        try:
            return self.state.dump_all(values)
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
        if self._ahead and not (self._sealed or self._sealed_ahead):
            self._sealed_ahead, self._ahead = self._ahead, {}
            return
        self._catch_up()
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
        self._settling, self._sealed_ahead = self._sealed_ahead, {}

    def settle(self) -> None:
        entries = iter(self._settling.items())
        for _ in range(0, len(self._settling), _AT_A_TIME):
            self.live.update(islice(entries, _AT_A_TIME))
        self._settling = {}
        self._show_layers()

    def rollback(self) -> None:
        live, load = self.live, self._load
        for key, old in self._before.items():
            if old is None:
                live.pop(key, None)
            else:
                live[key] = old
        for key, data in self._committed.items():
            live[key] = load(data)

    def forget_epoch(self) -> None:
        self._before, self._staged, self._ahead = {}, {}, {}
        self._show_layers()

    def image(self, key: Key) -> _Image | None:
        settled = self._settling.get(key)
        if settled is not None:
            return _Image(None, settled)
        value = self.live.get(key)  # before looking into `_before` and `_sealed`: see the module's rules
        value = self._before.get(key, value)
        old = self._sealed.get(key, _MISSING)
        if old is not _MISSING:
            data = self._sealed_bytes.get(key)
        else:
            data = self._committed.get(key)
            old = value
        if data is not None:
            return _Image(data, None)
        return None if old is None else _Image(None, old)

    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: _Image) -> bytes:
        return dump(image.value) if image.data is None else accumulator_answer(descriptor, dump, image.data)

    def entries(self, groups: KeyGroupRange) -> Iterator[Change]:
        ahead = self._sealed_ahead
        for key in [*self.live, *(key for key in chain(self._before, ahead) if key not in self.live)]:
            group = self._group_of(key)
            if group not in groups:
                continue
            data = self._committed.get(key)
            if data is None:
                value = ahead.get(key, self._before.get(key, _MISSING))
                value = self.live.get(key) if value is _MISSING else value
                if value is None:
                    continue
                data = self._dump(value)
            yield self.change(ChangeOp.PUT, group, self._encode(key), data)

    def load(self, block: ChangeBlock) -> None:
        live, committed = self.live, self._committed
        keys: Sequence[Any] = decode_keys(block.keys)
        if block.op is ChangeOp.DELETE:
            for key in keys:
                live.pop(key, None)
                committed.pop(key, None)
            return
        data = [b""] * len(keys) if block.data is None else block.data
        values = self._load_all(data)
        live.update(zip(keys, values, strict=True))
        if committed or not IMMUTABLE.issuperset(map(type, values)):
            for key, value, stored in zip(keys, values, data, strict=True):
                if type(value) in IMMUTABLE:
                    committed.pop(key, None)
                else:
                    committed[key] = stored

    def is_empty(self) -> bool:
        return not (self.live or self._before or self._sealed or self._ahead or self._sealed_ahead)
