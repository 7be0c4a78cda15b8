"""The runtime context: how a function declares its states while it is opened.

Rules of this module: it checks and collects state descriptors and makes their handles. It uses only the tables of the
backend; it does not know epochs, batches or queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from qstate.backends.contract import StateBackend, StateTable
from qstate.backends.expiry import stored_form
from qstate.checkpoint.log.operator_state import Distribution, OperatorState
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError
from qstate.evolution.write_checks import WriteChecks, checked
from qstate.keys import ColumnType, KeyGroupRange, key_grouper
from qstate.operators.broadcast import BroadcastState, BroadcastWrites, map_key_types, owned_state
from qstate.operators.expiry.expiry_sweep import ExpiringState, ExpirySweep, WriteCount
from qstate.operators.expiry.ttl_tables import ttl_table
from qstate.operators.handles import (
    AggregatingState,
    DefaultingValueState,
    ElementContext,
    ListState,
    MapState,
    ReducingState,
    StateHandle,
    ValueState,
)
from qstate.operators.many_keys import Tables
from qstate.operators.operator_lists import OperatorLists, OperatorListState

__all__ = ["RuntimeContext", "Subtask"]

#: The names of states that qstate keeps for itself begin with this.
OWN_NAMES = "__qstate."

Handle = TypeVar("Handle", bound=StateHandle)


@dataclass(frozen=True, slots=True)
class Subtask:
    """One of the `parallelism` subtasks of an operator. Its index determines its key groups."""

    index: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange.of_subtask(self.index, self.parallelism, self.max_parallelism)


class RuntimeContext:
    """The argument of a function's `open`: it names the subtask and gives access to states.

    Every `get_..._state` returns a handle for the state with the descriptor's name: empty in a new job, otherwise
    restored. It raises `JobError` for a descriptor of another kind, for a name or queryable name that the function
    already uses, and after `open` has returned.
    """

    def __init__(
        self,
        job: str,
        operator: str,
        subtask: Subtask,
        backend: StateBackend,
        *,
        checks: WriteChecks | None = None,
        timed_writes: WriteCount | None = None,
        stored: OperatorState = (),
        keyed: bool = True,
        broadcast_states: Sequence[MapStateDescriptor] = (),
    ) -> None:
        """`checks` and `timed_writes` outlive a copy of the function, as the backend's tables do.

        `stored` are the operator's lists that this copy begins with. `keyed`: whether the stream has a key.
        """
        self._job = job
        self._operator = operator
        self._subtask = subtask
        self._backend = backend
        self._descriptors: dict[str, StateDescriptor] = {}
        #: The class of the handle and the tables of each keyed state that the function has asked for.
        self._keyed_states: dict[str, tuple[type[StateHandle], Tables]] = {}
        self._expiring: dict[str, ExpiringState] = {}
        self._timed_writes = WriteCount() if timed_writes is None else timed_writes
        self._cursor = ElementContext()
        self._checks = WriteChecks() if checks is None else checks
        self._lists = OperatorLists(operator, f"operator {operator!r} subtask {subtask.index}", self._checks, stored)
        self._sealed = False
        self._keyed = keyed
        #: For the operator: whether broadcast state may be written now.
        self.broadcast_writes = BroadcastWrites()
        self._broadcast = {one.name: (one, self._declare_broadcast(one)) for one in broadcast_states}

    @property
    def job(self) -> str:
        """The job's name."""
        return self._job

    @property
    def operator_uid(self) -> str:
        """The operator's uid, which links it with its state."""
        return self._operator

    @property
    def subtask(self) -> int:
        """The index of this subtask, from 0."""
        return self._subtask.index

    @property
    def parallelism(self) -> int:
        """The number of subtasks of the operator."""
        return self._subtask.parallelism

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The handle of a value state. Raises `SerializationError` when its default does not have the declared type."""
        if getattr(descriptor, "default", None) is None:
            return self._handle(ValueState, ValueStateDescriptor, descriptor)
        checked(descriptor).serializer.dumps(descriptor.default)
        return self._handle(DefaultingValueState, ValueStateDescriptor, descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The handle of a list state."""
        return self._handle(ListState, ListStateDescriptor, descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The handle of a map state."""
        return self._handle(MapState, MapStateDescriptor, descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """The handle of a reducing state."""
        return self._handle(ReducingState, ReducingStateDescriptor, descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The handle of an aggregating state."""
        return self._handle(AggregatingState, AggregatingStateDescriptor, descriptor)

    def get_operator_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """The handle of a list of this subtask, independent of keys.

        When the parallelism changes, the elements of all subtasks are split evenly among the new ones.
        """
        return self._operator_list(descriptor, Distribution.SPLIT)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list of this subtask. After a change of parallelism or a restore, each subtask has the elements of all."""
        return self._operator_list(descriptor, Distribution.UNION)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """The handle of a broadcast state, which `broadcast(descriptor)` has given to the stream of broadcast rows."""
        name = getattr(descriptor, "name", repr(descriptor))
        found = self._broadcast.get(name)
        if found is None:
            declared = ", ".join(map(repr, self._broadcast)) or "none"
            raise JobError(
                f"operator {self._operator!r}: there is no broadcast state {name!r}; broadcast() declares {declared}"
            )
        if found[0] != descriptor:
            raise JobError(
                f"operator {self._operator!r}: broadcast state {descriptor.name!r} is declared with another descriptor "
                "in broadcast(): use one object for both"
            )
        return found[1]

    @property
    def element_context(self) -> ElementContext:
        """The operator sets the current key here, and handles read it."""
        return self._cursor

    @property
    def operator_lists(self) -> OperatorLists:
        """For the operator: the lists that the function has declared."""
        return self._lists

    def keyed_state(self, descriptor: StateDescriptor, cursor: ElementContext) -> tuple[StateHandle, StateTable]:
        """For the operator: another handle of a keyed state that the function has asked for, and its stored values.

        The handle takes its key from `cursor`; both are in the void namespace. Raises `JobError` for other states.
        """
        name = getattr(descriptor, "name", repr(descriptor))
        found = self._keyed_states.get(name)
        if found is None or self._descriptors[name] != descriptor:
            raise JobError(
                f"operator {self._operator!r}: the function has no keyed state {name!r} of this descriptor; ask for it "
                f"in open(). It has {', '.join(map(repr, self._keyed_states)) or 'none'}"
            )
        handle, tables = found
        expiring = self._expiring.get(name)
        return handle(descriptor, cursor, tables), (tables if expiring is None else expiring.table)(None)

    def key_types_of(self, state: str) -> tuple[ColumnType, ...] | None:
        """For the operator: the types of the keys of a state whose keys are not those of the stream, else None."""
        return map_key_types(self._broadcast[state][0]) if state in self._broadcast else None

    @property
    def keeps_time(self) -> bool:
        """For the operator: whether what the function sees depends on the time of the epoch."""
        return bool(self._expiring)

    def expiry_sweep(self, most: int) -> ExpirySweep:
        """For the operator: the removal of expired values of the states that the function declares.

        `most`: the number of entries to visit in an epoch without writes.
        """
        groups = self._subtask.key_groups
        return ExpirySweep(self._backend, groups, self._expiring, most=most, writes=self._timed_writes)

    def check_writes(self) -> None:
        """For the operator: from now on, values of writes are checked against their declared types."""
        self._checks.on = True

    def seal(self) -> tuple[StateDescriptor, ...]:
        """Refuse further states; returns the descriptors of the states declared so far."""
        self._sealed = True
        return tuple(self._descriptors.values())

    def _handle(self, handle: type[Handle], expected: type[StateDescriptor], descriptor: StateDescriptor) -> Handle:
        if not isinstance(descriptor, expected):
            raise JobError(f"operator {self._operator!r}: expected a {expected.__name__}, got {descriptor!r}")
        tables = self._tables(descriptor)
        self._keyed_states[descriptor.name] = handle, tables
        return handle(descriptor, self._cursor, tables)

    def _declare_broadcast(self, descriptor: MapStateDescriptor) -> BroadcastState:
        owned = owned_state(descriptor)
        self._declare(owned)
        groups, group_of = self._subtask.key_groups, key_grouper(self._subtask.max_parallelism)
        return self._lists.declare_broadcast(
            descriptor,
            lambda stored: BroadcastState(
                descriptor,
                stored,
                self.broadcast_writes,
                dumps=self._checks.of(descriptor).serializer.dumps,
                owned=self._backend.table(self._checks.of(owned)),
                owns=lambda map_key: group_of(map_key) in groups,
            ),
        )

    def _tables(self, descriptor: StateDescriptor) -> Tables:
        """Declare a state. Returns its tables by namespace."""
        if not self._keyed:
            raise JobError(
                f"operator {self._operator!r}: {descriptor.name!r} is keyed state, and the stream has no key: use "
                "key_by(), or operator state (get_operator_list_state)"
            )
        self._declare(descriptor)
        if descriptor.ttl is None:
            return partial(self._backend.table, self._checks.of(descriptor))
        stored = partial(self._backend.table, stored_form(self._checks.of(descriptor)))
        name, duration_ms = descriptor.name, descriptor.ttl.duration_ms
        self._expiring[name] = ExpiringState(name, descriptor.kind, duration_ms, stored)
        return lambda namespace: ttl_table(stored(namespace), descriptor, self._cursor, self._timed_writes)

    def _operator_list(self, descriptor: ListStateDescriptor, distribution: Distribution) -> OperatorListState:
        if not isinstance(descriptor, ListStateDescriptor):
            raise JobError(f"operator {self._operator!r}: expected a ListStateDescriptor, got {descriptor!r}")
        if descriptor.queryable_name is not None:
            raise JobError(
                f"operator {self._operator!r}: operator state {descriptor.name!r} cannot be queried, it belongs to no "
                f"key; leave the queryable name {descriptor.queryable_name!r} out, or use keyed state"
            )
        if descriptor.ttl is not None:
            raise JobError(
                f"operator {self._operator!r}: operator state {descriptor.name!r} has a time-to-live, which only keyed "
                "state can have; leave ttl out, or use keyed state"
            )
        self._check_name(descriptor)
        return self._lists.declare(descriptor, distribution)

    def _check_name(self, descriptor: StateDescriptor) -> None:
        if self._sealed:
            raise JobError(
                f"operator {self._operator!r}: state {descriptor.name!r} was asked for after open(); "
                "get the handle in open() or initialize_state() and keep it"
            )
        if descriptor.name.startswith(OWN_NAMES):
            raise JobError(
                f"operator {self._operator!r}: a state cannot be named {descriptor.name!r}: names that begin with "
                f"{OWN_NAMES!r} are qstate's own"
            )
        if descriptor.name in self._descriptors or descriptor.name in self._lists.names:
            raise JobError(f"operator {self._operator!r}: the function has two states named {descriptor.name!r}")

    def _declare(self, descriptor: StateDescriptor) -> None:
        self._check_name(descriptor)
        for other in self._descriptors.values():
            if descriptor.queryable_name is not None and other.queryable_name == descriptor.queryable_name:
                raise JobError(
                    f"operator {self._operator!r}: the states {other.name!r} and {descriptor.name!r} have the same "
                    f"queryable name {descriptor.queryable_name!r}"
                )
        self._descriptors[descriptor.name] = descriptor
