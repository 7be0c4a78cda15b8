"""Blocks of changes, stored by column: the unit that the epoch log writes, and a fast result for a backend's `commit`.

Rules of this module: it groups changes into blocks and splits blocks into changes; it knows no backend and no file. A
backend may yield single changes from `commit` and need not know blocks. A backend that can make a column at a time
returns `ChangeBlocks` instead, and saves a tuple for each change. The changes that the log passes to `restore` can be
read one by one or by the block, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, groupby, islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from qstate.backends.contract import Change, ChangeOp
from qstate.keys import KeyGroupRange

__all__ = ["FIRST_COUNT", "ChangeBlock", "ChangeBlocks", "blocks_of", "chained", "next_count", "recut"]

#: The intended bytes of a block: large enough to be cheap for each change, small enough for memory and checksums.
TARGET_BLOCK = 1 << 20
MOST_CHANGES = 8192
#: The changes of the first block, while their size is unknown.
FIRST_COUNT = 64

_new_change: Any = partial(tuple.__new__, Change)
_run_of = itemgetter(0, 1, 3)
_block_run = itemgetter(0, 1, 2)
_columns = (itemgetter(2), itemgetter(4), itemgetter(5), itemgetter(6))


class ChangeBlock(NamedTuple):
    """Changes of one operation, state and namespace; each column has one item per change, as in `Change`.

    `map_keys` or `data` is None if it is empty bytes for every change.
    """

    op: ChangeOp
    state: str
    namespace: bytes
    groups: Sequence[int]
    keys: Sequence[bytes]
    map_keys: Sequence[bytes] | None
    data: Sequence[bytes] | None

    @property
    def size(self) -> int:
        """The bytes of all keys, map keys and data."""
        return sum(sum(map(len, column)) for column in (self.keys, self.map_keys, self.data) if column is not None)

    def changes(self) -> Iterator[Change]:
        """The changes one by one."""
        columns = (
            repeat(self.op),
            repeat(self.state),
            self.groups,
            repeat(self.namespace),
            self.keys,
            repeat(b"") if self.map_keys is None else self.map_keys,
            repeat(b"") if self.data is None else self.data,
        )
        return map(_new_change, zip(*columns, strict=False))  # not strict: the repeats are endless

    def part(self, start: int, stop: int) -> ChangeBlock:
        """The changes `start` to `stop` (exclusive)."""
        if start == 0 and stop == len(self.keys):
            return self
        return self._with(lambda column: column[start:stop])

    def within(self, key_groups: KeyGroupRange) -> ChangeBlock:
        """The changes of these key groups; the block may be empty."""
        groups, start, stop = self.groups, key_groups.start, key_groups.stop
        if not groups or (min(groups) >= start and max(groups) < stop):
            return self
        wanted = [start <= group < stop for group in groups]
        return self._with(lambda column: list(compress(column, wanted)))

    def _with(self, convert: Callable[[Any], Any]) -> ChangeBlock:
        return self._replace(
            groups=convert(self.groups),
            keys=convert(self.keys),
            map_keys=None if self.map_keys is None else convert(self.map_keys),
            data=None if self.data is None else convert(self.data),
        )


class ChangeBlocks:
    """The changes of a commit, to be read once: one by one, or by the block."""

    def __init__(self, blocks: Iterable[ChangeBlock]) -> None:
        self._blocks = iter(blocks)

    def __iter__(self) -> Iterator[Change]:
        for block in self._blocks:
            yield from block.changes()

    def blocks(self) -> Iterator[ChangeBlock]:
        return self._blocks


def blocks_of(changes: Iterable[Change]) -> Iterator[ChangeBlock]:
    """Any changes as blocks, in their order."""
    if isinstance(changes, ChangeBlocks):
        yield from changes.blocks()
        return
    remaining = iter(changes)
    count = FIRST_COUNT
    while part := list(islice(remaining, count)):
        size = 0
        for (op, state, namespace), run in groupby(part, _run_of):
            # One pass per column: zip(*run) makes an iterator per change and takes four times as long.
            of_run = list(run)
            groups, keys, map_keys, data = (list(map(column, of_run)) for column in _columns)
            size += sum(map(len, keys)) + sum(map(len, map_keys)) + sum(map(len, data))
            yield ChangeBlock(
                op, state, namespace, groups, keys, map_keys if any(map_keys) else None, data if any(data) else None
            )
        count = next_count(len(part), size)


def chained(histories: Iterable[Iterable[Change]]) -> ChangeBlocks:
    """Several sequences of changes, one after the other, as blocks."""
    return ChangeBlocks(block for changes in histories for block in blocks_of(changes))


def recut(blocks: Iterable[ChangeBlock]) -> Iterator[ChangeBlock]:
    """The changes in the blocks that `blocks_of` would make of single ones: equal changes give equal blocks."""
    held: list[ChangeBlock] = []
    count = room = FIRST_COUNT
    for block in blocks:
        start, end = 0, len(block.keys)
        while start < end:
            stop = min(start + room, end)
            held.append(block.part(start, stop))
            room -= stop - start
            start = stop
            if not room:
                joined = _joined(held)
                yield from joined
                count = room = next_count(count, sum(block.size for block in joined))
                held = []
    yield from _joined(held)


def _joined(parts: Iterable[ChangeBlock]) -> list[ChangeBlock]:
    """Neighbours of one operation, state and namespace as one block."""
    joined = []
    for (op, state, namespace), run in groupby(parts, _block_run):
        of_run = list(run)
        groups = [*chain.from_iterable(part.groups for part in of_run)]
        keys = [*chain.from_iterable(part.keys for part in of_run)]
        map_keys = _joined_bytes([(part.map_keys, len(part.keys)) for part in of_run])
        data = _joined_bytes([(part.data, len(part.keys)) for part in of_run])
        joined.append(ChangeBlock(op, state, namespace, groups, keys, map_keys, data))
    return joined


def _joined_bytes(columns: list[tuple[Sequence[bytes] | None, int]]) -> list[bytes] | None:
    joined: list[bytes] = []
    for column, length in columns:
        joined += [b""] * length if column is None else column
    return joined if any(joined) else None


def next_count(count: int, size: int) -> int:
    """How many changes the next block should have, after `count` changes took `size` bytes.

    Values may have any size, and memory holds a block. So the size of the last block decides the next count.
    """
    return max(1, min(MOST_CHANGES, count * TARGET_BLOCK // max(size, 1)))
