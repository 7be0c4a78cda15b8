"""Operator state handles: named lists of a subtask, independent of keys.

Rules of this module: it keeps the elements as Python objects while an epoch runs, and serializes them when the epoch is
sealed. `qstate.checkpoint.log.operator_state` stores them and distributes them to subtasks. Neither the backend nor
queries use them.

    declare* -> per epoch: the function's calls, packed() -> sealed() ...

After an abandoned epoch, the function is made again, and with it its lists, from those sealed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from qstate.checkpoint.log.operator_state import DeclaredLists, Distribution, OperatorList, OperatorState, check_size
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.evolution import StateSchema
from qstate.evolution.admission import admission_of
from qstate.evolution.write_checks import WriteChecks
from qstate.operators.broadcast import BroadcastState
from qstate.operators.user_traceback import described
from qstate.serializers import Serializer

__all__ = ["OperatorListState", "OperatorLists"]

SomeHandle = TypeVar("SomeHandle")


class OperatorListState:
    """A list of the subtask, independent of the current key. It has its restored elements at once."""

    __slots__ = ("_admit", "_elements", "_name")

    def __init__(self, descriptor: ListStateDescriptor, elements: list[Any]) -> None:
        self._name = descriptor.name
        self._admit = admission_of(descriptor.value_type).admit
        self._elements = elements

    def get(self) -> list[Any]:
        """The elements in their order, in a new list. An element that is changed in place is stored with its change."""
        return list(self._elements)

    def add(self, value: Any) -> None:
        """Add one element at the end."""
        self._elements.append(self._checked(value, "add()"))

    def add_all(self, values: Iterable[Any]) -> None:
        """Add elements at the end, in their order."""
        self._elements.extend([self._checked(value, "add_all()") for value in values])

    def update(self, values: Iterable[Any]) -> None:
        """Replace the elements."""
        self._elements = [self._checked(value, "update()") for value in values]

    def clear(self) -> None:
        """Remove all elements."""
        self._elements.clear()

    def _checked(self, value: Any, operation: str) -> Any:
        if value is None:
            raise JobError(f"operator state {self._name!r}: {operation} got None, which is not a value")
        return self._admit(value)


class OperatorLists:
    """The operator state of one subtask: the lists and broadcast states of its function, and the state sealed last."""

    def __init__(self, operator: str, owner: str, checks: WriteChecks, stored: OperatorState = ()) -> None:
        """`owner` is the name of the subtask in errors, `stored` are the lists that it begins with."""
        self._checks = checks
        self._operator = operator
        self._owner = owner
        self._declared: dict[str, tuple[StateDescriptor, Distribution]] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._serializers: dict[str, Serializer] = {}
        #: What gives the elements of each state as they are stored, by name.
        self._packers: dict[str, Callable[[], tuple[bytes, ...]]] = {}
        self._stored = stored
        self._sealed: OperatorState = ()

    @property
    def names(self) -> Iterable[str]:
        """The names of the declared lists, and of broadcast states."""
        return self._declared.keys()

    def declare(self, descriptor: ListStateDescriptor, distribution: Distribution) -> OperatorListState:
        """Declare a list, whose name must be new; returns its handle, with the stored elements.

        Raises `JobError` when they were stored with another distribution, or cannot be converted or read.
        """
        handle = self._declare(
            descriptor,
            distribution,
            lambda stored: OperatorListState(descriptor, list(map(descriptor.serializer.loads, stored))),
        )
        self._packers[descriptor.name] = lambda: self._packed_list(descriptor, handle.get())
        return handle

    def declare_broadcast(
        self, descriptor: MapStateDescriptor, make: Callable[[Sequence[bytes]], BroadcastState]
    ) -> BroadcastState:
        """Declare a broadcast state, whose name must be new; `make` gives its handle, from the stored entries.

        Raises `JobError` as `declare`.
        """
        handle = self._declare(descriptor, Distribution.BROADCAST, make)
        self._packers[descriptor.name] = handle.packed
        return handle

    def _declare(
        self, descriptor: StateDescriptor, distribution: Distribution, make: Callable[[Sequence[bytes]], SomeHandle]
    ) -> SomeHandle:
        name = descriptor.name
        declared = DeclaredLists(self._operator, {name: (descriptor, distribution)})
        (restored,) = declared.restored([one for one in self._stored if one.name == name])
        try:
            handle = make(restored.elements)
        except Exception as exc:
            raise self._fault(name, "cannot be read", exc) from exc
        self._declared[name] = (descriptor, distribution)
        self._schemas[name] = StateSchema.of(descriptor).to_plain()
        self._serializers[name] = self._checks.of(descriptor).serializer
        self._sealed = (*self._sealed, restored)
        return handle

    def declared(self, *, allow_non_restored: bool) -> DeclaredLists:
        """The declarations that stored lists are compared with."""
        return DeclaredLists(self._operator, self._declared, allow_non_restored)

    @property
    def schemas(self) -> dict[str, Any]:
        """The schema and the distribution of each declared list, by name."""
        return {name: (self._schemas[name], distribution) for name, (_, distribution) in self._declared.items()}

    @property
    def restored(self) -> OperatorState:
        """The lists sealed last, or, before an epoch is sealed, those that the function began with."""
        return self._sealed

    def packed(self) -> OperatorState:
        """The current lists, serialized. Raises `JobError` for wrong values, and for too many bytes."""
        found = []
        for name, (_, distribution) in self._declared.items():
            try:
                elements = self._packers[name]()
            except Exception as exc:
                raise self._fault(name, "cannot be stored", exc) from exc
            found.append(OperatorList(self._schemas[name], distribution, elements))
        check_size(found, self._owner)
        return tuple(found)

    def _packed_list(self, descriptor: StateDescriptor, elements: list[Any]) -> tuple[bytes, ...]:
        dumps = self._serializers[descriptor.name].dumps
        try:
            return tuple(map(dumps, elements))
        except SerializationError:
            return tuple(self._packed_element(descriptor, element) for element in elements)

    def _packed_element(self, descriptor: StateDescriptor, element: Any) -> bytes:
        """The bytes of an element. An element that does not have the declared type may stay if it was stored like that,
        because the whole list is written each time."""
        try:
            return self._serializers[descriptor.name].dumps(element)
        except SerializationError:
            packed = descriptor.serializer.dumps(element)
            if any(packed in one.elements for one in self._sealed if one.name == descriptor.name):
                return packed
            raise

    def sealed(self, state: OperatorState) -> None:
        """These lists are durable."""
        self._sealed = state

    def _fault(self, name: str, how: str, exc: Exception) -> JobError:
        return JobError(f"{self._owner}: an element of operator state {name!r} {how}: {described(exc)}")
