"""Defects of readers, alone and beside the one writer. Each names the law that catches it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from qstate.backends import (
    UNBOUNDED,
    BackendContext,
    ByteSnapshot,
    ByteStore,
    Capability,
    Change,
    HeapBackend,
    Isolation,
    ReadResult,
    StateReader,
)
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import ClosedError, FailureCode, TooLarge
from qstate.keys import Key, Namespace
from tests.defects.backends.sound import (
    ClaimingBackend,
    DictBackend,
    DictSnapshot,
    PlainBackend,
    ReaderProxy,
    WithReaders,
)

Answers = Sequence[bytes | FailureCode | None]


class AnswersSorted(WithReaders):
    """Answers come in the order of the store's keys."""

    caught_by = "backend.live_reads.answers_come_in_the_order_of_the_keys"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            return super().get(descriptor, namespace, sorted(keys, key=repr), most_bytes)


class OneBadKeySpoilsAll(WithReaders):
    """A result that cannot be computed fails the whole answer."""

    caught_by = "backend.live_reads.one_bad_key_spoils_no_other"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = super().get(descriptor, namespace, keys, most_bytes)
            if FailureCode.INTERNAL in found.values:
                raise ValueError("a result cannot be computed")
            return found


class NotFoundIsEmpty(WithReaders):
    """A key without a value is answered with empty bytes."""

    caught_by = "backend.live_reads.what_has_no_value_is_answered_none"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            return ReadResult(epoch, [b"" if value is None else value for value in values])


class ElementsWrapped(WithReaders):
    """The elements of a list are bins even when they are MessagePack already."""

    caught_by = "backend.live_reads.answers_have_the_documented_form"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            return ReadResult(epoch, [self._wrapped(descriptor, value) for value in values])

        def _wrapped(self, descriptor: StateDescriptor, value: Any) -> Any:
            if descriptor.kind is not StateKind.LIST or not isinstance(value, bytes):
                return value
            elements = msgpack.unpackb(value, strict_map_key=False, raw=True)
            return msgpack.packb([msgpack.packb(element) for element in elements])


class CommittedNullsLeftOut(WithReaders):
    """Committed answers have the entries of a map whose value is not None."""

    caught_by = "backend.committed_reads.committed_reads_show_nulls_in_a_map"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            if self.isolation is Isolation.COMMITTED and descriptor.kind is StateKind.MAP:
                values = [self._without_nulls(value) for value in values]
            return ReadResult(epoch, values)

        def _without_nulls(self, answer: Any) -> Any:
            if not isinstance(answer, bytes):
                return answer
            found = msgpack.unpackb(answer, strict_map_key=False)
            return msgpack.packb({key: value for key, value in found.items() if value is not None}) if found else None


class LiveNullsLeftOut(WithReaders):
    """A live answer of a map that has only nulls says that there is no value."""

    caught_by = "backend.live_reads.nulls_in_a_map_are_answered"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            nulls = b"\x81\xa4null\xc0"
            return ReadResult(epoch, [None if value == nulls else value for value in values])


class PublishForgotten(DictBackend):
    """`publish` is not implemented, and writes are held back."""

    caught_by = "backend.live_reads.published_writes_show"

    def publish(self) -> None:
        pass


class LiveEpochOfTheCommit(WithReaders):
    """Live answers carry the epoch of the last commit."""

    caught_by = "backend.live_reads.live_answers_tell_the_running_epoch"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            return ReadResult(
                self.backend._committed.epoch, super().get(descriptor, namespace, keys, most_bytes).values
            )


class UndeclaredCommittedReads(PlainBackend):
    """A request for a committed reader returns a live one."""

    caught_by = "backend.capabilities.an_operation_that_is_not_declared_is_refused"

    def reader(self, isolation: Isolation) -> StateReader:
        return super().reader(Isolation.LIVE)


class CommittedShowsUnsealed(DictBackend):
    """Committed reads are live reads."""

    caught_by = "backend.committed_reads.committed_reads_show_the_last_final_epoch"

    def reader(self, isolation: Isolation) -> StateReader:
        return super().reader(Isolation.LIVE)


class CommittedShowsSealed(DictBackend):
    """Committed reads show a commit at once, before Spark has committed the batch."""

    caught_by = "backend.committed_reads.a_sealed_epoch_does_not_show_before_it_is_final"

    def commit(self, epoch: int) -> Iterator[Change]:
        yield from super().commit(epoch)
        self.finalize(epoch)


class BeginProvesNothing(DictBackend):
    """Only `finalize` makes an epoch final."""

    caught_by = "backend.committed_reads.begin_proves_the_epoch_before_final"

    def begin(self, epoch: int) -> None:
        final = self._final.hold()
        super().begin(epoch)
        self._final = final


class CommittedEpochGoesBack(WithReaders):
    """The committed epoch is that of the last notification, even of an older epoch."""

    caught_by = "backend.committed_reads.finalize_again_or_of_an_older_epoch_does_nothing"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch, values = super().get(descriptor, namespace, keys, most_bytes)
            return ReadResult(self.backend.__dict__.get("told", epoch), values)

    def finalize(self, epoch: int) -> None:
        super().finalize(epoch)
        self.__dict__["told"] = min(epoch, self._committed.epoch)


class CommittedKeyByKey(WithReaders):
    """A committed answer looks up the newest final epoch again for each key."""

    caught_by = "backend.concurrent_reads.a_committed_answer_does_not_move_while_it_is_made"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = [super(CommittedKeyByKey.proxy, self).get(descriptor, namespace, [key]) for key in keys]
            values: list[bytes | FailureCode | None] = [answer.values[0] for answer in found]
            return ReadResult(found[0].epoch if found else super().get(descriptor, namespace, []).epoch, values)


class RacingSnapshot(WithReaders):
    """The final epoch's number is read before its values, without a lock."""

    caught_by = "backend.concurrent_reads.committed_answers_are_of_one_final_epoch_however_threads_interleave"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            epoch = super().get(descriptor, namespace, []).epoch
            time.sleep(0)
            return ReadResult(epoch, super().get(descriptor, namespace, keys, most_bytes).values)


class HeapClaimsSnapshots(HeapBackend):
    """Copy-free reads that claim to be snapshots."""

    capabilities = HeapBackend.capabilities | {Capability.SNAPSHOT_READS}
    caught_by = "backend.concurrent_reads.a_live_value_is_never_torn"


class PlainClaimsSnapshots(ClaimingBackend):
    """Live objects that claim to be snapshots."""

    caught_by = "backend.concurrent_reads.a_live_value_is_never_torn"


class TornStore(ByteStore):
    """Writes a batch entry by entry into the dict that readers use."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.closed = False

    def _open(self) -> dict[bytes, bytes]:
        if self.closed:
            raise ClosedError("the store was closed")
        return self.entries

    def get(self, key: bytes) -> bytes | None:
        return self._open().get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in list(self._open().items()) if start <= key < stop))

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        for key, value in batch.items():
            time.sleep(0)
            if value is None:
                self._open().pop(key, None)
            else:
                self._open()[key] = value

    def snapshot(self) -> ByteSnapshot:
        return DictSnapshot(dict(self._open()))

    def close(self) -> None:
        self.closed = True


class TornMap(DictBackend):
    """A store whose batches are not atomic, so a query reads half a map."""

    caught_by = "backend.concurrent_reads.a_live_answer_is_never_mixed_from_two_moments"

    def open_store(self, context: BackendContext) -> ByteStore:
        self.context = context
        return TornStore()


class ReaderWritesBack(PlainBackend):
    """A reader caches its serialized bytes in the state itself."""

    caught_by = "backend.concurrent_reads.a_read_during_a_change_in_place_does_no_harm"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = super().get(descriptor, namespace, keys, most_bytes)
            for key, answer in zip(keys, found.values, strict=True):
                if isinstance(answer, bytes) and descriptor.kind is StateKind.VALUE:
                    place = next((place for place in self.backend.live if place[0] == descriptor.name), None)
                    if place is not None and key is not None:
                        self.backend.live[place] = descriptor.serializer.loads(answer)
            return found

    def reader(self, isolation: Isolation) -> StateReader:
        return self.proxy(super().reader(isolation), self, isolation)


class ReaderTrips(PlainBackend):
    """A reader iterates over the live dict while the operator changes it."""

    caught_by = "backend.concurrent_reads.live_reads_never_fail_while_the_job_writes"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            for _ in self.backend.live:
                time.sleep(0)
            return super().get(descriptor, namespace, keys, most_bytes)

    def reader(self, isolation: Isolation) -> StateReader:
        return self.proxy(super().reader(isolation), self, isolation)


class ReadsOfAnySize(WithReaders):
    """A read is answered whole, however large it is."""

    caught_by = "backend.sizes.a_read_over_its_size_is_refused"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            return super().get(descriptor, namespace, keys)


class CountsEqualKeysOnce(WithReaders):
    """The size limit counts a value once, although its key is repeated."""

    caught_by = "backend.sizes.a_read_over_its_size_is_refused"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            super().get(descriptor, namespace, list(dict.fromkeys(keys)), most_bytes)
            return super().get(descriptor, namespace, keys)


class MakesItFirst(WithReaders):
    """A read collects all values before it checks their sizes."""

    caught_by = "backend.sizes.a_refused_read_is_not_made_first"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = super().get(descriptor, namespace, keys)
            if sum(len(value) for value in found.values if isinstance(value, bytes)) > most_bytes:
                raise TooLarge(field="answer", limit=most_bytes)
            return found
