"""The states of the fixture whose changes can be polled, as the reference server has them: real epoch logs.

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
from qstate.errors import QueryError
from qstate.evolution import StateSchema
from qstate.keys import ColumnType, encode_key, key_group
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import History
from qstate_conformance.server.loading import descriptor_of
from qstate_conformance.server.special_states import EVERYTHING, NOTHING, not_known

__all__ = ["HistoryState"]

_UID, _QUERY = "history", "query"


class HistoryState:
    """Registers a state; see `SpecialState`."""

    def __init__(self, found: History, address: tuple[str, int], registry: StateRegistry, directory: Path) -> None:
        """Writes the log into the directory, which is the state's own."""
        self.name = found.state.name
        descriptor = descriptor_of(found.state)
        schema = StateSchema.of(descriptor)
        _write(directory, found, {**schema.to_plain(), "key_types": list(found.state.key_types)})
        feed = ChangeFeed(directory_of(directory), _UID, EVERYTHING, _QUERY, fixture.COMMITTED_EPOCH)
        key_types = tuple(map(ColumnType, found.state.key_types))
        instance = StateInstance(
            **{**NOTHING, "key_types": key_types},
            descriptor=descriptor,
            changes=StateFeed(feed, FedState(schema, None)),
            behind_since=not_known,
        )
        self.description = instance.describe()
        self._owner = Owner(EVERYTHING, *address, registry.register(instance))

    def located(self) -> LocationTable | QueryError:
        return LocationTable(fixture.JOB, self.description, fixture.MAX_PARALLELISM, (self._owner,))


def _write(directory: Path, found: History, schema: Mapping[str, Any]) -> None:
    """The log of one subtask, whose epochs before the oldest one are replaced by a snapshot."""
    JobManifest(fixture.JOB, fixture.MAX_PARALLELISM, (1,), {_UID: _QUERY}).write(directory)
    files = subtask_directory(directory_of(directory), _UID, 0, 0)
    identity = LogIdentity(fixture.JOB, _UID, 0, 1, fixture.MAX_PARALLELISM)
    admit: Callable[[Any], Sequence[Mapping[str, Any]]] = lambda _: (schema,)  # noqa: E731
    log = EpochLog.open(files, identity, admit)
    for epoch in range(fixture.LIVE_EPOCH + 1):
        if epoch == fixture.OLDEST_EPOCH:
            take_snapshot(files, retained=1)
        log.seal(epoch, [_change(found.state.name, one) for one in found.changes if one.epoch == epoch])


#: By the number of an operation in Changes.
_OPERATIONS = {1: ChangeOp.PUT, 2: ChangeOp.DELETE, 3: ChangeOp.MAP_PUT, 4: ChangeOp.MAP_REMOVE}


def _change(state: str, one: fixture.Change) -> Change:
    group = key_group(one.key, fixture.MAX_PARALLELISM)
    map_key = b"" if one.map_key is None else encode_key(one.map_key)
    namespace, key = encode_key(one.namespace), encode_key(one.key)
    return Change(_OPERATIONS[one.operation], state, group, namespace, key, map_key, one.value or b"")
