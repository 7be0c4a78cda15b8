"""Operator state: the named lists of an operator subtask that belong to no key, and their redistribution.

Rules of this module: stored bytes in, stored bytes out; it knows no file. Lists are small (a few elements for each
subtask, such as positions in a source). Every epoch and snapshot stores them whole, in the file's footer.

    footer of epochs and snapshots    operator_state   [list, ...]: the subtask's lists as of that epoch
    footer of savepoints              operator_states  [[list, ...], ...]: the same for each subtask, in their order
    list                              {schema, distribution: "split" | "union" | "broadcast", elements: [bin, ...]}

A footer has the keys only if the operator has such state. So the newest file up to an epoch, and no other, has the
state as of that epoch. Each list has the schema of its elements: stored lists are never converted in place. A name may
have several lists in a row with different schemas, if some subtasks ran a new program and others did not yet.

**Another parallelism.** The lists of a new subtask depend only on the lists of all old subtasks, the new parallelism
and its index. So each subtask can compute its own, whenever it begins. Split lists are concatenated in the order of the
old subtasks and cut into even runs. The subtasks that got one element more of one list come last for the next list (by
name), as in Flink's RoundRobinOperatorStateRepartitioner. With an unchanged parallelism each subtask keeps its lists.
Every subtask gets all elements of a union list.

**Broadcast state** is a map that all subtasks hold alike. It is stored as a list whose elements are its entries, each a
MessagePack array of the encoded map key and the value's bytes (both bin), with the schema of the map. Each subtask
stores it: a subtask that restores alone may have sealed an epoch that others have not, so it can rely on its own log
only. Under another parallelism every subtask gets the entries of the first old one. A savepoint, which is of one epoch,
has them once, with the first subtask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgpack

from qstate.checkpoint.log.conversion import not_converted
from qstate.checkpoint.log.file_facts import check_facts, check_lists
from qstate.checkpoint.log.segment import LARGEST_BLOCK
from qstate.descriptors import StateDescriptor
from qstate.errors import CheckpointError, JobError
from qstate.evolution import Converted, StateSchema, plan_evolution
from qstate.values.extension_types import PACKER_BYTES

__all__ = [
    "FUNCTION_LIST",
    "LARGEST_OPERATOR_STATE",
    "OF_SUBTASK",
    "TIME_LIST",
    "DeclaredLists",
    "Distribution",
    "OperatorList",
    "OperatorState",
    "check_size",
    "operator_state_of",
    "operator_states_of",
    "pack_entry",
    "redistributed",
    "state_fact",
    "states_fact",
    "unpack_entry",
]

#: The most bytes that the elements of a subtask may have together. A footer is one block, which memory holds whole; the
#: footer of a savepoint holds the lists of all subtasks, and an opening reads the footers of all files.
LARGEST_OPERATOR_STATE = (LARGEST_BLOCK + 1) // 256

#: The list of how far the time of an operator has come (`qstate.operators.time.clock`). It is no list of the function:
#: an operator that keeps no time any more drops it.
TIME_LIST = "__qstate.time"

#: The list that a function's `snapshot_state` returns (`qstate.operators.checkpointed.ListCheckpointed`).
FUNCTION_LIST = "__qstate.snapshot_state"

OF_SUBTASK, OF_EVERY_SUBTASK = "operator_state", "operator_states"


class Distribution(Enum):
    """How a list is redistributed when the parallelism changes."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class OperatorList:
    """Elements of one named list, as the serializer's bytes, and their schema."""

    schema: Mapping[str, Any]
    distribution: Distribution
    elements: Sequence[bytes]

    @property
    def name(self) -> str:
        return str(self.schema["name"])

    @property
    def size(self) -> int:
        """The bytes of all elements together."""
        return sum(map(len, self.elements))

    def to_plain(self) -> dict[str, Any]:
        return {
            "schema": dict(self.schema),
            "distribution": self.distribution.value,
            "elements": list(self.elements),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> OperatorList:
        """The inverse of `to_plain`. Raises `CheckpointError` for an unknown distribution."""
        try:
            distribution = Distribution(plain["distribution"])
        except ValueError:
            raise CheckpointError(
                f"operator state {plain['schema'].get('name')!r} is distributed by {plain['distribution']!r}: a newer "
                "qstate wrote it; use that version or a newer one"
            ) from None
        return cls(plain["schema"], distribution, tuple(plain["elements"]))


#: The lists of one subtask.
OperatorState = Sequence[OperatorList]


def state_fact(state: OperatorState) -> dict[str, Any]:
    """The fact in the footer of an epoch or a snapshot about a subtask's lists: empty without lists."""
    return {OF_SUBTASK: [one.to_plain() for one in state]} if state else {}


def states_fact(states: Sequence[OperatorState]) -> dict[str, Any]:
    """The fact in the footer of a savepoint about the lists of all subtasks: empty without lists."""
    if not any(states):
        return {}
    kept = [
        [one for one in state if number == 0 or one.distribution is not Distribution.BROADCAST]
        for number, state in enumerate(states)
    ]
    return {OF_EVERY_SUBTASK: [[one.to_plain() for one in state] for state in kept]}


def operator_state_of(footer: Mapping[str, Any], path: object) -> OperatorState:
    """The inverse of `state_fact`. Raises `CheckpointError` that names the file."""
    return _lists_of(footer.get(OF_SUBTASK, []), path)


def operator_states_of(footer: Mapping[str, Any], path: object) -> list[OperatorState]:
    """The inverse of `states_fact`. Raises `CheckpointError` that names the file."""
    states = footer.get(OF_EVERY_SUBTASK, [])
    check_facts(states, list[Any], f"the operator state in {path}")
    return [_lists_of(state, path) for state in states]


def _lists_of(plain: Any, path: object) -> OperatorState:
    check_lists(plain, path)
    try:
        return tuple(map(OperatorList.from_plain, plain))
    except CheckpointError as exc:
        raise CheckpointError(f"{path}: {exc}") from exc


def pack_entry(map_key: bytes, data: bytes) -> bytes:
    """The element for one entry of a broadcast state."""
    packed: bytes = msgpack.packb((map_key, data), buf_size=PACKER_BYTES)
    return packed


def unpack_entry(element: bytes) -> tuple[bytes, bytes]:
    """The inverse of `pack_entry`. Raises `ValueError` for other bytes."""
    found = msgpack.unpackb(element, use_list=False, max_array_len=2)
    if not isinstance(found, tuple) or list(map(type, found)) != [bytes, bytes]:
        raise ValueError("this is no entry of a broadcast state")
    return found


def check_size(state: OperatorState, owner: str) -> None:
    """Raise `JobError` when the lists of a subtask are larger than `LARGEST_OPERATOR_STATE`."""
    size = sum(one.size for one in state)
    if size > LARGEST_OPERATOR_STATE:
        largest = max(state, key=lambda one: one.size)
        raise JobError(
            f"{owner}: its operator state has {size:,} bytes, {largest.size:,} of them in {largest.name!r}; a subtask "
            f"may have {LARGEST_OPERATOR_STATE:,}, since it is written whole with every epoch. Keep less in it, or "
            "use keyed state"
        )


def redistributed(states: Sequence[OperatorState], parallelism: int, subtask: int) -> OperatorState:
    """The lists that a subtask begins with under a new parallelism, from those of all old subtasks, in their order."""
    found: list[OperatorList] = []
    first = 0
    names = {(one.name, one.distribution) for state in states for one in state}
    for name, distribution in sorted(names, key=lambda pair: (pair[0], pair[1].value)):
        lists = [[one for one in state if (one.name, one.distribution) == (name, distribution)] for state in states]
        every = [one for of_subtask in lists for one in of_subtask]
        if distribution is Distribution.UNION:
            found += _joined(every)
        elif distribution is Distribution.BROADCAST:
            found += next(filter(None, lists))
        elif len(states) == parallelism:
            found += lists[subtask] or _run(every, 0, 0)
        else:
            size, more = divmod(sum(len(one.elements) for one in every), parallelism)
            place = (subtask - first) % parallelism
            start = place * size + min(place, more)
            found += _run(every, start, start + size + (place < more))
            first = (first + more) % parallelism
    return tuple(found)


def _run(lists: Sequence[OperatorList], start: int, stop: int) -> list[OperatorList]:
    """The elements `start` to `stop` (exclusive) of the concatenated lists; there is always a list, even if empty."""
    found, at = [], 0
    for one in lists:
        elements = one.elements[max(start - at, 0) : max(stop - at, 0)]
        found.append(OperatorList(one.schema, one.distribution, elements))
        at += len(one.elements)
    return _joined(found)


def _joined(lists: Iterable[OperatorList]) -> list[OperatorList]:
    """The same elements, with neighbours of one schema in one list; an empty list only if there are no elements."""
    found: list[OperatorList] = []
    for one in lists:
        if found and not found[-1].elements:
            found.pop()
        if found and (not one.elements or found[-1].schema == one.schema):
            one = OperatorList(found[-1].schema, one.distribution, (*found.pop().elements, *one.elements))
        found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class DeclaredLists:
    """The lists that an operator's function declares, and how stored lists are restored into them."""

    operator: str
    declared: Mapping[str, tuple[StateDescriptor, Distribution]] = field(default_factory=dict)
    allow_non_restored: bool = False

    def restored(self, stored: OperatorState) -> OperatorState:
        """The stored lists in the declared schemas: one for each declared list.

        Raises `JobError` for a stored list that the function does not declare, for another distribution, and for an
        element that cannot be converted, which it names.
        """
        elements: dict[str, list[bytes]] = {name: [] for name in self.declared}
        for one in stored:
            if one.name in self.declared:
                elements[one.name] += self._converted(one)
            elif one.name != TIME_LIST and not self.allow_non_restored:
                raise self._not_declared(one)
        return tuple(
            OperatorList(StateSchema.of(descriptor).to_plain(), distribution, tuple(elements[name]))
            for name, (descriptor, distribution) in self.declared.items()
        )

    def _not_declared(self, stored: OperatorList) -> JobError:
        if stored.name == FUNCTION_LIST:
            return JobError(
                f"operator {self.operator!r}: the list of a snapshot_state() is stored, but the function is no "
                "ListCheckpointed any more; make it one again, or set allow_non_restored_state=True to drop the list "
                "for good"
            )
        return JobError(
            f"operator {self.operator!r}: the stored operator state {stored.name!r} belongs to no operator state "
            f"of the function any more; ask for it with {_METHODS[stored.distribution]} under that name, or set "
            "allow_non_restored_state=True to drop it for good"
        )

    def _converted(self, stored: OperatorList) -> Iterable[bytes]:
        descriptor, distribution = self.declared[stored.name]
        if distribution is not stored.distribution:
            raise JobError(
                f"operator {self.operator!r}: operator state {stored.name!r} was stored by "
                f"{_METHODS[stored.distribution]} and is asked for with {_METHODS[distribution]}; ask for it as "
                "before, or declare the new state under another name"
            )
        plan = plan_evolution(StateSchema.from_plain(stored.schema), descriptor)
        if not isinstance(plan, Converted):
            return stored.elements
        found = []
        for number, element in enumerate(stored.elements):
            try:
                if distribution is Distribution.BROADCAST:
                    map_key, data = unpack_entry(element)
                    found.append(pack_entry(map_key, plan.convert(data)))
                else:
                    found.append(plan.convert(element))
            except Exception as exc:  # the user's migration or serializer may raise anything
                what = f"operator {self.operator!r}, operator state {stored.name!r}: the stored element {number}"
                raise not_converted(what, exc) from exc
        return found


_METHODS = {
    Distribution.SPLIT: "get_operator_list_state()",
    Distribution.UNION: "get_union_list_state()",
    Distribution.BROADCAST: "broadcast()",
}
