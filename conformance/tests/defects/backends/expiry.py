"""Defects of expiring state and of walks. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from qstate.backends import UNBOUNDED, Change, ReadResult
from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Wanted
from qstate.descriptors import StateDescriptor, StateKind
from qstate.keys import Key, KeyGroupRange, Namespace
from qstate.values.ttl import TimedSerializer, time_of, timed, untimed
from tests.defects.backends.sound import DictBackend, ReaderProxy, TableProxy, WithReaders, WithTables

#: The time of the restore, long after all others.
_NOW = 1_800_000_000_000


def _is_timed(descriptor: StateDescriptor) -> bool:
    return isinstance(descriptor.serializer, TimedSerializer)


class RestoreResetsTheTimes(DictBackend):
    """A restore counts as a write: restored values begin a new time-to-live."""

    caught_by = "backend.expiry.a_restore_keeps_the_times"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, map(self._renewed, changes))

    def _renewed(self, change: Change) -> Change:
        state = self._states.get(change.state)
        if state is None or not _is_timed(state.descriptor) or not change.data:
            return change
        if state.descriptor.kind is StateKind.LIST:
            elements = [timed(_NOW, untimed(data)) for data in unpack_elements(change.data)]
            return change._replace(data=pack_elements(elements))
        return change._replace(data=timed(_NOW, untimed(change.data)))


class ReadsRenewTheTimes(WithReaders):
    """A query counts as a write: what is asked for never expires."""

    caught_by = "backend.expiry.answers_end_with_the_time_to_live"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = self.inner.get(descriptor, namespace, keys, most_bytes)
            if descriptor.kind is not StateKind.VALUE or not _is_timed(descriptor):
                return found
            values = [timed(_NOW, untimed(data)) if isinstance(data, bytes) else data for data in found.values]
            return ReadResult(found.epoch, values)


class NullsHaveNoTime(WithTables):
    """The entry of a map whose value is None is stored with the time 0, so it expires at once."""

    caught_by = "backend.expiry.a_null_expires_like_a_value"

    class proxy(TableProxy):
        def map_put(self, key: Key, map_key: Key, value: Any) -> None:
            is_null = _is_timed(self.descriptor) and value[1] is None
            super().map_put(key, map_key, (0, None) if is_null else value)


class OneTimeForAList(WithReaders):
    """A list has one time, that of its newest element."""

    caught_by = "backend.expiry.elements_and_entries_expire_one_by_one"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            found = self.inner.get(descriptor, namespace, keys, most_bytes)
            if descriptor.kind is not StateKind.LIST or not _is_timed(descriptor):
                return found
            return ReadResult(found.epoch, [_with_the_newest_time(answer) for answer in found.values])


def _with_the_newest_time(answer: Any) -> Any:
    """A list whose elements expire together, with the newest of them."""
    if not isinstance(answer, bytes):
        return answer
    elements = unpack_elements(answer)
    newest = max(map(time_of, elements))
    return pack_elements(timed(newest, untimed(data)) for data in elements)


class EqualValuesNotWritten(WithTables):
    """A put of the value that is there already does nothing: its new time is lost."""

    caught_by = "backend.expiry.a_new_time_alone_is_a_change"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            old = self.inner.get(key)
            if _is_timed(self.descriptor) and old is not None and _values(old) == _values(value):
                return
            super().put(key, value)


def _values(contents: Any) -> Any:
    """The contents without their times."""
    if isinstance(contents, list):
        return [value for _, value in contents]
    if isinstance(contents, dict):
        return {map_key: value for map_key, (_, value) in contents.items()}
    return contents[1]


class RollbackKeepsTheTimes(WithTables):
    """A rollback restores values, and leaves the times of the epoch that failed."""

    caught_by = "backend.expiry.a_rollback_gives_the_times_back"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            super().put(key, value)
            if _is_timed(self.descriptor):
                self.backend.__dict__.setdefault("late", {})[self.descriptor.name, key] = (self.descriptor, value)

    def commit(self, epoch: int) -> Any:
        self.__dict__["late"] = {}
        return super().commit(epoch)

    def rollback(self) -> None:
        super().rollback()
        for (_, key), (descriptor, value) in self.__dict__.get("late", {}).items():
            super().table(descriptor).put(key, value)


class EntriesHideTheExpired(DictBackend):
    """`entries` leaves out what it takes for expired by a clock of its own: a walk never finds it to remove it."""

    caught_by = "backend.expiry.entries_have_the_times"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        for change in super().entries(key_groups):
            state = self._states[change.state].descriptor
            if not _is_timed(state) or state.kind is StateKind.LIST or time_of(change.data) > 1_699_999_999_999:
                yield change


class WalkOfAllStates(DictBackend):
    """A walk visits the entries of all states, whichever it was asked for."""

    caught_by = "backend.expiry.a_walk_visits_the_entries_of_its_states_and_key_groups"

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        return super().walk(dict.fromkeys(self._states, lambda data: True), key_groups)


class WalkMixesMaps(DictBackend):
    """A walk visits the entries by their map keys."""

    caught_by = "backend.expiry.a_walk_visits_the_entries_of_one_map_one_after_another"

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        found = [change for change in super().walk(wanted, key_groups) if change is not None]
        yield from sorted(found, key=lambda change: (change.map_key, change.key))


class WalkDropsTheUnwanted(DictBackend):
    """A walk leaves out what is not wanted: its caller cannot bound its work."""

    caught_by = "backend.expiry.a_walk_gives_what_is_wanted_and_counts_the_rest"

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        return (change for change in super().walk(wanted, key_groups) if change is not None)


class WalkSkipsAfterDeletions(DictBackend):
    """A walk counts the entries that it has visited: after a deletion before them it skips some."""

    caught_by = "backend.expiry.a_walk_goes_on_over_epochs"

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        visited = 0
        while part := list(islice(super().walk(wanted, key_groups), visited, visited + 7)):
            visited += len(part)
            yield from part


class WalkWrites(DictBackend):
    """A walk notes its place among the entries of the state."""

    caught_by = "backend.expiry.an_unfinished_walk_disturbs_nothing"

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        for number, change in enumerate(super().walk(wanted, key_groups)):
            self.table(self._states["value"].descriptor).put(49, -number)
            yield change
