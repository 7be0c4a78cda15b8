"""The changes that answer one poll: which epochs, which changes of them, and where the next poll begins.

Rules of this module: it reads a feed and selects. It must not know sockets, threads or who waits. What it reads for one
poll is bounded in bytes and in time, so that no subscriber keeps others waiting: one that is far behind gets its
changes in many answers.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, compress
from struct import Struct, error
from typing import NamedTuple

from msgspec import Raw

from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import ChangeOp
from qstate.checkpoint.sources.change_feed import CompactedEpoch, EpochChanges, StateFeed
from qstate.errors import Compacted, MalformedRequest, TooLarge
from qstate.keys import ColumnType, encode_key
from qstate.protocol.limits import MAX_RUNS
from qstate.protocol.messages import Poll, Run
from qstate.runtime.serving.range_requests.scans import begins_with, encoded_prefix

__all__ = ["ENOUGH_BYTES", "Place", "Polled", "Selection", "place_of", "polled"]

#: An answer ends with the change that reaches so many bytes, and the reading of one poll ends after so many seconds.
ENOUGH_BYTES = 1 << 20
ENOUGH_S = 0.1
#: At most so many bytes are added to each change, and to each answer.
BYTES_OF_A_CHANGE = 16
BYTES_OF_AN_ANSWER = 1024
_POSITION = Struct(">HI")


class Place(NamedTuple):
    """Where reading begins: the epoch, and in it the key group and the number of the change in that key group."""

    epoch: int
    group: int
    number: int = 0


class Polled(NamedTuple):
    """The changes up to a place. `position` is empty if the place is the beginning of an epoch.

    `more`: there may be more to read already.
    """

    runs: tuple[Run, ...]
    next_epoch: int
    position: bytes
    more: bool


def place_of(request: Poll) -> Place:
    """Where a poll begins. Raises `MalformedRequest` for a position that no server has given."""
    if not request.position:
        return Place(request.from_epoch, request.start_group)
    try:
        group, number = _POSITION.unpack(request.position)
    except error:
        raise MalformedRequest(field="position", expected="the position of an answer") from None
    before = group < request.start_group
    return Place(request.from_epoch, request.start_group if before else group, 0 if before else number)


def polled(source: StateFeed, selection: Selection, begin: Place, stop: int, most_bytes: int) -> Polled:
    """The changes that a poll selects of the key groups up to `stop`, from `begin` on.

    Raises `Compacted`, `TooLarge` when a change does not fit into an answer, and `CheckpointError`.
    """
    answer = _Answer(min(ENOUGH_BYTES, most_bytes - BYTES_OF_AN_ANSWER), most_bytes)
    until = time.monotonic() + ENOUGH_S
    place = begin
    while True:
        with _stored(place.epoch):
            epoch = source.feed.next_epoch(source.state, place.epoch)
        if epoch is None:
            return Polled(tuple(answer.runs), place.epoch, b"", more=False)
        if epoch != place.epoch:
            place = Place(epoch, selection.start_group)
        for at in _of_epoch(source, selection, place, stop, answer):
            if answer.full or time.monotonic() > until:
                return Polled(tuple(answer.runs), epoch, _POSITION.pack(*at), more=True)
        place = Place(epoch + 1, selection.start_group)
        if answer.full or time.monotonic() > until:
            return Polled(tuple(answer.runs), place.epoch, b"", more=True)


@contextmanager
def _stored(epoch: int) -> Iterator[None]:
    """Raise `Compacted` in the place of `CompactedEpoch` when the changes of the epoch are not stored any more."""
    try:
        yield
    except CompactedEpoch as exc:
        raise Compacted(epoch=epoch, oldest_epoch=exc.oldest) from exc


class Selection:
    """Which changes a poll wants."""

    def __init__(self, request: Poll, key_types: Sequence[ColumnType]) -> None:
        """Raises `WrongKeyType` for a prefix that no key of the state can have."""
        self.start_group = request.start_group
        self._namespaces = [encode_key(namespace) for namespace in request.namespaces]
        self._keys = [encode_key(key) for key in request.keys]
        self._prefix = encoded_prefix(request, key_types)
        self._begins = begins_with(request, key_types)

    def blocks(self, window: EpochChanges, start: int, stop: int) -> Iterator[tuple[int, ChangeBlock, Sequence[int]]]:
        """The selected changes: for each block the ordinal of its first change, and the indexes to take of it."""
        found = window.of_keys(self._keys, start, stop) if self._keys else window.blocks(start, stop)
        for first, block in found:
            if self._namespaces and block.namespace not in self._namespaces:
                continue
            indexes: Sequence[int] = range(len(block.keys))
            if self._prefix:
                indexes = [*compress(indexes, (key.startswith(self._prefix) for key in block.keys))]
            if self._begins is not None:
                indexes = [*compress(indexes, map(self._begins, block.keys))]
            if indexes:
                yield first, block, indexes


class _Answer:
    """The runs of an answer, up to a size."""

    def __init__(self, enough_bytes: int, most_bytes: int) -> None:
        self.runs: list[Run] = []
        self._left = enough_bytes
        self._most_bytes = most_bytes

    @property
    def full(self) -> bool:
        return self._left <= 0 or len(self.runs) >= MAX_RUNS

    def add(self, epoch: int, block: ChangeBlock, indexes: Sequence[int]) -> int:
        """Add as many of these changes as there is room for. Returns how many."""
        if self.full:
            return 0
        sizes = [*accumulate(_sizes(block, indexes))]
        taken = bisect_right(sizes, self._left)
        if taken < len(sizes) and not taken and not self.runs:
            taken = 1  # a large change has an answer of its own
            if sizes[0] > self._most_bytes - BYTES_OF_AN_ANSWER:
                raise TooLarge(field="answer", limit=self._most_bytes)
        if taken:
            self.runs.append(_run(epoch, block, indexes[:taken]))
            self._left -= sizes[taken - 1]
        if taken < len(sizes):
            self._left = 0
        return taken


def _of_epoch(
    source: StateFeed, selection: Selection, begin: Place, stop: int, answer: _Answer
) -> Iterator[tuple[int, int]]:
    """Add changes of an epoch to the answer. Yields, after each step, the place to continue at if there is more."""
    first, number = begin.group, begin.number
    while first < stop:
        with _stored(begin.epoch):
            window = source.feed.changes(source.state, begin.epoch, first)
        low, high = window.ordinal(first, number), window.ordinal(min(stop, window.stop))
        for ordinal, block, indexes in selection.blocks(window, low, high):
            taken = answer.add(begin.epoch, block, indexes)
            if taken < len(indexes):
                yield window.place(ordinal + indexes[taken])
        first, number = window.stop, 0
        if first < stop:
            yield first, 0


def _sizes(block: ChangeBlock, indexes: Sequence[int]) -> Iterator[int]:
    """The bytes that each change takes in an answer, at most."""
    of_all = BYTES_OF_A_CHANGE + len(block.namespace)
    keys, map_keys, data = _columns(block, indexes)
    return (of_all + sum(sizes) for sizes in zip(map(len, keys), map(len, map_keys), map(len, data), strict=True))


def _run(epoch: int, block: ChangeBlock, indexes: Sequence[int]) -> Run:
    keys, map_keys, data = _columns(block, indexes)
    return Run(
        epoch,
        block.op.value,
        Raw(block.namespace),  # keys are stored as the protocol writes them
        [*map(Raw, keys)],
        [*map(Raw, map_keys)] if block.op in _OF_ENTRIES else None,
        data if block.op in _WITH_VALUES else None,
    )


def _columns(block: ChangeBlock, indexes: Sequence[int]) -> list[Sequence[bytes]]:
    """Keys, map keys and data of these changes."""
    empty = [b""] * len(block.keys)
    columns = (block.keys, block.map_keys or empty, block.data or empty)
    return [column if len(indexes) == len(column) else [column[at] for at in indexes] for column in columns]


_OF_ENTRIES = frozenset((ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE))
_WITH_VALUES = frozenset((ChangeOp.PUT, ChangeOp.MAP_PUT, ChangeOp.LIST_ADD))
