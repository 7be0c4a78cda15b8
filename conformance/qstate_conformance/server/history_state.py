"""The state of the fixture whose changes can be polled, as the reference server has it: a real epoch log.

Rules of this module: it writes the fixture's epochs with qstate's own log, and gives the instance to register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.log_identity import LogIdentity
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory
from qstate.checkpoint.sources.change_feed import ChangeFeed, FedState, StateFeed
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import QueryError
from qstate.evolution import StateSchema
from qstate.keys import encode_key, key_group
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate_conformance.server import fixture
from qstate_conformance.server.special_states import EVERYTHING, NOTHING, not_known

__all__ = ["HistoryState"]

_UID, _QUERY = "history", "query"


class HistoryState:
    """Registers the state; see `SpecialState`."""

    name = fixture.HISTORY

    def __init__(self, address: tuple[str, int], registry: StateRegistry, directory: Path) -> None:
        descriptor = ValueStateDescriptor(self.name).queryable(self.name)
        schema = StateSchema.of(descriptor)
        _write(directory, {**schema.to_plain(), "key_types": ["string"]})
        feed = ChangeFeed(directory_of(directory), _UID, EVERYTHING, _QUERY, fixture.COMMITTED_EPOCH)
        changes = StateFeed(feed, FedState(schema, None))
        instance = StateInstance(**NOTHING, descriptor=descriptor, changes=changes, behind_since=not_known)
        self.description = instance.describe()
        self._owner = Owner(EVERYTHING, *address, registry.register(instance))

    def located(self) -> LocationTable | QueryError:
        return LocationTable(fixture.JOB, self.description, fixture.MAX_PARALLELISM, (self._owner,))


def _write(directory: Path, schema: Mapping[str, Any]) -> None:
    """The log of one subtask, whose epochs before the oldest one are replaced by a snapshot."""
    JobManifest(fixture.JOB, fixture.MAX_PARALLELISM, (1,), {_UID: _QUERY}).write(directory)
    files = subtask_directory(directory_of(directory), _UID, 0, 0)
    identity = LogIdentity(fixture.JOB, _UID, 0, 1, fixture.MAX_PARALLELISM)
    admit: Callable[[Any], Sequence[Mapping[str, Any]]] = lambda _: (schema,)  # noqa: E731
    log = EpochLog.open(files, identity, admit)
    for epoch in range(fixture.LIVE_EPOCH + 1):
        if epoch == fixture.OLDEST_EPOCH:
            take_snapshot(files, retained=1)
        log.seal(epoch, [_change(one) for one in fixture.CHANGES if one.epoch == epoch])


def _change(one: fixture.Change) -> Change:
    op, data = (ChangeOp.DELETE, b"") if one.value is None else (ChangeOp.PUT, one.value)
    group = key_group(one.key, fixture.MAX_PARALLELISM)
    return Change(op, fixture.HISTORY, group, encode_key(one.namespace), encode_key(one.key), b"", data)
