"""Defects that show only at a certain number, size or name. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from qstate.backends import UNBOUNDED, BackendContext, ByteStore, Change, Isolation, ReadResult, StateReader
from qstate.backends.byte_stores.layout import stop_of
from qstate.descriptors import StateDescriptor
from qstate.errors import JobError
from qstate.keys import Key, KeyGroupRange, Namespace, decode_key
from tests.defects.backends.epochs import Telling
from tests.defects.backends.sound import (
    DictBackend,
    DictStore,
    PlainBackend,
    PlainTable,
    ReaderProxy,
    TableProxy,
    WithReaders,
    WithTables,
)

_MOST_BYTES = 4 * 1024 * 1024


class ChangeLostInALargeCommit(Telling):
    """A commit loses its 20,000th change, between two files."""

    caught_by = "backend.scale.a_large_epoch_is_told_undone_and_restored_whole"

    def altered(self, changes: list[Change]) -> list[Change]:
        return changes[:19_999] + changes[20_000:]


class ChangeLostInALargeRestore(DictBackend):
    """A restore loads changes in parts of 20,000, and loses the first of each part."""

    caught_by = "backend.scale.a_large_epoch_is_told_undone_and_restored_whole"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        numbered = enumerate(changes, 1)
        super().restore(epoch, (change for number, change in numbered if number % 20_000))


class NamespacesUntold(Telling):
    """A commit has the changes of sixty-four namespaces, the number of bits in its index."""

    caught_by = "backend.scale.many_namespaces_are_kept_told_and_restored"

    def altered(self, changes: list[Change]) -> list[Change]:
        indexed = dict.fromkeys(islice(dict.fromkeys(change.namespace for change in changes), 64))
        return [change for change in changes if change.namespace in indexed]


class NamespacesNotInEntries(DictBackend):
    """`entries` returns sixty-four namespaces at most."""

    caught_by = "backend.scale.many_namespaces_are_kept_told_and_restored"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        indexed: set[bytes] = set()
        for change in super().entries(key_groups):
            if len(indexed) < 64:
                indexed.add(change.namespace)
            if change.namespace in indexed:
                yield change


class ThirtyTwoStates(DictBackend):
    """Each state is one bit of a word, so there can be thirty-two."""

    caught_by = "backend.scale.many_states_are_kept_told_and_restored"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        if descriptor.name not in self._states and len(self._states) >= 32:
            raise JobError("too many states")
        return super().table(descriptor, namespace)


class ValuesCut(WithTables):
    """A value is cut at four MiB."""

    caught_by = "backend.scale.values_of_many_megabytes_are_kept_told_and_restored"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            super().put(key, value[:_MOST_BYTES] if isinstance(value, bytes) else value)


class ElementsCut(WithTables):
    """An element is cut at four MiB."""

    caught_by = "backend.scale.values_of_many_megabytes_are_kept_told_and_restored"

    class proxy(TableProxy):
        def list_add(self, key: Key, values: Sequence[Any]) -> None:
            super().list_add(key, [value[:_MOST_BYTES] if isinstance(value, bytes) else value for value in values])


class StateNamesCut(DictBackend):
    """State names are kept in columns of 64 characters."""

    caught_by = "backend.isolation.names_that_differ_in_their_last_letter_are_different_states"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return super().table(replace(descriptor, name=descriptor.name[:64]), namespace)


def _as_float(key: Any) -> Any:
    """Integers beyond 2**53 as the nearest float says them."""
    if isinstance(key, tuple):
        return tuple(map(_as_float, key))
    return min(int(float(key)), 2**63 - 1) if isinstance(key, int) else key


class KeysAsFloats(PlainBackend):
    """Integer keys go through JSON, whose numbers are floats."""

    caught_by = "backend.isolation.neighbouring_integers_are_different_keys"

    class _Table(PlainTable):
        def _place(self, key: Key) -> tuple[str, bytes, bytes]:
            return super()._place(_as_float(key))

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        super().table(descriptor, namespace)
        return self._Table(self, descriptor, namespace)


class MapKeysAsFloats(WithTables):
    """The integer keys of maps go through JSON, whose numbers are floats."""

    caught_by = "backend.isolation.neighbouring_integers_are_different_keys"

    class proxy(TableProxy):
        def map_get(self, key: Key, map_key: Key) -> Any:
            return super().map_get(key, _as_float(map_key))

        def map_put(self, key: Key, map_key: Key, value: Any) -> None:
            super().map_put(key, _as_float(map_key), value)

        def map_remove(self, key: Key, map_key: Key) -> None:
            super().map_remove(key, _as_float(map_key))


class LastKeysNotInEntries(DictBackend):
    """The end of a range is the prefix and sixteen bytes 0xff, which some keys come after."""

    caught_by = "backend.isolation.keys_of_the_last_bytes_are_told_and_read"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return (change for change in super().entries(key_groups) if b"\xff" * 16 not in change.key)


class LastMapKeysNotScanned(DictBackend):
    """A scan ends before map keys of 0xff bytes."""

    caught_by = "backend.isolation.keys_of_the_last_bytes_are_told_and_read"

    class _Store(DictStore):
        def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
            return ((key, value) for key, value in super().scan(start, stop) if not key.endswith(b"\xff" * 255))

    def open_store(self, context: BackendContext) -> ByteStore:
        self.context = context
        return self._Store()


class ShortKeys(DictBackend):
    """The store has keys of 511 bytes at most, as LMDB does."""

    caught_by = "backend.byte_stores.long_keys_and_values_come_back_as_they_were"

    class _Store(DictStore):
        def write(self, batch: Mapping[bytes, bytes | None]) -> None:
            for key in batch:
                if len(key) > 511:
                    raise ValueError("MDB_BAD_VALSIZE")
            super().write(batch)

    def open_store(self, context: BackendContext) -> ByteStore:
        self.context = context
        return self._Store()


class KeysCut(ShortKeys):
    """The store takes the first 100,000 bytes of a key."""

    caught_by = "backend.byte_stores.long_keys_and_values_come_back_as_they_were"

    class _Store(DictStore):
        def get(self, key: bytes) -> bytes | None:
            return super().get(key[:100_000])

        def write(self, batch: Mapping[bytes, bytes | None]) -> None:
            super().write({key[:100_000]: value for key, value in batch.items()})


class DirectoryInAShell(DictBackend):
    """The directory's path is cut at its first space, as on a command line."""

    caught_by = "backend.life_cycle.a_directory_may_have_any_name"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        if len(str(context.directory).split()) > 1:
            raise FileNotFoundError(str(context.directory).split()[0])


class DirectoryInASCII(DictBackend):
    """The directory's name loses characters beyond ASCII."""

    caught_by = "backend.life_cycle.a_directory_may_have_any_name"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        str(context.directory).encode("ascii")


class MapItemsReadLate(WithTables):
    """`map_items` copies the keys and reads each value later."""

    caught_by = "backend.tables.map_items_do_not_show_later_writes"

    class proxy(TableProxy):
        def map_items(self, key: Key) -> Any:
            keys = [map_key for map_key, _ in super().map_items(key)]
            return ((map_key, self.inner.map_get(key, map_key)) for map_key in keys)


class MapItemsInPages(WithTables):
    """`map_items` reads ten entries at a time, on demand."""

    caught_by = "backend.tables.map_items_outlive_the_map"

    class proxy(TableProxy):
        def map_items(self, key: Key) -> Any:
            first = list(super().map_items(key))[:10]
            yield from first
            yield from list(self.inner.map_items(key))[10:]


class ListItemsReadLate(WithTables):
    """`list_items` reads each element by its place, when it is asked for."""

    caught_by = "backend.tables.list_items_are_the_list_as_it_was"

    class proxy(TableProxy):
        def list_items(self, key: Key) -> Any:
            place = 0
            while place < len(found := self.inner.get(key) or []):
                yield found[place]
                place += 1


class UnwrittenEntriesLeftOut(WithTables):
    """`map_items` reads large maps from the last commit."""

    caught_by = "backend.tables.the_items_of_a_large_map_agree_with_it"

    class proxy(TableProxy):
        def map_items(self, key: Key) -> Any:
            found = dict(super().map_items(key))
            if len(found) > 1000:
                prefix = self.inner.locate(key)[2]
                stored = self.backend._committed.snapshot.scan(prefix, stop_of(prefix))
                found = {decode_key(entry[len(prefix) :]): self.inner._load(data) for entry, data in stored}
            return iter(list(found.items()))


class ListItemsOfTheNextEpoch(WithTables):
    """`list_items` reads a thousand elements at a time, on demand."""

    caught_by = "backend.tables.list_items_outlive_the_list"

    class proxy(TableProxy):
        def list_items(self, key: Key) -> Any:
            yield from list(self.inner.list_items(key))[:1000]
            yield from list(self.inner.list_items(key))[1000:]


class RestoreKeepsOneGroupMore(DictBackend):
    """The end of a key-group range is taken for its last group."""

    caught_by = "backend.restore.restore_keeps_its_own_key_groups_only"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        own = self._key_groups
        self._key_groups = KeyGroupRange(own.start, min(own.stop + 1, self.context.max_parallelism))
        super().restore(epoch, changes)


class ReadersOfTheEmptyStore(WithReaders):
    """A restore makes a new store, and readers that were opened before it stay with the old one."""

    caught_by = "backend.restore.what_was_opened_before_a_restore_shows_it"

    class proxy(ReaderProxy):
        def __init__(self, inner: StateReader, backend: Any, isolation: Isolation) -> None:
            super().__init__(inner, backend, isolation)
            self.opened = backend.__dict__.get("restores", 0)

        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            if self.opened != self.backend.__dict__.get("restores", 0):
                values = [None] * len(keys)
            return ReadResult(epoch, values)

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, changes)
        self.__dict__["restores"] = 1


class RollbackOfNothing(DictBackend):
    """A rollback that finds nothing to undo does nothing: the epoch that failed stays open."""

    caught_by = "backend.epochs.a_rollback_without_writes_changes_nothing"

    def rollback(self) -> None:
        self._check_open()
        if self._touched:
            super().rollback()


class CommittedInParts(WithReaders):
    """A committed query of many keys is answered five hundred at a time, each part as of the newest epoch."""

    caught_by = "backend.concurrent_reads.a_committed_answer_of_a_thousand_keys_is_of_one_epoch"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            if self.isolation is Isolation.LIVE or len(keys) <= 500:
                return super().get(descriptor, namespace, keys, most_bytes)
            epoch, values = super().get(descriptor, namespace, keys[:500], most_bytes)
            return ReadResult(epoch, [*values, *self.get(descriptor, namespace, keys[500:], most_bytes).values])
