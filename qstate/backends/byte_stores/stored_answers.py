"""Query answers of a byte store: from the stored entries of one key to the bytes that a client receives.

Rules of this module: it knows what the store holds for each kind of state (`layout`), and how an answer looks
(`qstate.backends.answers`). It reads no store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from qstate.backends.answers import Answer, accumulator_answer, list_answer, map_answer, too_large, unpack_elements
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import FailureCode, TooLarge
from qstate.host.line_limit import limited

__all__ = ["AnswerOf", "answer_of_entries", "list_of", "map_of", "result_of"]

_LOG = limited(logging.getLogger(__name__))

#: From a key's entries (store key and data), how many bytes of a store key precede the sub-key, and the most bytes of
#: an answer, to the answer.
AnswerOf = Callable[[Iterator[tuple[bytes, bytes]], int, int], Answer]


def list_of(additions: Iterable[bytes], descriptor: StateDescriptor, most_bytes: int) -> bytes | None:
    """The answer of a list. Raises `TooLarge` as soon as it is larger than `most_bytes`."""
    elements: list[bytes] = []
    left = most_bytes
    for addition in additions:
        added = unpack_elements(addition)
        elements += added
        left -= sum(map(len, added))
        if left < 0:
            raise too_large(most_bytes)
    return list_answer(descriptor, elements) if elements else None


def map_of(stored: Iterable[tuple[bytes, bytes]], start: int, descriptor: StateDescriptor, most: int) -> bytes | None:
    """The answer of a map, whose map keys begin at `start`. Raises `TooLarge` once it has more than `most` bytes."""
    entries: dict[bytes, bytes] = {}
    left = most
    for entry_key, data in stored:
        entries[entry_key[start:]] = data
        left -= len(entry_key) - start + len(data)
        if left < 0:
            raise too_large(most)
    return map_answer(descriptor, entries) if entries else None


def result_of(found: bytes | None, descriptor: StateDescriptor, dump: Callable[[object], bytes]) -> Answer:
    """The answer of a value that is one entry, computed of its accumulator if it is an aggregating state's."""
    try:
        return None if found is None else accumulator_answer(descriptor, dump, found)
    except Exception:
        # Stored bytes do not change while they are read, so the aggregate function or the serializer has failed.
        _LOG.exception("state %r: a result cannot be computed", descriptor.name)
        return FailureCode.INTERNAL


def answer_of_entries(descriptor: StateDescriptor) -> AnswerOf:
    """The function that a scan makes answers with. It does not raise: a value that is too large is `TOO_LARGE`."""
    kind, dump = descriptor.kind, descriptor.result_dumper()

    def answer(stored: Iterator[tuple[bytes, bytes]], start: int, most_bytes: int) -> Answer:
        try:
            if kind is StateKind.LIST:
                return list_of((data for _, data in stored), descriptor, most_bytes)
            if kind is StateKind.MAP:
                return map_of(stored, start, descriptor, most_bytes)
        except TooLarge as exc:
            return exc.code
        _, data = next(stored)
        found = result_of(data, descriptor, dump) if kind is StateKind.AGGREGATING else data
        return FailureCode.TOO_LARGE if isinstance(found, bytes) and len(found) > most_bytes else found

    return answer
