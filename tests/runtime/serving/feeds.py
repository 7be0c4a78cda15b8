"""A state with a history for tests of polls: an epoch log that a test writes, and the state's registration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qstate.backends.contract import Change, ChangeOp
from qstate.backends.expiry import change_converter
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.log_identity import LogIdentity
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory
from qstate.checkpoint.sources.change_feed import ChangeFeed, FedState, StateFeed
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import StateDescriptor
from qstate.evolution import StateSchema
from qstate.keys import Key, KeyGroupRange, Namespace, encode_key, key_group
from qstate.runtime.serving.registry import StateInstance
from qstate.serializers import MessagePackSerializer
from tests.runtime.serving.readers import MAX_PARALLELISM, DictReader, instance

UID = "temperatures"
_dumps = MessagePackSerializer().dumps


def put(key: Key, value: object, namespace: Namespace = None, state: str = "lastTemp") -> Change:
    group = key_group(key, MAX_PARALLELISM)
    return Change(ChangeOp.PUT, state, group, encode_key(namespace), encode_key(key), b"", _dumps(value))


class History:
    """The epoch logs of one operator, one for each range of key groups, and a feed of each."""

    def __init__(self, root: Path, parallelism: int = 1, descriptor: StateDescriptor | None = None) -> None:
        manifest = JobManifest("job", MAX_PARALLELISM, (parallelism,), {UID: "query"})
        directory_of(root).make()
        manifest.write(root)
        self.descriptor = descriptor or instance(DictReader({})).descriptor
        schema = StateSchema.of(self.descriptor)
        plain = {**schema.to_plain(), "key_types": ["string"]}
        self.ranges = [KeyGroupRange.of_subtask(one, parallelism, MAX_PARALLELISM) for one in range(parallelism)]
        self._directories = [subtask_directory(root, UID, 0, one) for one in range(parallelism)]
        self.logs = [
            EpochLog.open(directory, LogIdentity("job", UID, number, parallelism, MAX_PARALLELISM), lambda _: (plain,))
            for number, directory in enumerate(self._directories)
        ]
        self.feeds = [ChangeFeed(directory_of(root), UID, groups, "query") for groups in self.ranges]
        self._state = FedState(schema, change_converter(self.descriptor))

    def instances(self, parts: Sequence[int] = (0,)) -> list[StateInstance]:
        """The registrations of these ranges."""
        return [
            replace(
                instance(DictReader({}), key_groups=self.ranges[part]),
                descriptor=self.descriptor,
                changes=StateFeed(self.feeds[part], self._state),
            )
            for part in parts
        ]

    def seal(self, epoch: int, *changes: Change) -> None:
        for groups, log in zip(self.ranges, self.logs, strict=True):
            log.seal(epoch, [change for change in changes if change.group in groups])

    def commit(self, epoch: int, *changes: Change) -> None:
        """Seal an epoch, and report it as committed."""
        self.seal(epoch, *changes)
        for feed in self.feeds:
            feed.finalize(epoch)

    def snapshot(self) -> None:
        """Replace the files up to the newest epoch by a snapshot."""
        for directory in self._directories:
            take_snapshot(directory_of(directory), retained=1)
