"""Defects of scans: keys that are missing, come twice or out of order, and scans that move. Each names its law."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from qstate.backends import Isolation, Scanned, Selection, StateReader, StateScan
from qstate.backends.heap.backend import HeapBackend
from qstate.backends.heap.table import HeapTable
from qstate.backends.key_index import KeyIndex
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode, TooLarge
from qstate.keys import Key, encode_key
from tests.defects.backends.sound import DictBackend, ReaderProxy, TableProxy

Place = tuple[bytes, bytes]


class ScanProxy(StateScan):
    """Passes everything on to the scan of a sound backend."""

    def __init__(self, inner: StateScan, descriptor: StateDescriptor, reader: ReaderProxy) -> None:
        self.inner = inner
        self.descriptor = descriptor
        self.reader = reader
        self.epoch = inner.epoch

    def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
        return self.inner.entries(group, after, selection)

    def close(self) -> None:
        self.inner.close()


class ScanningReader(ReaderProxy):
    """Gives scans of the class that the backend names."""

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        proxy: type[ScanProxy] = self.backend.scans
        return proxy(self.inner.scan(descriptor), descriptor, self)


class WithScans(DictBackend):
    """Gives scans of the class `scans`."""

    scans: ClassVar[type[ScanProxy]] = ScanProxy

    def reader(self, isolation: Isolation) -> StateReader:
        return ScanningReader(super().reader(isolation), self, isolation)


class ScanOfTheNewest(WithScans):
    """A committed scan reads each key group as of the newest final epoch."""

    caught_by = "backend.scans.a_committed_scan_shows_one_epoch"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            newest = self.reader.inner.scan(self.descriptor)
            yield from newest.entries(group, after, selection)
            newest.close()


class CommittedScanIsLive(WithScans):
    """A committed scan shows what the running epoch has published."""

    caught_by = "backend.scans.a_committed_scan_shows_one_epoch"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            live = DictBackend.reader(self.reader.backend, Isolation.LIVE).scan(self.descriptor)
            yield from live.entries(group, after, selection)


class PublishedIsMissed(WithScans):
    """A live scan shows the last commit alone."""

    caught_by = "backend.scans.a_live_scan_shows_what_is_published"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            committed = DictBackend.reader(self.reader.backend, Isolation.COMMITTED).scan(self.descriptor)
            yield from committed.entries(group, after, selection)
            committed.close()


class EpochOfTheCommit(WithScans):
    """A live scan has the number of the last final epoch."""

    caught_by = "backend.scans.a_live_scan_shows_what_is_published"

    class scans(ScanProxy):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.epoch = self.reader.backend._final.epoch


class SomeKeysTwice(WithScans):
    """The first key of a key group comes twice."""

    caught_by = "backend.scans.a_live_scan_shows_what_is_published"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            for index, entry in enumerate(super().entries(group, after, selection)):
                yield from [entry, entry] if index == 0 else [entry]


class KeysBeforeNamespaces(WithScans):
    """The order is that of the keys, and of the namespaces of each key."""

    caught_by = "backend.scans.a_scan_goes_on_after_any_place"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            found = super().entries(group, None, selection)
            places = sorted(found, key=lambda entry: (entry.key, entry.namespace))
            start = None if after is None else (after[1], after[0])
            return (entry for entry in places if start is None or (entry.key, entry.namespace) > start)


class LongerKeysLast(WithScans):
    """Keys come by the length of their bytes first."""

    caught_by = "backend.scans.a_scan_goes_on_after_any_place"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            found = super().entries(group, after, selection)
            return iter(sorted(found, key=lambda entry: (entry.namespace, len(entry.key), entry.key)))


class AfterIsInclusive(WithScans):
    """A scan goes on with the place itself."""

    caught_by = "backend.scans.a_scan_goes_on_after_any_place"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            found = super().entries(group, None, selection)
            return (entry for entry in found if after is None or entry[:2] >= after)


class AfterMustBeStored(WithScans):
    """A scan that goes on looks for the place, and begins again where there is none."""

    caught_by = "backend.scans.a_scan_goes_on_after_any_place"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            found = list(super().entries(group, None, selection))
            places = [entry[:2] for entry in found]
            return iter(found[places.index(after) + 1 :] if after in places else found)


class PrefixIgnored(WithScans):
    """Every key of the namespace is visited."""

    caught_by = "backend.scans.a_scan_visits_the_selected_keys"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            return super().entries(group, after, selection._replace(prefix=b""))


class PrefixNeedsANamespace(WithScans):
    """The prefix counts only when there is one namespace."""

    caught_by = "backend.scans.a_scan_visits_the_selected_keys"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            wanted = selection if selection.namespace is not None else selection._replace(prefix=b"")
            return super().entries(group, after, wanted)


class VoidIsEveryNamespace(WithScans):
    """The void namespace selects all."""

    caught_by = "backend.scans.a_scan_visits_the_selected_keys"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            void = selection.namespace == encode_key(None)
            return super().entries(group, after, selection._replace(namespace=None) if void else selection)


class ValuesAnyhow(WithScans):
    """Values come also when only the keys are wanted."""

    caught_by = "backend.scans.a_scan_of_keys_reads_no_values"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            return super().entries(group, after, selection._replace(values=True))


class TooLargeIsTheEnd(WithScans):
    """The visit ends before the first value that is too large."""

    caught_by = "backend.scans.a_value_that_is_too_large_ends_no_scan"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            for entry in super().entries(group, after, selection):
                if entry.value is FailureCode.TOO_LARGE:
                    return
                yield entry


class TooLargeIsRaised(WithScans):
    """The visit raises at a value that is too large."""

    caught_by = "backend.scans.a_value_that_is_too_large_ends_no_scan"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            for entry in super().entries(group, after, selection):
                if entry.value is FailureCode.TOO_LARGE:
                    raise TooLarge(field="answer", limit=selection.most_bytes)
                yield entry


class ValuesOfAnySize(WithScans):
    """Every value comes whole."""

    caught_by = "backend.scans.a_value_that_is_too_large_ends_no_scan"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            return super().entries(group, after, selection._replace(most_bytes=1 << 40))


class BadValuesAreLeftOut(WithScans):
    """A key whose result cannot be computed is not visited."""

    caught_by = "backend.scans.one_bad_value_spoils_no_scan"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            found = super().entries(group, after, selection)
            return (entry for entry in found if not isinstance(entry.value, FailureCode))


class DeletedKeysAreVisited(WithScans):
    """A key that was deleted is visited, with no value."""

    caught_by = "backend.scans.a_scan_of_a_state_without_values_visits_nothing"

    class proxy(TableProxy):
        def delete(self, key: Key) -> None:
            super().delete(key)
            self.backend.__dict__.setdefault("gone", set()).add((self.descriptor.name, encode_key(key)))

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            yield from super().entries(group, after, selection)
            for name, key in self.reader.backend.__dict__.get("gone", ()):
                if name == self.descriptor.name and group == 0:
                    yield Scanned(encode_key(None), key, None)

    def table(self, descriptor: StateDescriptor, namespace: Any = None) -> Any:
        return self.proxy(super().table(descriptor, namespace), descriptor, self)


class RestoredStateIsNotFinal(WithScans):
    """A committed scan finds nothing before the first commit after a restore."""

    caught_by = "backend.scans.a_committed_scan_shows_restored_state"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            restored = self.reader.backend.__dict__.get("restored", -1)
            return iter(()) if self.epoch == restored else super().entries(group, after, selection)

    def restore(self, epoch: int, changes: Any) -> None:
        super().restore(epoch, changes)
        self.__dict__["restored"] = epoch


class CrashesWhenClosed(WithScans):
    """A scan of a closed backend fails as an attribute that is not there does."""

    caught_by = "backend.scans.a_scan_of_a_closed_backend_crashes_nothing"

    class scans(ScanProxy):
        def entries(self, group: int, after: Place | None, selection: Selection) -> Iterator[Scanned]:
            if self.reader.backend.__dict__.get("ended"):
                raise AttributeError("'NoneType' object has no attribute 'entries'")
            return super().entries(group, after, selection)

    def close(self) -> None:
        super().close()
        self.__dict__["ended"] = True


class RacingScan(ScanOfTheNewest):
    """The same, while the writer works."""

    caught_by = "backend.concurrent_scans.a_committed_scan_is_of_one_final_epoch_however_threads_interleave"


class KeysOfTheFinalEpochAlone(HeapBackend):
    """A committed scan of the heap keeps the keys of its epoch, and reads values of whatever epoch is final."""

    caught_by = "backend.concurrent_scans.a_visit_goes_on_after_the_writer_has_moved"

    def frozen_keys(self, descriptor: StateDescriptor) -> KeyIndex[HeapTable]:
        return KeyIndex(self._final, ((table, table.live_keys()) for table in self._tables_of(descriptor)))


class UncommittedIsMissed(PublishedIsMissed):
    """A live scan misses what was published since the last final epoch, while the writer works."""

    caught_by = "backend.concurrent_scans.a_live_scan_misses_no_key_that_stays"


class RollbackTakesAwayFirst(HeapBackend):
    """A rollback removes what the epoch has written, and then puts back what was committed."""

    caught_by = "backend.concurrent_scans.a_rollback_hides_no_committed_key"

    def rollback(self) -> None:
        for table in self._touched:
            table.live.clear()
        super().rollback()
