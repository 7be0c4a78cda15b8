"""Defects of restoring and of key groups. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from qstate.backends import Change, ChangeOp
from qstate.backends.byte_stores.backend import NO_EPOCH
from qstate.descriptors import StateKind
from qstate.errors import JobError
from qstate.keys import KeyGroupRange
from tests.defects.backends.sound import DictBackend


class RestoreKeepsForeignGroups(DictBackend):
    """A restore keeps all entries that it gets, also those of other owners."""

    caught_by = "backend.restore.restore_keeps_its_own_key_groups_only"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        self._key_groups = KeyGroupRange(0, self.context.max_parallelism)
        super().restore(epoch, changes)


class LastGroupNotTold(DictBackend):
    """A restore treats the end of a key-group range as its last group."""

    caught_by = "backend.restore.entries_are_of_exactly_the_asked_key_groups"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        if len(key_groups) == 1:
            return iter(())
        return super().entries(KeyGroupRange(key_groups.start, key_groups.stop - 1))


class OneGroupTooMany(DictBackend):
    """`entries` also has the group after the requested ones."""

    caught_by = "backend.restore.entries_are_of_exactly_the_asked_key_groups"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return super().entries(KeyGroupRange(key_groups.start, key_groups.stop + 1))


class SecondSourceLost(DictBackend):
    """A restore skips further changes of a state after changes of other states, as if they were repeated."""

    caught_by = "backend.restore.several_sources_are_restored_one_after_the_other"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        seen: set[str] = set()
        kept: list[Change] = []
        for state, run in groupby(changes, lambda change: change.state):
            kept += [] if state in seen else run
            seen.add(state)
        super().restore(epoch, kept)


class RestoreIgnoresDeletes(DictBackend):
    """A restore treats changes as entries, and skips each DELETE."""

    caught_by = "backend.tables.delete_removes_a_committed_value"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, (change for change in changes if change.op is not ChangeOp.DELETE))


class RestoreDropsNulls(DictBackend):
    """A restore leaves out the entries of a map whose value is None."""

    caught_by = "backend.restore.nulls_in_a_map_are_restored"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, (change for change in changes if not _is_null(change)))


class NullsNotInEntries(DictBackend):
    """`entries` leaves out the entries of a map whose value is None."""

    caught_by = "backend.restore.nulls_in_a_map_are_restored"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return (change for change in super().entries(key_groups) if not _is_null(change))


def _is_null(change: Change) -> bool:
    return change.op is ChangeOp.MAP_PUT and change.data == b"\xc0"


class RestoreOverwrites(DictBackend):
    """A restore overwrites a backend that is in use."""

    caught_by = "backend.restore.restore_wants_an_empty_backend"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        self.rollback()
        self._committed.epoch = NO_EPOCH
        super().restore(epoch, changes)


class UnknownStatesDropped(DictBackend):
    """A restore drops changes of a state that was not requested, without an error."""

    caught_by = "backend.restore.restore_refuses_a_state_that_nobody_asked_for"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, (change for change in changes if change.state in self._states))


class RestoredEpochForgotten(DictBackend):
    """After a restore the epochs begin at zero again."""

    caught_by = "backend.restore.what_was_restored_is_committed_and_final"

    def begin(self, epoch: int) -> None:
        try:
            super().begin(epoch)
        except JobError:
            self._running = epoch


class RestoredEpochNotFinal(DictBackend):
    """Committed reads show restored state only after the next epoch."""

    caught_by = "backend.committed_reads.restored_state_is_final"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        final = self._final.hold()
        super().restore(epoch, changes)
        self._final = final


class StateBeforeTheFirstEpochNotFinal(DictBackend):
    """A restore as of epoch -1 counts as "no final epoch yet"."""

    caught_by = "backend.committed_reads.restored_state_is_final"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        final = self._final.hold()
        super().restore(epoch, changes)
        if epoch < 0:
            self._final = final


class DialectOfItsOwn(DictBackend):
    """Writes and loads lists in a private form, which no other backend can load."""

    caught_by = "backend.exchange.every_other_backend_loads_what_this_one_tells"

    def commit(self, epoch: int) -> Iterator[Change]:
        return map(self._turned, super().commit(epoch))

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return map(self._turned, super().entries(key_groups))

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        super().restore(epoch, map(self._turned, changes))

    def _turned(self, change: Change) -> Change:
        if change.state in self._states and self._states[change.state].descriptor.kind is StateKind.LIST:
            return change._replace(data=change.data[::-1])
        return change
