"""Defects of parts: entries out of order, at the wrong place, or missing, and parts that move. Each names its law."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from qstate.backends import ValueParts
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace
from tests.defects.backends.sound import ReaderProxy, WithReaders


class PartsProxy(ValueParts):
    """Passes everything on to the parts of a sound backend."""

    def __init__(self, reader: PartialReader, where: tuple[StateDescriptor, Namespace, Key]) -> None:
        self.reader = reader
        self.where = where
        self.inner = reader.sound(where)
        self.epoch = self.inner.epoch

    def value(self) -> bytes | None:
        return self.inner.value()

    def elements(self) -> Iterator[bytes]:
        return self.inner.elements()

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.entries(after)

    def entry(self, map_key: bytes) -> bytes | None:
        return self.inner.entry(map_key)


class PartialReader(ReaderProxy):
    """Gives parts of the class `kind`."""

    kind: ClassVar[type[PartsProxy]] = PartsProxy

    def sound(self, where: tuple[StateDescriptor, Namespace, Key]) -> ValueParts:
        return self.inner.parts(*where)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        return self.kind(self, (descriptor, namespace, key))


class EntriesInReverse(WithReaders):
    """The entries of a map come with the largest map key first."""

    caught_by = "backend.parts.live_parts_make_what_a_get_gives"

    class proxy(PartialReader):
        class kind(PartsProxy):
            def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
                return reversed(list(super().entries(after)))


class EntriesFromAPlaceOn(WithReaders):
    """The entry at the place after which a page begins comes again."""

    caught_by = "backend.parts.entries_go_on_after_any_map_key"

    class proxy(PartialReader):
        class kind(PartsProxy):
            def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
                found = self.inner.entry(after) if after is not None else None
                if after is not None and found is not None:
                    yield after, found
                yield from super().entries(after)


class NullEntriesAreMissing(WithReaders):
    """An entry whose value is None is none."""

    caught_by = "backend.parts.an_entry_whose_value_is_none_is_an_entry"

    class proxy(PartialReader):
        class kind(PartsProxy):
            def entry(self, map_key: bytes) -> bytes | None:
                found = super().entry(map_key)
                return None if found == b"\xc0" else found


class PartsOfTheNewest(WithReaders):
    """Each part is read as of the newest epoch, also where others of the value were read before."""

    caught_by = "backend.parts.open_parts_show_no_later_epoch"

    class proxy(PartialReader):
        class kind(PartsProxy):
            def elements(self) -> Iterator[bytes]:
                return self.reader.sound(self.where).elements()

            def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
                return self.reader.sound(self.where).entries(after)

            def entry(self, map_key: bytes) -> bytes | None:
                return self.reader.sound(self.where).entry(map_key)
