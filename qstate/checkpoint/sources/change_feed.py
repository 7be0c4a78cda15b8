"""The changes of committed epochs, read from an operator's epoch logs while its job writes them.

Rules of this module: it knows the files of a checkpoint. It must not know who reads the changes, nor any protocol.
Its user says which epoch is committed; it never yields a later one.

**What it costs.** Nothing, until somebody asks for an epoch: only then does it list the logs and read the files that
are new. It decodes an epoch of a state once, and keeps the newest ones for other readers, up to `most_bytes`.

**How far back.** An epoch can be read while its file exists and its values have the form that the state has now. A
rescaled job keeps the earlier layout for a while, so the feed also reads the logs of earlier layouts. Then the job
removes it: what is left of it meanwhile counts as gone.

**Order.** The changes of an epoch ascend by key group, and within a key group they are in the order in which the job
made them. The logs of two layouts, of a task manager and of a standby all give this order. So `(key group, number of
the change in it)` names a place in an epoch, the same for every reader.

**Memory.** Decoded, an epoch may be larger than memory. So the feed decodes a window of key groups: as many as fit into
`most_bytes`, and at least one. While it reads, it holds a quarter more. It keeps the columns of the stored blocks as
they are: an object for each change would double the time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import ChangeOp
from qstate.checkpoint.log.chain import NO_EPOCH, data_schema
from qstate.checkpoint.manifest import JobManifest, LogPlace, layout_places
from qstate.checkpoint.sources.following import FollowedLog
from qstate.checkpoint.sources.history import OutrunCheckpoint, with_gaps
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import DamagedCheckpoint
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange

__all__ = ["ChangeFeed", "CompactedEpoch", "EpochChanges", "FedState", "StateFeed"]

#: The decoded changes that a feed keeps, in bytes of keys and values.
MOST_BYTES = 64 << 20
#: How often an epoch is looked for when files are replaced meanwhile.
MOST_READS = 5
_WITHOUT_VALUE = frozenset((ChangeOp.DELETE, ChangeOp.MAP_REMOVE))


class CompactedEpoch(OutrunCheckpoint):
    """The changes of an epoch cannot be read any more. `oldest` is the oldest epoch whose changes can be."""

    def __init__(self, epoch: int, oldest: int) -> None:
        super().__init__(f"the changes of epoch {epoch} are not stored any more, the oldest are those of {oldest}")
        self.oldest = oldest


class FedState(NamedTuple):
    """A state whose changes are wanted: its schema, and what makes of a change's data what a reader gets."""

    schema: StateSchema
    converted: Callable[[bytes], bytes] | None


class StateFeed(NamedTuple):
    """Where the changes of one state are read."""

    feed: ChangeFeed
    state: FedState


class EpochChanges:
    """The changes of one state in one epoch, of the key groups up to `stop`, ascending by key group.

    A change has an ordinal, its place in these changes. Any number of threads may read.
    """

    def __init__(self, blocks: Sequence[ChangeBlock], stop: int) -> None:
        """`blocks` must ascend by key group."""
        self.stop = stop
        self._groups = [*chain.from_iterable(block.groups for block in blocks)]
        self._blocks = blocks
        self._starts = [0, *accumulate(len(block.keys) for block in blocks)][:-1]
        self._of_keys: Mapping[bytes, Sequence[int]] | None = None

    def __len__(self) -> int:
        return len(self._groups)

    def ordinal(self, group: int, number: int = 0) -> int:
        """The ordinal of the first change that is not before change `number` of a key group."""
        first, end = bisect_left(self._groups, group), bisect_left(self._groups, group + 1)
        return min(first + number, end)

    def place(self, ordinal: int) -> tuple[int, int]:
        """The key group of a change, and its number in that key group."""
        group = self._groups[ordinal]
        return group, ordinal - bisect_left(self._groups, group)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, ChangeBlock]]:
        """The changes from one ordinal to another (exclusive), in blocks of one operation and namespace each.

        Each block comes with the ordinal of its first change.
        """
        for number in range(max(bisect_right(self._starts, start) - 1, 0), len(self._blocks)):
            first, block = self._starts[number], self._blocks[number]
            if first >= stop:
                return
            low, high = max(start - first, 0), min(stop - first, len(block.keys))
            if low < high:
                yield first + low, block.part(low, high)

    def of_keys(self, keys: Sequence[bytes], start: int, stop: int) -> Iterator[tuple[int, ChangeBlock]]:
        """As `blocks`, of these keys only; each change is a block."""
        if self._of_keys is None:
            found: defaultdict[bytes, list[int]] = defaultdict(list)
            for first, block in zip(self._starts, self._blocks, strict=True):
                for ordinal, key in enumerate(block.keys, first):
                    found[key].append(ordinal)
            self._of_keys = found
        ordinals = sorted(one for key in keys for one in self._of_keys.get(key, ()) if start <= one < stop)
        for ordinal in ordinals:
            yield from self.blocks(ordinal, ordinal + 1)


class ChangeFeed:
    """The changes of one operator in a range of key groups. Any thread may call any method."""

    def __init__(
        self,
        root: Directory,
        operator: str,
        groups: KeyGroupRange,
        history: str,
        final: int = NO_EPOCH,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Reads nothing yet.

        `history`: that of the epochs, see `JobManifest.history_of`. Nothing is read of another one that takes over the
        directory. `final`: the newest epoch that is known to be committed.
        """
        self.groups = groups
        self.history = history
        self._root = root
        self._operator = operator
        self._most_bytes = most_bytes
        #: The newest committed epoch, -1 when there is none.
        self.final = final
        self.closed = False
        self._state = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._reading = threading.Lock()
        self._layouts: list[list[FollowedLog]] = []
        self._epochs: list[int] = []
        #: The newest committed epoch when the logs were last looked at. A later one may be known of some logs only.
        self._looked_at = NO_EPOCH
        #: By state, the oldest epoch whose changes can be read.
        self._oldest: dict[str, int] = {}
        self._kept: OrderedDict[tuple[str, int, int], tuple[EpochChanges, int]] = OrderedDict()

    def finalize(self, epoch: int) -> None:
        """Spark has committed this epoch and all before."""
        if epoch > self.final:
            with self._state:
                self.final = epoch
                waiting, self._waiting = self._waiting, []
            for notify in waiting:
                notify()

    def close(self) -> None:
        """Notify the waiters; further `once` return False. Idempotent."""
        with self._state:
            self.closed = True
            waiting, self._waiting = self._waiting, []
        for notify in waiting:
            notify()

    def once(self, final: int, notify: Callable[[], None]) -> bool:
        """Call `notify` once when another epoch than `final` is the newest committed one, or when the feed is closed.

        It is called on the thread that commits the epoch, so it must be short. Returns False, and does not call it, if
        that is so already.
        """
        with self._state:
            if self.closed or self.final != final:
                return False
            self._waiting.append(notify)
            return True

    def next_epoch(self, state: FedState, epoch: int) -> int | None:
        """The first committed epoch from this one on, None when there is none yet.

        Raises `CompactedEpoch` when changes of this epoch or a later one are missing, and `CheckpointError`.
        """
        final = self.final
        if epoch > final:
            return None
        with self._reading:
            self._find(state, epoch, final)
            found = bisect_left(self._epochs, epoch)
            if found == len(self._epochs) or self._epochs[found] > final:
                return None
            return self._epochs[found]

    def changes(self, state: FedState, epoch: int, first: int) -> EpochChanges:
        """The changes of a committed epoch from key group `first` on.

        They may end before the last key group of the feed: see `EpochChanges.stop`. Raises as `next_epoch`.
        """
        name = state.schema.name
        with self._reading:
            for place, (kept, _) in self._kept.items():
                if place[:2] == (name, epoch) and place[2] <= first < kept.stop:
                    self._kept.move_to_end(place)
                    return kept
            self._find(state, epoch, epoch)
            read, size = self._read(state, epoch, first)
            self._kept[name, epoch, first] = read, size
            while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)
            return read

    def _find(self, state: FedState, epoch: int, newest: int) -> None:
        """Look for new epochs, unless `newest` is known. Raises `CompactedEpoch` if `epoch` cannot be read."""
        if newest > self._looked_at:
            self._look()
        self._check_readable(state, epoch)

    def _look(self) -> None:
        """Read which epochs the logs have, of the newest layout first. Raises `CompactedEpoch` if they are gone."""
        final = self.final  # before the files: every log has what is committed
        manifest = self._manifest(final)
        known = {log.place.directory.path: log for layout in self._layouts for log in layout}
        # The look changes the known logs: they count again when it is complete.
        self._layouts, self._looked_at = [], NO_EPOCH
        layouts: list[list[FollowedLog]] = []
        for layout in range(manifest.layout, -1, -1):
            places = layout_places(self._root, manifest, self._operator, layout)
            try:
                layouts.append([_followed(place, known) for place in places if self._shares(place)])
            except DamagedCheckpoint:
                # The job removes the layouts that no state is read from any more, file by file and the oldest first.
                if not self._have_all(layouts):
                    raise
                break
        self._manifest(final)  # again: the files may be those of another history that came after the first reading
        self._layouts = layouts
        self._epochs = sorted({one.epoch for logs in layouts for log in logs for one in log.sealed})
        self._oldest.clear()
        self._looked_at = final

    def _manifest(self, final: int) -> JobManifest:
        """The manifest. Raises `CompactedEpoch` if the directory was emptied, or has another history now."""
        manifest = JobManifest.read(self._root)
        if manifest is None or manifest.history_of(self._operator) != self.history:
            raise CompactedEpoch(final, final + 1)
        return manifest

    def _have_all(self, layouts: Sequence[Sequence[FollowedLog]]) -> bool:
        """Whether one of these layouts has a log of every key group of the feed."""
        return any(all(log is not None for _, log in _parts(self.groups, logs)) for logs in layouts)

    def _shares(self, place: LogPlace) -> bool:
        return bool(place.files) and _shared(place.groups, self.groups) is not None

    def _logs_of(self, epoch: int) -> Iterator[tuple[FollowedLog, KeyGroupRange]]:
        """The logs that have this epoch, each with the key groups to read from it: the newest layout counts."""
        wanted = [self.groups]
        for layout in self._layouts:
            missing: list[KeyGroupRange] = []
            for part in wanted:
                for groups, log in _parts(part, layout):
                    if log is None or log.begins_after >= epoch:
                        missing.append(groups)
                    else:
                        yield log, groups
            wanted = missing

    def _check_readable(self, state: FedState, epoch: int) -> None:
        name = state.schema.name
        if name not in self._oldest:
            self._oldest[name] = self._oldest_in(state, self.groups, 0, self._looked_at)
        if epoch < self._oldest[name]:
            raise CompactedEpoch(epoch, self._oldest[name])

    def _oldest_in(self, state: FedState, groups: KeyGroupRange, layout: int, upto: int) -> int:
        """The oldest epoch from which on the changes of these key groups can be read in this layout and earlier ones.

        `upto`: the newest epoch that is wanted of them.
        """
        if layout == len(self._layouts):
            return upto + 1
        found = []
        for part, log in _parts(groups, self._layouts[layout]):
            first = upto + 1 if log is None or log.latest < upto else _first_in_form(log, state.schema)
            if log is None:
                first = self._oldest_in(state, part, layout + 1, upto)
            elif first == log.given + 1 and log.begins_after == log.given != NO_EPOCH:
                # Only up to the epoch that the layout began with: what the one before has of later ones was made again.
                first = self._oldest_in(state, part, layout + 1, log.begins_after)
            found.append(first)
        return max(found)

    def _read(self, state: FedState, epoch: int, first: int) -> tuple[EpochChanges, int]:
        """Decode the changes from key group `first` on, and their size in bytes."""
        for attempt in range(MOST_READS):
            window = _Window(first, self.groups.stop, self._most_bytes)
            try:
                for log, groups in self._logs_of(epoch):
                    if groups.stop > first:
                        window.add(log.changes(epoch).blocks(), state.schema.name, groups)
                return EpochChanges(window.changes(state.converted), window.stop), window.size
            except DamagedCheckpoint:  # or a snapshot has replaced a file since the last look
                for log in (log for layout in self._layouts for log in layout):
                    log.invalidate()
                self._look()
                self._check_readable(state, epoch)
                if attempt == MOST_READS - 1:
                    raise
        raise AssertionError("unreachable")


def _followed(place: LogPlace, known: Mapping[Any, FollowedLog]) -> FollowedLog:
    log = known.get(place.directory.path)
    if log is None:
        return FollowedLog(place)
    log.look(place)
    log.drop_removed()
    return log


def _shared(one: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return KeyGroupRange(start, stop) if start < stop else None


def _parts(groups: KeyGroupRange, layout: Sequence[FollowedLog]) -> Iterator[tuple[KeyGroupRange, FollowedLog | None]]:
    """The key groups by the log of a layout that has them, ascending; None: no log has them."""
    shared = ((_shared(log.place.groups, groups), log) for log in layout)
    return with_gaps(groups, ((part, log) for part, log in shared if part is not None))


def _first_in_form(log: FollowedLog, schema: StateSchema) -> int:
    """The epoch from which on a log has the values of a state in the form of this schema, if it has any."""
    wanted = data_schema(schema.to_plain())
    other = {
        writer
        for writer, states in log.schemas.items()
        for plain in states
        if plain.get("name") == schema.name and data_schema(StateSchema.from_plain(plain).to_plain()) != wanted
    }
    return 1 + max([log.begins_after, *(one.epoch for one in log.sealed if one.writer in other)])


class _Window:
    """The changes of one epoch and state in the key groups `first` up to `stop`, which falls when they are too many."""

    def __init__(self, first: int, stop: int, most_bytes: int) -> None:
        self._first = first
        self.stop = stop
        self._most_bytes = most_bytes
        self._blocks: list[ChangeBlock] = []
        self.size = 0

    def add(self, blocks: Iterator[ChangeBlock], state: str, groups: KeyGroupRange) -> None:
        start = max(groups.start, self._first)
        for block in blocks:
            stop = min(groups.stop, self.stop)
            if start < stop and block.state == state:
                part = block.within(KeyGroupRange(start, stop))
                self._blocks.append(part)
                self.size += part.size + len(part.namespace) * len(part.keys)
                # Not at once: a cut looks at all changes, so it must drop some share of them.
                if self.size > self._most_bytes + self._most_bytes // 4:
                    self._cut()

    def changes(self, converted: Callable[[bytes], bytes] | None) -> list[ChangeBlock]:
        """All changes, ascending by key group, in blocks of one operation and namespace each."""
        self._cut()
        found = _by_key_group(self._blocks)
        if converted is None:
            return found
        return [
            block
            if block.op in _WITHOUT_VALUE
            else block._replace(data=[*map(converted, block.data or repeat(b"", len(block.keys)))])
            for block in found
        ]

    def _cut(self) -> None:
        """Drop the last key groups while the changes are too many, and keep one."""
        if self.size <= self._most_bytes:
            return
        of_groups: defaultdict[int, int] = defaultdict(int)
        for block in self._blocks:
            for group, size in zip(block.groups, _sizes(block), strict=True):
                of_groups[group] += size
        for group in sorted(of_groups, reverse=True)[:-1]:
            if self.size <= self._most_bytes:
                break
            self.stop = group
            self.size -= of_groups[group]
        kept = KeyGroupRange(self._first, self.stop)
        self._blocks = [block.within(kept) for block in self._blocks]


def _sizes(block: ChangeBlock) -> Iterator[int]:
    """The bytes of each change."""
    columns = [column for column in (block.keys, block.map_keys, block.data) if column is not None]
    return (len(block.namespace) + sum(map(len, parts)) for parts in zip(*columns, strict=True))


def _by_key_group(blocks: Sequence[ChangeBlock]) -> list[ChangeBlock]:
    """The changes of a state, ascending by key group, and in each key group in the order of `blocks`."""
    filled = [
        block._replace(
            map_keys=block.map_keys or [b""] * len(block.keys),
            data=block.data or [b""] * len(block.keys),
        )
        for block in blocks
    ]
    groups, keys, map_keys, data = ([*chain.from_iterable(map(itemgetter(at), filled))] for at in (3, 4, 5, 6))
    run_of = [*chain.from_iterable(repeat(block[:3], len(block.keys)) for block in blocks)]
    found = []
    for (op, state, namespace), run in groupby(sorted(range(len(groups)), key=groups.__getitem__), run_of.__getitem__):
        order = [*run]
        columns = ([*map(column.__getitem__, order)] for column in (groups, keys, map_keys, data))
        found.append(ChangeBlock(op, state, namespace, *columns))
    return found
