"""Defects of epochs: what commits return and seal, and what rollbacks undo. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import msgpack

from qstate.backends import BackendContext, Change, ChangeOp
from qstate.descriptors import StateKind
from qstate.errors import SerializationError
from qstate.keys import Key, KeyGroupRange
from tests.defects.backends.sound import DictBackend, PlainBackend, TableProxy, WithTables


class Telling(DictBackend):
    """Returns from a commit what `altered` makes of the changes."""

    def commit(self, epoch: int) -> Iterator[Change]:
        return iter(self.altered(list(super().commit(epoch))))

    def altered(self, changes: list[Change]) -> list[Change]:
        return changes


class KeyGroupOffByOne(Telling):
    """Changes carry the group after their key's."""

    caught_by = "backend.changes.changes_carry_the_group_of_their_key"

    def altered(self, changes: list[Change]) -> list[Change]:
        most = self.context.max_parallelism
        return [change._replace(group=(change.group + 1) % most) for change in changes]


class ClearNotTold(Telling):
    """A commit has no change for a deleted key."""

    caught_by = "backend.changes.changes_tell_a_clear"

    def altered(self, changes: list[Change]) -> list[Change]:
        return [change for change in changes if change.op is not ChangeOp.DELETE]


class MapRemovalNotTold(Telling):
    """A commit has no change for a removed map entry."""

    caught_by = "backend.changes.changes_tell_a_removed_map_entry"

    def altered(self, changes: list[Change]) -> list[Change]:
        return [change for change in changes if change.op is not ChangeOp.MAP_REMOVE]


class MapClearedTooLate(Telling):
    """The commit has the entries of a rewritten map first and its clearing last."""

    caught_by = "backend.changes.a_commit_tells_each_changed_entry_once"

    def altered(self, changes: list[Change]) -> list[Change]:
        return sorted(changes, key=lambda change: change.op is ChangeOp.DELETE)


class ChangesOfTheEpochBefore(Telling):
    """A commit repeats the changes of the one before."""

    caught_by = "backend.changes.an_epoch_tells_the_last_values_only"

    def altered(self, changes: list[Change]) -> list[Change]:
        before, self.__dict__["before"] = self.__dict__.get("before", []), changes
        return [*before, *changes]


class ListToldTwice(Telling):
    """An addition to a list has the whole list: restored, the list begins twice."""

    caught_by = "backend.histories.every_history_is_told_by_its_commit"

    def altered(self, changes: list[Change]) -> list[Change]:
        whole = {entry[1:5]: entry.data for entry in self.entries(KeyGroupRange(0, self.context.max_parallelism))}
        return [
            change._replace(data=whole[change[1:5]]) if change.op is ChangeOp.LIST_ADD else change for change in changes
        ]


class ElementsNotBins(Telling):
    """The elements of a list are a MessagePack array of values, not of bins."""

    caught_by = "backend.changes.changes_have_the_documented_bytes"

    def altered(self, changes: list[Change]) -> list[Change]:
        lists = {state.descriptor.name for state in self._states.values() if state.descriptor.kind is StateKind.LIST}
        return [
            change._replace(data=b"\x91" + b"".join(msgpack.unpackb(change.data))) if change.state in lists else change
            for change in changes
        ]


class OldValueTold(WithTables):
    """Of a value that was put twice in an epoch, the commit has the first."""

    caught_by = "backend.changes.an_epoch_tells_the_last_values_only"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            self.backend.first.setdefault(self.descriptor.name, self.descriptor.serializer.dumps(value))
            super().put(key, value)

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.first: dict[str, bytes] = {}

    def commit(self, epoch: int) -> Iterator[Change]:
        for change in super().commit(epoch):
            is_value = self._states[change.state].descriptor.kind is StateKind.VALUE
            yield change._replace(data=self.first[change.state]) if is_value and change.data else change
        self.first = {}


class RollbackForgetsDelete(WithTables):
    """A key that the failed epoch deleted stays deleted."""

    caught_by = "backend.epochs.rollback_brings_back_what_was_deleted"

    class proxy(TableProxy):
        def delete(self, key: Key) -> None:
            super().delete(key)
            self.backend.deletes.append((self.inner, key))

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.deletes: list[Any] = []

    def rollback(self) -> None:
        super().rollback()
        for table, key in self.deletes:
            table.delete(key)
        self.deletes.clear()


class RollbackKeepsAppends(WithTables):
    """Elements that the failed epoch added to a list stay."""

    caught_by = "backend.epochs.rollback_takes_list_elements_off_again"

    class proxy(TableProxy):
        def list_add(self, key: Key, values: Any) -> None:
            super().list_add(key, values)
            self.backend.added.append((self.inner, key, list(values)))

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.added: list[Any] = []

    def commit(self, epoch: int) -> Iterator[Change]:
        self.added = []
        return super().commit(epoch)

    def rollback(self) -> None:
        super().rollback()
        for table, key, values in self.added:
            table.list_add(key, values)
        self.added = []


class RollbackMissesPublished(DictBackend):
    """A rollback drops the writes in memory, and does not undo published ones."""

    caught_by = "backend.epochs.rollback_undoes_every_write_of_the_epoch"

    def rollback(self) -> None:
        self._forget_tables()
        self._running = self._committed.epoch


class SnapshotAliasesLiveData(PlainBackend):
    """The committed state is a copy of the dict with the same objects, which user code still changes."""

    caught_by = "backend.tables.a_value_changed_in_place_and_not_put_is_undone_by_rollback"

    def copied(self, entries: Any) -> Any:
        return copy(entries)


class EntriesOfTheRunningEpoch(DictBackend):
    """`entries` includes what was written since the commit."""

    caught_by = "backend.epochs.entries_are_those_of_the_last_commit"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        self.publish()
        self._replace_committed(self._committed.epoch)
        return super().entries(key_groups)


class EntriesWhileTheyChange(PlainBackend):
    """`entries` reads the live dict, one entry after the other."""

    caught_by = "backend.epochs.entries_do_not_move_while_they_are_read"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        for place in list(self.committed):
            self.committed = self.live
            if place in self.live:
                yield from (change for change in super().entries(key_groups) if (change[1], *change[3:5]) == place)


class FailedCommitSeals(DictBackend):
    """A commit that raises leaves its writes in the sealed state."""

    caught_by = "backend.epochs.a_value_that_does_not_fit_fails_the_epoch_and_no_more"

    def commit(self, epoch: int) -> Iterator[Change]:
        try:
            yield from super().commit(epoch)
        except SerializationError:
            self._forget_tables()
            self._replace_committed(epoch)
            raise


class OldEpochsBegin(DictBackend):
    """A committed epoch begins again without an error."""

    caught_by = "backend.epochs.epochs_go_forward"

    def begin(self, epoch: int) -> None:
        if epoch > self._committed.epoch:
            super().begin(epoch)
