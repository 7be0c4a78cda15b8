"""A checkpoint directory as a job leaves it, without a job: a manifest and the epoch logs of one operator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import LogIdentity, Snapshot
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.snapshots import WHOLE_BYTES, take_snapshot, write_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory, write_final
from qstate.checkpoint.sources.history import StateSource
from qstate.checkpoint.sources.origins import origin_of
from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange, Namespace, encode_key, key_group
from qstate.serializers import MessagePackSerializer, Serializer

__all__ = [
    "DESCRIPTORS",
    "EVERY",
    "KEYS",
    "MAX_PARALLELISM",
    "QUERY",
    "SCHEMAS",
    "UID",
    "Reversed",
    "StoredJob",
    "begin_with",
    "changes_of",
    "entries_of",
    "filled_state_after",
    "held",
    "identity_of",
    "state_after",
]

MAX_PARALLELISM = 8
EVERY = KeyGroupRange(0, MAX_PARALLELISM)
QUERY, UID = "query-1", "totals"
KEYS = [f"key {number}" for number in range(12)]
FILLERS, FILLER_BYTES = 60, 150


class Reversed(Serializer):
    """A serializer that only the job's program knows."""

    name = "reversed"

    def dumps(self, value: object) -> bytes:
        return str(value).encode()[::-1]

    def loads(self, data: bytes) -> object:
        return data[::-1].decode()


DESCRIPTORS: tuple[StateDescriptor, ...] = (
    ValueStateDescriptor("total", int).queryable("totalAmount"),
    ListStateDescriptor("last", float),
    MapStateDescriptor("visits", int),
    ValueStateDescriptor("secret", str, serializer=Reversed()),
)
SCHEMAS = tuple({**StateSchema.of(descriptor).to_plain(), "key_types": ["string"]} for descriptor in DESCRIPTORS)

_dumps = MessagePackSerializer().dumps


def changes_of(epoch: int) -> list[Change]:
    """What an epoch changed: of every third key, every kind of state."""
    changes = []
    for key in KEYS[epoch % 3 :: 3]:
        changes += [
            _change(ChangeOp.PUT, "total", key, _dumps(epoch)),
            _change(ChangeOp.PUT, "total", key, _dumps(-epoch), namespace=("day", epoch % 2)),
            _change(ChangeOp.LIST_ADD, "last", key, pack_elements([_dumps(epoch / 2)])),
            _change(ChangeOp.MAP_PUT, "visits", key, _dumps(epoch), map_key=encode_key(epoch % 4)),
            _change(ChangeOp.MAP_REMOVE, "visits", key, b"", map_key=encode_key((epoch - 3) % 4)),
        ]
        gone = epoch % 5 == 4
        changes.append(_change(ChangeOp.DELETE if gone else ChangeOp.PUT, "secret", key, b"" if gone else b"terces"))
    return changes


def _change(
    op: ChangeOp, state: str, key: str, data: bytes, *, map_key: bytes = b"", namespace: Namespace = None
) -> Change:
    group = key_group(key, MAX_PARALLELISM)
    return Change(op, state, group, encode_key(namespace), encode_key(key), map_key, data)


def state_after(epoch: int) -> dict[tuple[str, bytes, bytes, bytes], bytes]:
    """The state that epochs 0 to `epoch` make: data by state, namespace, key and map key, each in plain Python."""
    lists: dict[bytes, list[bytes]] = {}
    found: dict[tuple[str, bytes, bytes, bytes], bytes] = {}
    for change in (change for one in range(epoch + 1) for change in changes_of(one)):
        place = (change.state, change.namespace, change.key, change.map_key)
        if change.op in (ChangeOp.PUT, ChangeOp.MAP_PUT):
            found[place] = change.data
        elif change.op is ChangeOp.LIST_ADD:
            elements = lists.setdefault(change.key, [])
            elements += unpack_elements(change.data)
            found[place] = pack_elements(elements)
        else:
            found.pop(place, None)
    return found


def fillers() -> list[Change]:
    """Entries that no epoch changes, so many that an epoch changes little of all."""
    return [_change(ChangeOp.PUT, "secret", f"filler {number}", b"x" * FILLER_BYTES) for number in range(FILLERS)]


def filled_state_after(epoch: int) -> dict[tuple[str, bytes, bytes, bytes], bytes]:
    """`state_after`, with what a filled epoch put as well."""
    puts = {(change.state, change.namespace, change.key, change.map_key): change.data for change in fillers()}
    return {**state_after(epoch), **puts}


def entries_of(changes: Iterable[Change]) -> dict[tuple[str, bytes, bytes, bytes], bytes]:
    """Changes of a neutral dump in the form of `state_after`."""
    return {(one.state, one.namespace, one.key, one.map_key): one.data for one in changes}


def held(source: StateSource, epoch: int) -> dict[tuple[str, bytes, bytes, bytes], bytes]:
    """The state of a source as of an epoch, in the form of `state_after`."""
    return entries_of(source.state(UID, EVERY, epoch))


def identity_of(manifest: JobManifest, subtask: int) -> LogIdentity:
    return LogIdentity(manifest.job, UID, subtask, manifest.parallelism, MAX_PARALLELISM)


def begin_with(files: Directory, identity: LogIdentity, epoch: int, changes: Iterable[Change]) -> None:
    """Write the snapshot that a log begins with when its state comes from elsewhere."""
    write_snapshot(files, identity, Snapshot(0, 0, 0, epoch, 0, SCHEMAS), changes, operator_state=())


class StoredJob:
    """A checkpoint directory that is written epoch by epoch. `restart` continues with another parallelism."""

    def __init__(self, root: Path | Directory, *, parallelism: int = 2, job: str = "job") -> None:
        directory_of(root).make()
        self.root = root
        self.manifest = JobManifest(job, MAX_PARALLELISM, (parallelism,), {UID: QUERY})
        self.manifest.write(root)
        self.logs = self._open()

    def identity(self, subtask: int) -> LogIdentity:
        return identity_of(self.manifest, subtask)

    def directory(self, subtask: int) -> Any:
        return subtask_directory(self.root, UID, self.manifest.layout, subtask)

    def run(self, epochs: Iterable[int], *, commit: bool = True, filled: bool = False) -> None:
        """Seal epochs in every subtask, with an output frame each; Spark commits each of them, or none."""
        for epoch in epochs:
            self.seal(epoch, range(len(self.logs)), filled=filled)
            if commit:
                write_final(self.root, {QUERY: epoch})

    def seal(self, epoch: int, subtasks: Iterable[int], *, filled: bool = False) -> None:
        """Seal an epoch in these subtasks. Spark does not commit it."""
        for subtask in subtasks:
            log = self.logs[subtask]
            groups = KeyGroupRange.of_subtask(subtask, len(self.logs), MAX_PARALLELISM)
            log.drop_output(before_epoch=epoch)
            changes = [*changes_of(epoch), *(fillers() if filled else ())]
            log.seal(epoch, [one for one in changes if one.group in groups], [b"frame %d" % epoch])

    def snapshot(self, *, retained: int = 2, whole_bytes: int = WHOLE_BYTES) -> None:
        for subtask in range(self.manifest.parallelism):
            take_snapshot(directory_of(self.directory(subtask)), retained=retained, whole_bytes=whole_bytes)

    def restart(self) -> None:
        self.logs = self._open()

    def rescale(self, parallelism: int, first_epoch: int, subtasks: Iterable[int]) -> None:
        """Begin a new layout, and the logs of these of its subtasks, with the state that Spark continues from."""
        self.manifest = self.manifest.with_parallelism(parallelism)
        self.manifest.write(self.root)
        for subtask in subtasks:
            identity = self.identity(subtask)
            origin = origin_of(self.root, self.manifest, UID, identity.key_groups, first_epoch)
            assert origin is not None
            changes = origin.source.state(UID, identity.key_groups, origin.upto)
            files = directory_of(self.directory(subtask))
            files.make()
            begin_with(files, identity, origin.epoch, changes)

    def _open(self) -> list[EpochLog]:
        return [
            EpochLog.open(self.directory(subtask), self.identity(subtask), lambda _: SCHEMAS)
            for subtask in range(self.manifest.parallelism)
        ]
