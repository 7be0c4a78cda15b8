"""A served job without Spark whose epochs a test writes: real backends, epoch logs and servers behind one proxy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from qstate.backends.contract import BackendContext, Isolation
from qstate.backends.expiry import change_converter, stored_form
from qstate.backends.heap.backend import HeapBackend
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.log_identity import LogIdentity
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory
from qstate.checkpoint.sources.change_feed import ChangeFeed, FedState, StateFeed
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import StateDescriptor, ValueStateDescriptor
from qstate.errors import QueryError, UnknownState
from qstate.evolution import StateSchema
from qstate.keys import ColumnType, KeyGroupRange, key_group
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer

JOB, STATE, GROUPS = "job", "temperatures", 16
VALUES = ValueStateDescriptor("t", int).queryable(STATE)
_UID = "operator"


class _Part:
    """One owner: its key groups, backend, epoch log and server."""

    def __init__(self, root: Path, history: str, number: int, parts: int, descriptor: StateDescriptor) -> None:
        self.descriptor = descriptor
        self.groups = KeyGroupRange.of_subtask(number, parts, GROUPS)
        self.backend = HeapBackend(BackendContext(self.groups, GROUPS, root / f"scratch-{number}"))
        self._root, self._history = root, history
        self.directory = subtask_directory(directory_of(root), _UID, 0, number)
        self._schema = StateSchema.of(descriptor)
        plain = {**self._schema.to_plain(), "key_types": ["string"]}
        identity = LogIdentity(JOB, _UID, number, parts, GROUPS)
        self.log = EpochLog.open(self.directory, identity, lambda _: (plain,))
        self.behind_since: Callable[[], float | None] = lambda: None
        self.final = -1
        self.serve()

    def serve(self) -> None:
        """Begin to serve, at another address and with another state id."""
        self.feed = ChangeFeed(directory_of(self._root), _UID, self.groups, self._history, self.final)
        self.registry = StateRegistry()
        self.server = StateServer(self.registry)
        self.server.start()
        self.instance = StateInstance(
            job=JOB,
            descriptor=self.descriptor,
            key_types=(ColumnType.STRING,),
            key_groups=self.groups,
            max_parallelism=GROUPS,
            capabilities=self.backend.capabilities,
            readers={isolation: self.backend.reader(isolation) for isolation in Isolation},
            behind_since=lambda: self.behind_since(),
            changes=StateFeed(self.feed, FedState(self._schema, change_converter(self.descriptor))),
        )
        self.owner = Owner(self.groups, *self.server.address, self.registry.register(self.instance))

    def commit(self, epoch: int, write: Callable[[Any], None], *, shown: bool) -> None:
        self.backend.begin(epoch)
        write(self.backend.table(stored_form(self.descriptor)))
        self.log.seal(epoch, list(self.backend.commit(epoch)))
        if shown:
            self.backend.finalize(epoch)
        self.final = epoch
        self.feed.finalize(epoch)

    def lose(self) -> None:
        """Stop serving."""
        self.feed.close()
        self.server.shutdown(0.1)


class WrittenJob:
    """The job, which is its own location oracle. Its owners can be lost and replaced, and itself by another life."""

    def __init__(self, directory: Path, *, parts: int = 2, descriptor: StateDescriptor = VALUES) -> None:
        self._directory, self._lives = directory, count()
        self.proxy = ClientProxy(EndpointOptions())
        self.proxy.start()
        self.parts: list[_Part] = []
        self.begin(parts, descriptor)

    def begin(self, parts: int = 2, descriptor: StateDescriptor = VALUES) -> None:
        """Begin a life without any state, in place of the one before. Spark's query is the same."""
        self.lose()
        for part in self.parts:
            part.backend.close()
        life = next(self._lives)
        root = self._directory / f"life-{life}"
        directory_of(root).make()
        manifest = JobManifest(JOB, GROUPS, (parts,), {_UID: "query"}).with_new_history()
        manifest.write(root)
        history = manifest.history_of(_UID)
        assert history is not None
        self.parts = [_Part(root, history, number, parts, descriptor) for number in range(parts)]
        self.epoch = -1
        #: How many look-ups are answered as those of a job that has restarted and processed nothing yet.
        self.unknown_for = 0
        self.proxy.set_location_oracle(JOB, self)

    def commit(self, changes: Mapping[str, Any] | None = None, *, shown: bool = True) -> int:
        """Commit an epoch that sets these keys, and deletes those whose value is None. Returns its number.

        If it is not `shown`, polls tell of it before gets show it.
        """
        self.epoch += 1
        for part in self.parts:
            mine = {key: to for key, to in (changes or {}).items() if key_group(key, GROUPS) in part.groups}
            part.commit(self.epoch, lambda table, mine=mine: _write(table, mine), shown=shown)
        return self.epoch

    def compact(self) -> None:
        """Replace the stored changes by a snapshot."""
        for part in self.parts:
            take_snapshot(directory_of(part.directory), retained=1)

    def lose(self) -> None:
        """Lose all owners."""
        for part in self.parts:
            part.lose()

    def recover(self) -> None:
        """Serve again what was committed, by other owners."""
        for part in self.parts:
            part.serve()

    def be_behind(self, since: Callable[[], float | None]) -> None:
        """Have the owners say that they may lack what was committed since then, as standbys do."""
        for part in self.parts:
            part.behind_since = since

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        self.unknown_for -= 1
        if state != STATE or self.unknown_for >= 0:
            reply(UnknownState(state=state))
            return
        owners = tuple(part.owner for part in self.parts)
        reply(LocationTable(JOB, self.parts[0].instance.describe(), GROUPS, owners))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([self.parts[0].instance.describe()])

    def close(self) -> None:
        self.proxy.shutdown(0.1)
        self.lose()
        for part in self.parts:
            part.backend.close()


def _write(table: Any, changes: Mapping[str, Any]) -> None:
    for key, to in changes.items():
        if to is None:
            table.delete(key)
        elif callable(to):
            to(table, key)
        else:
            table.put(key, to)


def with_ttl(descriptor: StateDescriptor, ttl: Any) -> StateDescriptor:
    """The same state with a time-to-live."""
    return replace(descriptor, ttl=ttl)
