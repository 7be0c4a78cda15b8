"""Changes by the block, column by column: what the epoch log writes, and the fast way for a backend to give them.

Rules of this module: it puts single changes together and takes blocks apart; it knows no backend and no file. A
backend that has its changes one by one gives them one by one from `commit` and need not know of blocks. One that can
make a column at a time gives `ChangeBlocks` instead: it is spared a tuple per change, which the log would take
apart again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from qstate.backends.contract import Change, ChangeOp

__all__ = ["FIRST_COUNT", "ChangeBlock", "ChangeBlocks", "blocks_of", "next_count"]

#: What a block aims at: large enough to be cheap per change, small enough to check and hold.
TARGET_BLOCK = 1 << 20
MOST_CHANGES = 8192
#: How many changes to begin with, while nothing is known of their size.
FIRST_COUNT = 64

_new_change: Any = partial(tuple.__new__, Change)
_run_of = itemgetter(0, 1, 3)
_columns = (itemgetter(2), itemgetter(4), itemgetter(5), itemgetter(6))


class ChangeBlock(NamedTuple):
    """Changes of one operation, state and namespace; each column has one item per change, as in `Change`.

    None instead of `map_keys` or `data` stands for empty bytes throughout.
    """

    op: ChangeOp
    state: str
    namespace: bytes
    groups: Sequence[int]
    keys: Sequence[bytes]
    map_keys: Sequence[bytes] | None
    data: Sequence[bytes] | None

    def changes(self) -> Iterator[Change]:
        """The same, one by one."""
        columns = (
            repeat(self.op),
            repeat(self.state),
            self.groups,
            repeat(self.namespace),
            self.keys,
            repeat(b"") if self.map_keys is None else self.map_keys,
            repeat(b"") if self.data is None else self.data,
        )
        return map(_new_change, zip(*columns, strict=False))  # strict would trip over the endless repeats


class ChangeBlocks:
    """The changes of a commit, for whoever wants them one by one as for whoever asks for the blocks. Exhausted once."""

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


def next_count(count: int, size: int) -> int:
    """How many changes the next block should have, when `count` of them took `size` bytes.

    Values may be of any size, and blocks are held in memory: so each aims at the target by the size of the last.
    """
    return max(1, min(MOST_CHANGES, count * TARGET_BLOCK // max(size, 1)))
