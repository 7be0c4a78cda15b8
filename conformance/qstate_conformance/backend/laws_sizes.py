"""Laws of sizes: a read that is larger than it may be is refused, and is not made first."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Capability, Isolation, StateBackend
from qstate.descriptors import StateDescriptor
from qstate.errors import TooLarge
from qstate.keys import Key
from qstate_conformance.backend.instances import opened, sealed
from qstate_conformance.backend.states import FRAMED, FRAMED_LIST, FRAMED_MAP, KINDS, LIST, MAP, VALUE, numbered
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

#: Of a state that is far larger than a read may be: keys, bytes of each value, elements or entries of each.
_KEYS, _VALUE_BYTES, _PARTS = 48, 256 * 1024, 16
_MOST_BYTES = 4 * _VALUE_BYTES
#: Beyond what a read may give, the memory that it may take: a value in a few forms, and what a library keeps.
_SLACK_BYTES = 8 * _VALUE_BYTES


def _isolations(backend: StateBackend) -> list[Isolation]:
    offered = Capability.COMMITTED_READS in type(backend).capabilities
    return [Isolation.LIVE] + [Isolation.COMMITTED] * offered


def _is_refused(
    backend: StateBackend, isolation: Isolation, descriptor: StateDescriptor, keys: Sequence[Key], most: int
) -> bool:
    try:
        backend.reader(isolation).get(descriptor, None, keys, most)
    except TooLarge:
        return True
    return False


@law("R8", "R1")
@given(asked=st.lists(st.integers(0, 9), min_size=1, max_size=30), framed=st.booleans())
def test_a_read_over_its_size_is_refused(subject: BackendSubject, asked: list[int], framed: bool) -> None:
    """Values up to the limit, all together, are answered. One byte more is `TooLarge`."""
    descriptors = (FRAMED, FRAMED_LIST, FRAMED_MAP) if framed else KINDS
    with opened(subject) as backend:
        for descriptor in descriptors:
            table = backend.table(descriptor)
            for number in range(8):  # two keys have no value
                table.put(f"key {number}", numbered(descriptor, 10**number))
        sealed(backend, 0)
        backend.finalize(0)
        keys = [f"key {number}" for number in asked]
        for isolation in _isolations(backend):
            for descriptor in descriptors:
                whole = backend.reader(isolation).get(descriptor, None, keys)
                size = sum(len(value) for value in whole.values if isinstance(value, bytes))
                allowed = backend.reader(isolation).get(descriptor, None, keys, size)
                assert list(allowed.values) == list(whole.values), f"{descriptor.name}, {isolation.value}"
                refused = size > 0 and _is_refused(backend, isolation, descriptor, keys, size - 1)
                assert refused or not size, f"{size} bytes of {descriptor.name} answered where {size - 1} are allowed"


@law("R8")
def test_a_refused_read_is_not_made_first(subject: BackendSubject) -> None:
    """A read far over the limit allocates memory for the limit and one value, and frees it."""
    with opened(subject) as backend:
        keys = [f"key {number}" for number in range(_KEYS)]
        for descriptor in (VALUE, LIST, MAP):
            table = backend.table(descriptor)
            for number, key in enumerate(keys):
                table.put(key, _large(descriptor, number))
        sealed(backend, 0)
        backend.finalize(0)
        for isolation in _isolations(backend):
            for descriptor in (VALUE, LIST, MAP):
                with _memory() as peak:
                    refused = _is_refused(backend, isolation, descriptor, keys, _MOST_BYTES)
                assert refused, f"{_KEYS * _VALUE_BYTES} bytes of {descriptor.name} where {_MOST_BYTES} are allowed"
                assert peak[0] <= _MOST_BYTES + _SLACK_BYTES, (
                    f"{peak[0]} bytes for a read of {descriptor.name} that may give {_MOST_BYTES}, of values of "
                    f"{_VALUE_BYTES} each, {isolation.value}"
                )


def _large(descriptor: StateDescriptor, number: int) -> Any:
    """Contents of about `_VALUE_BYTES`."""
    part = bytes([number]) * (_VALUE_BYTES // _PARTS)
    if descriptor is LIST:
        return [part] * _PARTS
    return {f"entry {place}": part for place in range(_PARTS)} if descriptor is MAP else part * _PARTS


@contextmanager
def _memory() -> Iterator[list[int]]:
    """How much more memory than before is allocated inside, at its peak: the one element of the list, afterwards."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start(1)
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
