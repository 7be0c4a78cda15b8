"""Defects of tables: writes that are lost, changed or misplaced. Each names the law that catches it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from qstate.backends import BackendContext, ByteStore
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import JobError
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from tests.defects.backends.sound import DictBackend, DictStore, TableProxy, WithTables

_CONTAINERS = (StateKind.LIST, StateKind.MAP)


class LostWrite(WithTables):
    """A put that follows a delete of the same key within the epoch is lost."""

    caught_by = "backend.tables.programs_of_writes_leave_what_a_dict_would"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            gone = self.backend.__dict__.setdefault("gone", set())
            if (self.descriptor.name, self.inner.namespace, key) not in gone:  # type: ignore[attr-defined]
                super().put(key, value)

        def delete(self, key: Key) -> None:
            if self.inner.get(key) is not None:
                gone = self.backend.__dict__.setdefault("gone", set())
                gone.add((self.descriptor.name, self.inner.namespace, key))  # type: ignore[attr-defined]
            super().delete(key)

    def commit(self, epoch: int) -> Any:
        self.__dict__["gone"] = set()
        return super().commit(epoch)


class StaleCache(WithTables):
    """A table caches what it read, and a delete leaves the cache unchanged."""

    caught_by = "backend.tables.delete_removes_a_committed_value"

    class proxy(TableProxy):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.cache: dict[Key, Any] = {}

        def get(self, key: Key) -> Any:
            if key not in self.cache:
                self.cache[key] = super().get(key)
            return self.cache[key]

        def put(self, key: Key, value: Any) -> None:
            super().put(key, value)
            self.cache[key] = value


class NullsLookAbsent(WithTables):
    """A map has an entry if its value is not None."""

    caught_by = "backend.tables.a_null_in_a_map_is_an_entry"

    class proxy(TableProxy):
        def map_contains(self, key: Key, map_key: Key) -> bool:
            return self.inner.map_get(key, map_key) is not None


class NullsAreNotRemoved(WithTables):
    """`map_remove` looks for a value first, and finds none."""

    caught_by = "backend.tables.a_null_in_a_map_is_an_entry"

    class proxy(TableProxy):
        def map_remove(self, key: Key, map_key: Key) -> None:
            if self.inner.map_get(key, map_key) is not None:
                super().map_remove(key, map_key)


class NullsRemoveTheEntry(WithTables):
    """A put of None is a removal."""

    caught_by = "backend.tables.a_null_in_a_map_is_an_entry"

    class proxy(TableProxy):
        def map_put(self, key: Key, map_key: Key, value: Any) -> None:
            if value is None:
                self.inner.map_remove(key, map_key)
            else:
                super().map_put(key, map_key, value)


class RepeatedKeysReadOnce(WithTables):
    """`get_many` has one value for each different key."""

    caught_by = "backend.tables.get_many_is_get_of_each_key"

    class proxy(TableProxy):
        def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
            return super().get_many(list(dict.fromkeys(keys)))


class CommittedValuesRead(WithTables):
    """`get_many` reads past the writes of the running epoch."""

    caught_by = "backend.tables.get_many_is_get_of_each_key"

    class proxy(TableProxy):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.written: set[Key] = set()

        def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
            return [None if key in self.written else self.get(key) for key in keys]

        def put(self, key: Key, value: Any) -> None:
            self.written.add(key)
            super().put(key, value)


class ValuesInTheStoresOrder(DictBackend):
    """The byte store returns the values of many keys in the order of its keys."""

    caught_by = "backend.byte_stores.get_many_is_get_of_each_key"

    def open_store(self, context: BackendContext) -> ByteStore:
        return SortedReads()


class SortedReads(DictStore):
    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return super().get_many(sorted(keys))


class NamespaceIgnored(DictBackend):
    """All namespaces share one table."""

    caught_by = "backend.isolation.namespaces_do_not_see_each_other"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return super().table(descriptor, None)


class EqualNamespacesShared(DictBackend):
    """Tables are kept in a dict by their namespaces, in which True is 1."""

    caught_by = "backend.isolation.namespaces_that_are_equal_in_a_language_do_not_see_each_other"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        self.tables: dict[Any, Any] = getattr(self, "tables", {})
        return self.tables.setdefault((descriptor.name, namespace), super().table(descriptor, namespace))


class EqualNamespacesSharedUntilStored(DictBackend):
    """Live reads look up what is written and not stored yet in a dict by namespaces, in which True is 1."""

    caught_by = "backend.isolation.namespaces_that_are_equal_in_a_language_do_not_see_each_other"

    def find(self, descriptor: StateDescriptor, namespace: Namespace) -> Any:
        return self._tables.get((descriptor.name, namespace))


class MomentsLoseTheirMicroseconds(WithTables):
    """Keys are kept in whole seconds."""

    caught_by = "backend.isolation.keys_of_every_type_are_told_and_read"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            return super().get(key.replace(microsecond=0) if isinstance(key, datetime) else key)

        def put(self, key: Key, value: Any) -> None:
            super().put(key.replace(microsecond=0) if isinstance(key, datetime) else key, value)


class StateNameFolded(DictBackend):
    """State names lose case, trailing digits and NULs, as file names may."""

    caught_by = "backend.isolation.states_do_not_see_each_other"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return super().table(replace(descriptor, name=descriptor.name.lower().rstrip("2\0")), namespace)


class SharedByInstances(WithTables):
    """The last put is kept on the class, for all backends of the process."""

    caught_by = "backend.isolation.two_instances_do_not_see_each_other"
    last: dict[Any, Any] = {}  # noqa: RUF012  # the defect

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            return SharedByInstances.last.get((self.descriptor.name, key)) if found is None else found

        def put(self, key: Key, value: Any) -> None:
            SharedByInstances.last[self.descriptor.name, key] = value
            super().put(key, value)


class KindForgotten(DictBackend):
    """A second descriptor of another kind gets the table of the first one."""

    caught_by = "backend.registration.a_name_that_comes_again_with_another_kind_is_refused"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        try:
            return super().table(descriptor, namespace)
        except JobError:
            return super().table(self._states[descriptor.name].descriptor, namespace)


class SerializerIgnored(DictBackend):
    """The table ignores the descriptor's serializer and writes MessagePack."""

    caught_by = "backend.registration.the_descriptors_serializer_is_the_one_that_is_used"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return super().table(replace(descriptor, serializer=MessagePackSerializer()), namespace)


class NoneStored(WithTables):
    """A put of None does nothing."""

    caught_by = "backend.registration.none_is_not_a_value"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            if value is not None:
                super().put(key, value)


class EmptyListIsAValue(WithTables):
    """An emptied list reads as an empty list instead of None."""

    caught_by = "backend.tables.an_empty_list_and_an_empty_map_are_no_value"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            return [] if found is None and self.descriptor.kind is StateKind.LIST else found


class ListAddedInFront(WithTables):
    """Elements are added at the wrong end."""

    caught_by = "backend.tables.list_add_adds_at_the_end_in_order"

    class proxy(TableProxy):
        def list_add(self, key: Key, values: Sequence[Any]) -> None:
            self.inner.put(key, [*values, *(self.inner.get(key) or [])])


class ListSortedByText(WithTables):
    """Elements are stored under numbers that sort as text: 10 comes before 9."""

    caught_by = "backend.tables.a_long_list_keeps_its_order"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            if self.descriptor.kind is not StateKind.LIST or not found:
                return found
            return [found[number] for number in sorted(range(len(found)), key=str)]


class PutManyKeepsTheFirst(WithTables):
    """Of equal keys the first one counts."""

    caught_by = "backend.tables.of_equal_keys_put_many_keeps_the_last"

    class proxy(TableProxy):
        def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
            super().put_many(keys[::-1], values[::-1])


class PutManyInParts(WithTables):
    """A batch is cut after 4096 keys."""

    caught_by = "backend.tables.put_many_takes_many_keys_at_once"

    class proxy(TableProxy):
        def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
            super().put_many(keys[:4096], values[:4096])


class MapPutReplacesTheMap(WithTables):
    """Writing one entry of a committed map drops the others that were not read yet."""

    caught_by = "backend.tables.a_map_entry_changes_alone"

    class proxy(TableProxy):
        def map_put(self, key: Key, map_key: Key, value: Any) -> None:
            self.inner.put(key, {map_key: value})


class MapItemsAlive(WithTables):
    """`map_items` walks over the map as it changes."""

    caught_by = "backend.tables.map_items_do_not_show_later_writes"

    class proxy(TableProxy):
        def map_items(self, key: Key) -> Any:
            seen: set[Any] = set()
            while True:
                left = [pair for pair in self.inner.map_items(key) if (type(pair[0]), pair[0]) not in seen]
                if not left or len(seen) > 20:
                    return
                seen.add((type(left[0][0]), left[0][0]))
                yield left[0]


class NaNIsNothing(WithTables):
    """A value that is not equal to itself reads as None."""

    caught_by = "backend.tables.get_gives_what_was_put"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            found = super().get(key)
            return found if found == found else None  # the defect


class EmptyKeyIsNoKey(WithTables):
    """An empty or zero key reads as a missing one."""

    caught_by = "backend.tables.get_gives_what_was_put"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            if key:
                super().put(key, value)


class IntegersOf32Bits(WithTables):
    """Large integers lose their upper half in the store."""

    caught_by = "backend.tables.get_gives_what_was_put"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            large = type(value) is int and not -(2**31) <= value < 2**63
            super().put(key, value % 2**31 if large else value)


class UnicodeNormalised(WithTables):
    """Text keys are normalized, so two keys become one."""

    caught_by = "backend.isolation.keys_that_look_alike_are_different_keys"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            return super().get(unicodedata.normalize("NFC", key) if isinstance(key, str) else key)

        def put(self, key: Key, value: Any) -> None:
            super().put(unicodedata.normalize("NFC", key) if isinstance(key, str) else key, value)


class TextIsBytes(WithTables):
    """Text and bytes of the same letters are one key."""

    caught_by = "backend.isolation.keys_that_look_alike_are_different_keys"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            return super().get(key.encode() if isinstance(key, str) else key)

        def put(self, key: Key, value: Any) -> None:
            super().put(key.encode() if isinstance(key, str) else key, value)


class InPlaceChangeIgnored(WithTables):
    """A put of the stored object itself counts as no change."""

    caught_by = "backend.tables.a_value_changed_in_place_counts_when_it_is_put_again"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            if value is not self.inner.get(key):
                super().put(key, value)
