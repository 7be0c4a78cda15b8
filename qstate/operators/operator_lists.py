"""Operator state handles: named lists of a subtask, independent of keys.

Rules of this module: it keeps the elements as Python objects while an epoch runs, and serializes them when the epoch is
sealed. `qstate.checkpoint.log.operator_state` stores them and distributes them to subtasks. Neither the backend nor
queries use them.

    declare* -> fill -> per epoch: the function's calls, packed() -> sealed() ... ; abandoned epoch: rollback()
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qstate.checkpoint.log.operator_state import DeclaredLists, Distribution, OperatorList, OperatorState, check_size
from qstate.descriptors import ListStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.evolution import StateSchema
from qstate.evolution.admission import admission_of
from qstate.evolution.write_checks import WriteChecks
from qstate.operators.user_traceback import described
from qstate.serializers import Serializer

__all__ = ["OperatorListState", "OperatorLists"]


class OperatorListState:
    """A list of the subtask, independent of the current key. Usable after `open` has returned."""

    __slots__ = ("_admit", "_elements", "_name")

    def __init__(self, name: str, value_type: Any) -> None:
        self._name = name
        self._admit = admission_of(value_type).admit
        self._elements: list[Any] | None = None

    def get(self) -> list[Any]:
        """The elements in their order, in a new list. An element that is changed in place is stored with its change."""
        return list(self._held())

    def add(self, value: Any) -> None:
        """Add one element at the end."""
        self._held().append(self._checked(value, "add()"))

    def add_all(self, values: Iterable[Any]) -> None:
        """Add elements at the end, in their order."""
        self._held().extend([self._checked(value, "add_all()") for value in values])

    def update(self, values: Iterable[Any]) -> None:
        """Replace the elements."""
        held, found = self._held(), [self._checked(value, "update()") for value in values]
        held[:] = found

    def clear(self) -> None:
        """Remove all elements."""
        self._held().clear()

    def fill(self, elements: list[Any]) -> None:
        """For the operator: set the elements."""
        self._elements = elements

    def _held(self) -> list[Any]:
        if self._elements is None:
            raise JobError(
                f"operator state {self._name!r} was used in open(), before it was restored; use it inside "
                "process_element or process_batch"
            )
        return self._elements

    def _checked(self, value: Any, operation: str) -> Any:
        if value is None:
            raise JobError(f"operator state {self._name!r}: {operation} got None, which is not a value")
        return self._admit(value)


class OperatorLists:
    """The operator state of one subtask: the lists that its function declared, and the state that was sealed last."""

    def __init__(self, operator: str, owner: str, checks: WriteChecks) -> None:
        """`owner` is the name of the subtask in errors."""
        self._checks = checks
        self._operator = operator
        self._owner = owner
        self._declared: dict[str, tuple[ListStateDescriptor, Distribution]] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._serializers: dict[str, Serializer] = {}
        self._handles: dict[str, OperatorListState] = {}
        self._sealed: OperatorState = ()

    @property
    def names(self) -> Iterable[str]:
        """The names of the declared lists."""
        return self._handles.keys()

    def declare(self, descriptor: ListStateDescriptor, distribution: Distribution) -> OperatorListState:
        """Declare a list, whose name must be new; returns its handle."""
        self._declared[descriptor.name] = (descriptor, distribution)
        self._schemas[descriptor.name] = StateSchema.of(descriptor).to_plain()
        self._serializers[descriptor.name] = self._checks.of(descriptor).serializer
        handle = self._handles[descriptor.name] = OperatorListState(descriptor.name, descriptor.value_type)
        return handle

    def declared(self, *, allow_non_restored: bool) -> DeclaredLists:
        """The declarations that stored lists are compared with."""
        return DeclaredLists(self._operator, self._declared, allow_non_restored)

    def fill(self, state: OperatorState) -> None:
        """Set all lists, stored in the declared form. Raises `JobError` for an element that the serializer refuses."""
        self._sealed = state
        stored = {one.name: one.elements for one in state}
        for name, handle in self._handles.items():
            loads = self._declared[name][0].serializer.loads
            try:
                handle.fill([loads(element) for element in stored.get(name, ())])
            except Exception as exc:
                raise self._fault(name, "cannot be read", exc) from exc

    def packed(self) -> OperatorState:
        """The current lists, serialized. Raises `JobError` for wrong values, and for too many bytes."""
        found = []
        for name, (descriptor, distribution) in self._declared.items():
            try:
                elements = self._packed_list(descriptor)
            except Exception as exc:
                raise self._fault(name, "cannot be stored", exc) from exc
            found.append(OperatorList(self._schemas[name], distribution, elements))
        check_size(found, self._owner)
        return tuple(found)

    def _packed_list(self, descriptor: ListStateDescriptor) -> tuple[bytes, ...]:
        elements, dumps = self._handles[descriptor.name].get(), self._serializers[descriptor.name].dumps
        try:
            return tuple(map(dumps, elements))
        except SerializationError:
            return tuple(self._packed_element(descriptor, element) for element in elements)

    def _packed_element(self, descriptor: ListStateDescriptor, element: Any) -> bytes:
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
        """These lists are durable: a rollback returns to them from now on."""
        self._sealed = state

    def rollback(self) -> None:
        """Return to the lists sealed last. This also undoes changes of elements in place."""
        if self._handles:
            self.fill(self._sealed)

    def _fault(self, name: str, how: str, exc: Exception) -> JobError:
        return JobError(f"{self._owner}: an element of operator state {name!r} {how}: {described(exc)}")
