"""State readers for tests: one reads a dict, one waits at a gate, one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from qstate.backends.answers import bounded
from qstate.backends.contract import UNBOUNDED, Capability, Isolation, ReadResult, StateReader
from qstate.descriptors import StateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.keys import ColumnType, Key, KeyGroupRange, Namespace
from qstate.runtime.serving.registry import StateInstance, known_to_be_current

MAX_PARALLELISM = 128
EVERYTHING = KeyGroupRange(0, MAX_PARALLELISM)
EPOCH = 7


class DictReader(StateReader):
    """Serves a dict. A failure code as a value is that key's failure."""

    def __init__(self, entries: Mapping[Any, object], epoch: int = EPOCH) -> None:
        self.entries = entries
        self.epoch = epoch
        self.reads = 0
        #: The keys of all reads, in the order of their starts.
        self.order: list[Key] = []

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        self.reads += 1
        self.order += keys
        return ReadResult(self.epoch, bounded((self._answer(key, namespace) for key in keys), most_bytes))

    def _answer(self, key: Key, namespace: Namespace) -> bytes | FailureCode | None:
        value = self.entries.get(key if namespace is None else (key, namespace))
        if value is None or isinstance(value, FailureCode):
            return value
        packed: bytes = msgpack.packb(value)
        return packed


class GatedReader(DictReader):
    """Waits in every read of a gated key until the gate opens."""

    def __init__(self, entries: Mapping[Any, object], gated: Sequence[Key]) -> None:
        super().__init__(entries)
        self.gated = set(gated)
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        if self.gated.intersection(keys):
            self.entered.release()
            assert self.gate.wait(20.0), "the test never opened the gate"
        return super().get(descriptor, namespace, keys, most_bytes)


class FailingReader(StateReader):
    """Breaks the contract: its `get` raises."""

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        raise RuntimeError("a bug in a backend")


def instance(
    reader: StateReader,
    *,
    name: str = "lastTemperature",
    job: str = "job",
    key_types: tuple[ColumnType, ...] = (ColumnType.STRING,),
    key_groups: KeyGroupRange = EVERYTHING,
    committed: StateReader | None = None,
    behind_since: Callable[[], float | None] = known_to_be_current,
    restored: bool = False,
) -> StateInstance:
    readers = {Isolation.LIVE: reader}
    if committed is not None:
        readers[Isolation.COMMITTED] = committed
    return StateInstance(
        job=job,
        descriptor=ValueStateDescriptor("lastTemp", float).queryable(name),
        key_types=key_types,
        key_groups=key_groups,
        max_parallelism=MAX_PARALLELISM,
        capabilities=frozenset([Capability.COMMITTED_READS]) if committed is not None else frozenset(),
        readers=readers,
        behind_since=behind_since,
        restored=restored,
    )
