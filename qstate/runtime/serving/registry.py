"""The state instances that one task manager serves, by id.

Rules of this module: bookkeeping only. It knows the parts of an instance; it must not read state or open sockets. Ids
are random and never reused, so an id from before a restart finds no state instead of the wrong one, and a late
`unregister` cannot remove a newer registration.
"""

from __future__ import annotations

import logging
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any, Protocol

from xxhash import xxh64_intdigest

from qstate.backends.contract import Capability, Isolation, StateReader
from qstate.backends.expiry import current_reader
from qstate.checkpoint.sources.change_feed import StateFeed
from qstate.descriptors import PATH_STEPS, MapStateDescriptor, StateDescriptor
from qstate.errors import ConfigError
from qstate.evolution.answer_types import answer_schemas
from qstate.keys import ColumnType, Key, KeyGroupRange, check_max_parallelism, key_class, key_grouper
from qstate.protocol.limits import STATE_ID_BYTES
from qstate.runtime.serving.range_requests.scan_views import ScanViews
from qstate.values.value_types import RecordType

__all__ = ["StateInstance", "StateListener", "StateRegistry", "known_to_be_current"]

log = logging.getLogger(__name__)


def known_to_be_current() -> None:
    """The `behind_since` of a committed view that shows every commit immediately: it returns None."""


@dataclass(frozen=True, slots=True)
class StateInstance:
    """One queryable state of one subtask: its description, its key groups, and its readers.

    - `job`: the name that clients ask for.
    - `descriptor`: the state's, made queryable with `queryable(name)`.
    - `key_types`: the type of each key column; keys of other types fail with WRONG_KEY_TYPE.
    - `key_groups`: the groups whose keys this instance has, of `max_parallelism` groups; other keys fail with
      KEY_GROUP_NOT_OWNED.
    - `namespace_types`: the type of each column of a namespace, None if they are not known. A namespace of other types
      fails with WRONG_KEY_TYPE.
    - `capabilities`: the backend's, for the clients to see.
    - `readers`: a reader for each isolation that a query may ask for, `backend.reader(...)`. The server calls it on its
      threads. After the backend is closed the reader may raise `ClosedError`, and such a get fails with INTERNAL. For a
      state with a time-to-live the backend has its stored form (`qstate.backends.expiry`).
    - `behind_since`: since when a committed view may be behind. A live view of a running job is always current.
    - `changes`: where committed changes are read, for subscribers; None: polls are UNSUPPORTED.
    - `restored`: whether the backend began with committed state; only then does a committed view of epoch -1 show
      anything. Otherwise such a get fails with NO_COMMITTED_EPOCH.

    Raises `ConfigError` when the descriptor is not queryable, the key groups exceed `max_parallelism`, there is no key
    column, or a committed reader lacks its capability.
    """

    job: str
    descriptor: StateDescriptor
    key_types: tuple[ColumnType, ...]
    key_groups: KeyGroupRange
    max_parallelism: int
    capabilities: frozenset[Capability]
    readers: Mapping[Isolation, StateReader]
    #: The moment of `time.monotonic` since which the committed view may lack a commit; minus infinity when that is not
    #: known, None when the view lacks nothing. Called for gets with `max_staleness_ms`, on any thread; must not block.
    behind_since: Callable[[], float | None] = known_to_be_current
    restored: bool = False
    namespace_types: tuple[ColumnType, ...] | None = None
    changes: StateFeed | None = field(default=None, repr=False, compare=False)
    #: Whether this instance owns every key group; then no key has to be hashed.
    owns_all: bool = field(init=False, repr=False, compare=False)
    #: `readers` by the isolation's name on the wire. They show nothing that has expired.
    readers_by_name: Mapping[str, StateReader] = field(init=False, repr=False, compare=False)
    #: Gives the key group of a valid key.
    group_of: Callable[[Key], int] = field(init=False, repr=False, compare=False)

    #: The queryable name.
    name: str = field(init=False, repr=False, compare=False)
    #: The type of keys of one column, None for several. Cached, because an enum computes its attributes in Python.
    key_class: type | None = field(init=False, repr=False, compare=False)
    #: What stands for the description in answers.
    fingerprint: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_max_parallelism(self.max_parallelism)
        name = self.descriptor.queryable_name
        if name is None:
            raise ConfigError(f"state {self.descriptor.name!r} is not queryable: give it a name with queryable(...)")
        if self.job in PATH_STEPS:
            raise ConfigError(f"a job cannot have the name {self.job!r}, a step in the path of a URL: choose another")
        if self.key_groups.stop > self.max_parallelism:
            raise ConfigError(f"state {name!r}: {self.key_groups} exceeds max_parallelism {self.max_parallelism}")
        if not self.key_types:
            raise ConfigError(f"state {name!r} needs at least one key column")
        if Isolation.COMMITTED in self.readers and Capability.COMMITTED_READS not in self.capabilities:
            raise ConfigError(
                f"state {name!r} has a committed reader, but its backend does not declare COMMITTED_READS"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "owns_all", len(self.key_groups) == self.max_parallelism)
        by_name = {isolation.value: self._current(isolation, reader) for isolation, reader in self.readers.items()}
        object.__setattr__(self, "readers_by_name", by_name)
        object.__setattr__(self, "key_class", key_class(self.key_types))
        object.__setattr__(self, "group_of", key_grouper(self.max_parallelism))
        object.__setattr__(self, "fingerprint", _fingerprint(self._described()))

    def _current(self, isolation: Isolation, reader: StateReader) -> StateReader:
        may_tear = isolation is Isolation.LIVE and Capability.SNAPSHOT_READS not in self.capabilities
        return current_reader(self.descriptor, reader, may_tear=may_tear)

    def describe(self) -> dict[str, Any]:
        """The description map, as the wire carries it."""
        # Metrics name a state by its descriptor.
        return {**self._described(), "state": self.descriptor.name, "fingerprint": self.fingerprint}

    def _described(self) -> dict[str, Any]:
        descriptor = self.descriptor
        namespace_types = self.namespace_types
        description: dict[str, Any] = {
            "name": self.name,
            "kind": descriptor.kind.value,
            "serializer": descriptor.query_serializer_name,
            "serializer_version": descriptor.serializer.version,
            "key_types": tuple(column.value for column in self.key_types),
            "namespace_types": None if namespace_types is None else tuple(one.value for one in namespace_types),
            "value_type": _type_text(descriptor.value_type),
            "capabilities": tuple(sorted(capability.name.lower() for capability in self.capabilities)),
        }
        if isinstance(descriptor, MapStateDescriptor):
            description["map_key_type"] = _type_text(descriptor.map_key_type)
        if descriptor.ttl is not None:
            description["ttl_ms"] = descriptor.ttl.duration_ms
        return {**description, **answer_schemas(descriptor)}


def _fingerprint(description: Mapping[str, Any]) -> str:
    """Equal for equal descriptions, in every process."""
    return f"{xxh64_intdigest(repr(sorted(description.items())).encode('utf-8', 'surrogatepass')):016x}"


class StateListener(Protocol):
    """Called at each registration and unregistration of a job's states, on the thread that makes it.

    It must not block. An exception is logged; the registration stands. Calls of several threads may come in any order.
    """

    def __call__(self, state_id: bytes, instance: StateInstance, registered: bool) -> None: ...


class StateRegistry:
    """State instances by id, for state servers. Any thread may call any method; `lookup` takes no lock.

    It holds references only: it neither opens nor closes a backend.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[bytes, StateInstance] = {}
        #: By id: the scans of clients that are open.
        self._scan_views: dict[bytes, ScanViews] = {}
        self._listeners: dict[str, tuple[StateListener, ...]] = {}

    def register(self, instance: StateInstance) -> bytes:
        """Serve an instance. Returns its new id, the only way to look it up or unregister it.

        The id is random bytes and is never used again, also for the same instance. Give it to the `Owner` of the state.
        """
        state_id = token_bytes(STATE_ID_BYTES)
        with self._lock:
            self._instances[state_id] = instance
            self._scan_views[state_id] = ScanViews(state_id)
            listeners = self._listeners.get(instance.job, ())
        _notify(listeners, state_id, instance, True)
        return state_id

    def unregister(self, state_id: bytes) -> None:
        """Stop serving the instance of this id: further gets fail with UNKNOWN_STATE_ID. An unknown id is ignored.

        Its open scans are closed.

        It does not wait for a get that has looked the instance up before and still reads.
        """
        with self._lock:
            instance = self._instances.pop(state_id, None)
            views = self._scan_views.pop(state_id, None)
            listeners = self._listeners.get(instance.job, ()) if instance is not None else ()
        if views is not None:
            views.close()
        if instance is not None:
            _notify(listeners, state_id, instance, False)

    def lookup(self, state_id: bytes) -> StateInstance | None:
        """The instance of an id, None if it is not registered."""
        return self._instances.get(state_id)

    def scan_views(self, state_id: bytes) -> ScanViews | None:
        """The open scans of the instance of an id, None if it is not registered."""
        return self._scan_views.get(state_id)

    def expire_scans(self) -> None:
        """Close the scans that no client has used for too long."""
        for views in list(self._scan_views.values()):
            views.expire()

    def instances(self) -> dict[bytes, StateInstance]:
        """A copy of the registered instances, by id."""
        with self._lock:
            return dict(self._instances)

    def listen(self, job: str, listener: StateListener) -> None:
        """Call `listener` at the job's registrations and unregistrations from now on."""
        with self._lock:
            self._listeners[job] = (*self._listeners.get(job, ()), listener)

    def unlisten(self, job: str, listener: StateListener) -> None:
        """Undo one `listen`. An unknown listener is ignored."""
        with self._lock:
            rest = list(self._listeners.get(job, ()))
            if listener in rest:
                rest.remove(listener)
            if rest:
                self._listeners[job] = tuple(rest)
            else:
                self._listeners.pop(job, None)


def _notify(listeners: Sequence[StateListener], state_id: bytes, instance: StateInstance, registered: bool) -> None:
    for listener in listeners:
        try:
            listener(state_id, instance, registered)
        except Exception:
            log.exception("a listener of job %r failed; the state is still served", instance.job)


def _type_text(kind: Any) -> str:
    if isinstance(kind, RecordType):
        return kind.name
    # Python 3.10 takes list[int] for a type, whose name lacks what it is a list of.
    return kind.__name__ if isinstance(kind, type) and typing.get_origin(kind) is None else str(kind)
