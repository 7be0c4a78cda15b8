"""Defects of types: values that come back as others, and undeclared types. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from qstate.backends import Change
from qstate.descriptors import StateDescriptor, StateKind
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from tests.defects.backends.sound import DictBackend, TableProxy, WithTables


def _without_tuples(value: Any) -> Any:
    return [*map(_without_tuples, value)] if isinstance(value, list | tuple) else value


class TuplesBecomeLists(WithTables):
    """From the next epoch on, tuples read as lists, as in JSON."""

    caught_by = "backend.types.a_later_epoch_reads_what_was_written"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            return _without_tuples(found) if self.backend._running > 0 else found


class RecordsBecomeDicts(WithTables):
    """From the next epoch on, an object of a declared class reads as the plain data that is stored of it."""

    caught_by = "backend.types.an_object_of_a_declared_type_reads_the_same_in_every_epoch"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            if found is None or self.backend._running < 1 or self.descriptor.kind is not StateKind.VALUE:
                return found
            return MessagePackSerializer().loads(self.descriptor.serializer.dumps(found))


class PacksByItself(DictBackend):
    """The backend ignores a serializer named `msgpack` and writes plain MessagePack itself."""

    caught_by = "backend.types.what_is_not_of_the_declared_type_is_not_stored"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        if descriptor.serializer.name == MessagePackSerializer.name:
            descriptor = replace(descriptor, serializer=MessagePackSerializer())
        return super().table(descriptor, namespace)


class PacksElementsByItself(DictBackend):
    """The same, for the elements of lists."""

    caught_by = "backend.types.what_would_come_back_as_something_else_is_not_stored"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        if descriptor.kind is StateKind.LIST and descriptor.serializer.name == MessagePackSerializer.name:
            descriptor = replace(descriptor, serializer=MessagePackSerializer())
        return super().table(descriptor, namespace)


class RestoreWritesAnew(DictBackend):
    """A restore decodes each value and encodes it again, in the current form."""

    caught_by = "backend.types.what_was_stored_as_another_type_is_read_and_kept"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, [self._anew(change) for change in changes])

    def _anew(self, change: Change) -> Change:
        state = self._states.get(change.state)
        if state is None or state.descriptor.kind in (StateKind.LIST, StateKind.MAP) or not change.data:
            return change
        serializer = state.descriptor.serializer
        return change._replace(data=serializer.dumps(serializer.loads(change.data)))
