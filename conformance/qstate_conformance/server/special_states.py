"""The states of the fixture whose owner is sound and in a special situation.

Rules of this module: it makes state instances with fixed answers and says where they are. What the situations are for
is the laws' affair; how they come about in a job is not shown here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qstate.backends.answers import bounded
from qstate.backends.contract import UNBOUNDED, Capability, Isolation, ReadResult, StateReader
from qstate.descriptors import StateDescriptor
from qstate.keys import ColumnType, Key, KeyGroupRange, Namespace
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateInstance, StateRegistry, known_to_be_current
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import State
from qstate_conformance.server.loading import descriptor_of

__all__ = ["EVERYTHING", "NOTHING", "SpecialState", "not_known", "special_states"]

EVERYTHING = KeyGroupRange(0, fixture.MAX_PARALLELISM)


class _FixedReader(StateReader):
    """Always gives the same answers, of the same epoch."""

    def __init__(self, epoch: int, answers: Mapping[Key, bytes]) -> None:
        self._epoch = epoch
        self._answers = answers

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        found = (self._answers.get(key) if namespace is None else None for key in keys)
        return ReadResult(self._epoch, bounded(found, most_bytes))


class SpecialState:
    """A state with one owner. When there are several instances of it, each Locate finds the next one in its place."""

    def __init__(self, address: tuple[str, int], registry: StateRegistry, *instances: StateInstance) -> None:
        self.name = instances[0].name
        self._address = address
        self._registry = registry
        self._instances = instances
        self._turn = 0
        self._state_id = registry.register(self._instance)

    @property
    def description(self) -> Mapping[str, Any]:
        """What it is now."""
        return self._instance.describe()

    def located(self) -> LocationTable:
        """Where it is, once it has come back as what it is next."""
        if len(self._instances) > 1:
            self._turn += 1
            self._registry.unregister(self._state_id)
            self._state_id = self._registry.register(self._instance)
        owner = Owner(EVERYTHING, *self._address, self._state_id)
        return LocationTable(fixture.JOB, self.description, fixture.MAX_PARALLELISM, (owner,))

    @property
    def _instance(self) -> StateInstance:
        # The first Locate finds the first.
        return self._instances[(self._turn - 1) % len(self._instances)]


def special_states(address: tuple[str, int], registry: StateRegistry) -> Iterator[SpecialState]:
    """The states, all at the state server that has this address and registry."""
    uncommitted, stale = fixture.UNCOMMITTED, fixture.STALE
    yield SpecialState(address, registry, _instance(uncommitted, live=_reader(uncommitted, 0), committed=_EMPTY))
    reader = _reader(stale, fixture.COMMITTED_EPOCH)
    yield SpecialState(address, registry, _instance(stale, live=reader, committed=reader, behind_since=not_known))
    changing = [_instance(found, live=_reader(found, fixture.LIVE_EPOCH)) for found in fixture.CHANGING]
    yield SpecialState(address, registry, *changing)


#: A committed view before the first commit.
_EMPTY = _FixedReader(-1, {})


def not_known() -> float:
    """The `behind_since` of a view that cannot say what it lacks."""
    return -math.inf


def _reader(found: State, epoch: int) -> StateReader:
    return _FixedReader(epoch, {entry.key: found.answer_of(entry) for entry in found.entries})


def _instance(
    found: State,
    *,
    live: StateReader,
    committed: StateReader | None = None,
    behind_since: Callable[[], float | None] = known_to_be_current,
) -> StateInstance:
    readers = {Isolation.LIVE: live, **({} if committed is None else {Isolation.COMMITTED: committed})}
    return StateInstance(
        job=fixture.JOB,
        descriptor=descriptor_of(found),
        key_types=tuple(ColumnType(column) for column in found.key_types),
        key_groups=EVERYTHING,
        max_parallelism=fixture.MAX_PARALLELISM,
        capabilities=frozenset() if committed is None else frozenset({Capability.COMMITTED_READS}),
        readers=readers,
        behind_since=behind_since,
    )


#: The arguments of an instance that holds nothing.
NOTHING: Mapping[str, Any] = {
    "job": fixture.JOB,
    "key_types": (ColumnType.STRING,),
    "key_groups": EVERYTHING,
    "max_parallelism": fixture.MAX_PARALLELISM,
    "capabilities": frozenset(),
    "readers": {Isolation.LIVE: _EMPTY},
}
