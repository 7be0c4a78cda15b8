"""Opens a subtask's epoch log with the state that its operator begins with, in the schemas that it declares.

Rules of this module: it decides which stored state may be restored (`qstate.evolution` has the rules for one state) and
writes it into the log, before the backend is filled and before any row. The operator's descriptors declare the wanted
schemas; the files name the stored ones.

The operator declares its states when it has the stored lists, because a function may read them while it declares. So
the log asks for the declaration (`Declare`) once it has found the lists, and again if it finds others: another writer
may have sealed an epoch meanwhile.

    no log yet, state elsewhere     that state becomes snapshot 0, whole, before the log begins: so a log that
                                    exists always has all of its state
    schemas differ                  the log is opened with the new schemas, and a snapshot of the whole converted state
                                    becomes the base of new epochs. If the newest stored epoch may not be committed
                                    yet, that waits until the first new epoch: a snapshot proves its epoch committed
    operator state                  the same, but without a conversion: see `qstate.checkpoint.log.operator_state`
    a state without a descriptor    refused; dropped with `allow_non_restored_state`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from types import MappingProxyType
from typing import Any

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import NO_EPOCH, Chain, LogIdentity, Part, Snapshot, States, data_schema, read_chain
from qstate.checkpoint.log.conversion import converted, without_emptied
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.merge import merged_parts
from qstate.checkpoint.log.operator_state import DeclaredLists, OperatorState, check_size, redistributed
from qstate.checkpoint.log.snapshots import write_snapshot
from qstate.checkpoint.sources.history import StateSource
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import StateDescriptor
from qstate.errors import DamagedCheckpoint, JobError
from qstate.evolution import Evolution, StateSchema, plan_evolution
from qstate.keys import ColumnType

__all__ = ["Declare", "DeclaredStates", "Origin", "convert_log", "open_epoch_log", "stored_lists"]

log = logging.getLogger(__name__)

#: In a stored schema: the state has the entries of a broadcast state, and its keys are their map keys.
BROADCAST = "broadcast"
NO_KEY_TYPES: Mapping[str, Sequence[ColumnType]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Origin:
    """The state that a log begins with: that of `source` as of `upto`. In the log it has the epoch `epoch`."""

    source: StateSource
    upto: int
    epoch: int


class DeclaredStates:
    """The states that an operator's function declares, and how stored states are restored into them."""

    def __init__(
        self,
        operator: str,
        descriptors: Sequence[StateDescriptor],
        key_types: Sequence[ColumnType],
        *,
        allow_non_restored: bool = False,
        lists: DeclaredLists | None = None,
        own_key_types: Mapping[str, Sequence[ColumnType]] = NO_KEY_TYPES,
        opened_at_ms: int | None = None,
    ) -> None:
        """`own_key_types` has those states, by name, whose keys are not the stream's, of the types `key_types`.

        `opened_at_ms` is when the states are opened; None: now.
        """
        self._operator = operator
        self._own_key_types = own_key_types
        self._descriptors = {descriptor.name: descriptor for descriptor in descriptors}
        self._key_types = {
            name: [kind.value for kind in own_key_types.get(name, key_types)] for name in self._descriptors
        }
        self._allow_non_restored = allow_non_restored
        self._lists = DeclaredLists(operator, {}, allow_non_restored) if lists is None else lists
        #: Values that get a time count as written then, however often they are read.
        self._opened_at_ms = time_ns() // 1_000_000 if opened_at_ms is None else opened_at_ms
        #: The declared schemas as plain data, as in the files.
        self.schemas: States = tuple(
            {
                **StateSchema.of(descriptor).to_plain(),
                "key_types": self._key_types[descriptor.name],
                **({BROADCAST: True} if descriptor.name in own_key_types else {}),
            }
            for descriptor in descriptors
        )

    def plans(self, stored: States) -> dict[str, Evolution]:
        """The plan for each stored state; a state that is dropped has none. Raises `JobError`."""
        plans: dict[str, Evolution] = {}
        for plain in stored:
            schema = StateSchema.from_plain(plain)
            descriptor = self._descriptors.get(schema.name)
            if descriptor is not None:
                self._check_broadcast(schema.name, stored=bool(plain.get(BROADCAST)))
                self._check_keys(schema.name, plain.get("key_types"))
                plans[schema.name] = plan_evolution(schema, descriptor, now_ms=self._opened_at_ms)
            elif not self._allow_non_restored:
                raise JobError(
                    f"operator {self._operator!r}: the stored state {schema.name!r} ({schema}) belongs to no state of "
                    "the function any more; ask for it in open() under that name, or with broadcast() if it was a "
                    "broadcast state, or set allow_non_restored_state=True to drop it for good"
                )
        return plans

    def differ_from(self, stored: States) -> bool:
        """Whether stored data has other schemas than this operator declares."""
        own = {plain["name"]: data_schema(plain) for plain in self.schemas}
        return any(own.get(plain.get("name")) != data_schema(plain) for plain in stored)

    def prepare(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts of a history, from its beginning on, converted to the declared schemas."""
        for number, part in enumerate(parts):
            changes: Iterable[Change] = part.changes
            if self.differ_from(part.states):
                changes = _planned(changes, self.plans(part.states))
                if part.ascending and number == 0:  # the whole snapshot, below which there is nothing to replace
                    changes = without_emptied(changes)
            yield part._replace(changes=changes, states=self.schemas)

    def lists(self, stored: OperatorState) -> OperatorState:
        """The stored lists, converted to the declared schemas. Raises `JobError`."""
        return self._lists.restored(stored)

    def _check_broadcast(self, state: str, *, stored: bool) -> None:
        declared = state in self._own_key_types
        if stored is not declared:
            kinds = {False: "keyed state", True: "broadcast state"}
            raise JobError(
                f"operator {self._operator!r}: {state!r} was stored as {kinds[stored]} and is declared as "
                f"{kinds[declared]}; declare it as before, or the new state under another name"
            )

    def _check_keys(self, state: str, stored: Any) -> None:
        declared = self._key_types[state]
        if stored == declared:
            return
        if state in self._own_key_types:
            raise JobError(
                f"operator {self._operator!r}: broadcast state {state!r} was stored with map keys of the types "
                f"{stored}, and is declared with {declared or 'any type'}; declare its map_key_type as it was, or "
                "another state"
            )
        raise JobError(
            f"operator {self._operator!r}: state {state!r} was stored by keys of the types {stored}, but the "
            f"stream is keyed by {declared}; key it as it was, or give the operator another uid to begin "
            "with empty state"
        )


#: Gives the states of an operator that begins with these lists; None: it begins without any state.
Declare = Callable[[OperatorState | None], DeclaredStates]


def _planned(changes: Iterable[Change], plans: Mapping[str, Evolution]) -> Iterator[Change]:
    """The changes of states that have a plan, converted. The caller may read them after those of later parts."""
    return converted((change for change in changes if change.state in plans), plans)


def open_epoch_log(
    directory: Path | Directory,
    identity: LogIdentity,
    declare: Declare,
    origin: Origin | None = None,
    *,
    first_epoch: int | None = None,
    final: int | None = None,
    compression: str = "none",
) -> EpochLog:
    """Open the log of a subtask as its only writer, with all its state in the declared schemas.

    `declare` is called at least once, the last time with the lists that the opened log has.

    `first_epoch` is the epoch that Spark asks for, None when it has not asked yet. `final` is the newest epoch that
    Spark has certainly committed (None: all that are sealed). While a newer epoch has other schemas, the log stays
    `unconverted`.

    Raises `JobError` for stored state that the operator cannot restore; `DamagedCheckpoint` when the newest file is
    damaged and Spark does not, or not yet, ask for its epoch; and what `EpochLog.open` and `declare` raise. Nothing
    stored has changed then.
    """
    files = directory_of(directory)
    with doing(f"open the epoch log in {files.path}", files):
        files.make()
    if origin is not None and read_chain(files, identity) is None:
        _begin_with(files, identity, declare, origin, compression)
    stored: list[States] = []
    declared: DeclaredStates

    def admit(chain: Chain | None) -> States:
        nonlocal declared
        declared = declare(None if chain is None else stored_lists(chain))
        stored.clear()
        if chain is not None:
            stored.extend(part.states for part in chain.parts(chain.bases[0]))
            for states in stored:
                declared.plans(states)
            declared.lists(chain.operator_state())
            if chain.damaged is not None:
                _check_replayed(chain, first_epoch)
        return declared.schemas

    opened = EpochLog.open(files, identity, admit)
    opened.compression = compression
    if any(map(declared.differ_from, stored)):
        latest = opened.latest()
        if final is None or latest is None or latest <= final:
            convert_log(opened, declared)
        else:
            opened.unconverted = True
    return opened


def stored_lists(history: Chain | EpochLog) -> OperatorState | None:
    """The operator state that a log has; None when it has no state at all. Raises `CheckpointError`."""
    if history.latest() is None and history.bases[0] is None:
        return None
    return history.operator_state()


def _check_replayed(chain: Chain, first_epoch: int | None) -> None:
    latest = chain.latest()
    reached = NO_EPOCH if latest is None else latest
    if first_epoch is None or first_epoch > reached + 1:
        asked = "the query has not asked for an epoch yet" if first_epoch is None else f"epoch {first_epoch} is due"
        raise DamagedCheckpoint(
            f"{chain.damaged} is damaged: without it the state ends with epoch {reached}, and {asked}. Bring the file "
            "back from a copy of the checkpoint directory, or start from a savepoint with the checkpointLocation of "
            "that time"
        )


def _begin_with(files: Directory, identity: LogIdentity, declare: Declare, origin: Origin, compression: str) -> None:
    stored = origin.source.operators().get(identity.operator)
    lists = redistributed(
        origin.source.operator_states(identity.operator, origin.upto), identity.parallelism, identity.subtask
    )
    declared = declare(None if stored is None else lists)
    if stored is not None:
        declared.plans(stored.states)
    restored = declared.lists(lists)
    check_size(restored, str(identity))
    changes = origin.source.state(identity.operator, identity.key_groups, origin.upto, declared.prepare)
    begun = Snapshot(0, 0, 0, origin.epoch, 0, declared.schemas)
    write_snapshot(files, identity, begun, changes, compression, operator_state=restored)
    log.info("%s begins with its state as of epoch %d in %s", identity, origin.upto, origin.source.location)


def convert_log(opened: EpochLog, declared: DeclaredStates) -> None:
    """Write a snapshot of the whole state in the declared schemas as the base of new epochs.

    Raises what `open_epoch_log` raises.
    """
    for base in opened.bases:
        try:
            with readable(opened.path):
                opened.write_base(merged_parts(declared.prepare(opened.parts(base))))
            opened.unconverted = False
            return
        except DamagedCheckpoint:
            if base is opened.bases[-1]:
                raise
