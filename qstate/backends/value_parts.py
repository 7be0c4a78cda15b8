"""The value of one key, read part by part, so that one entry of a large map does not cost the whole map.

Rules of this module: it has the interface (`ValueParts`), which `contract` names, and the parts of an answer that was
read whole. It knows answers, and no backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import msgpack

from qstate.backends.answers import Answer, is_spliced
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode, query_error

__all__ = ["LARGEST_WHOLE", "ValueParts", "WholeValue", "whole_value"]

#: The largest answer that a reader without PARTS reads whole for a part of it, in bytes.
LARGEST_WHOLE = 64 * 1024 * 1024


class ValueParts(ABC):
    """One key's value, as it is now. One thread at a time uses it, and closes it.

    V1: `epoch` and the parts MUST be what `StateReader.get` of the same isolation would answer at the opening. A
        committed value MUST stay so until `close`, whatever is written, committed, rolled back or finalized meanwhile.
        A live one MAY show later writes.
    V2: Parts MUST be the same bytes that `get` puts into its answer: the serializer's bytes of each element or value.
    V3: `entries` MUST come in ascending order of the encoded map keys; with `after`, only those after this one, at
        which nothing need be stored. So a page can go on at another backend.
    V4: With SNAPSHOT_READS, the result of one call of `elements` or `entries` MUST be of one moment. Without, a part of
        a live value that changes meanwhile MAY raise `ConcurrentModification`.
    V5: With PARTS, a value of any size MUST be read, and no more than one element, entry or single value at a time be
        made. Without, `StateReader.parts` MAY raise `TooLarge` for a value of more than `LARGEST_WHOLE` bytes.
    V6: After `close` of the backend, each method MUST raise `ClosedError` or answer as before, never crash.
    """

    #: The epoch of the value.
    epoch: int

    @abstractmethod
    def value(self) -> bytes | None:
        """What `get` answers for a value, reducing or aggregating state.

        Raises the `QueryError` of the failure that `get` answers.
        """

    @abstractmethod
    def elements(self) -> Iterator[bytes]:
        """The elements of a list, in order."""

    @abstractmethod
    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The encoded map keys and the values of a map's entries that come after an encoded map key."""

    @abstractmethod
    def entry(self, map_key: bytes) -> bytes | None:
        """The value of a map's entry with this encoded map key, None without one."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Free what it holds. Idempotent. Results of `elements` and `entries` may end early then."""


class WholeValue(ValueParts):
    """The parts of an answer that `StateReader.get` has given, at once or whenever it is asked for one.

    Raises the `QueryError` of a failure in the place of an answer.
    """

    def __init__(self, descriptor: StateDescriptor, epoch: int, answer: Answer) -> None:
        if isinstance(answer, FailureCode):
            raise query_error(answer, {})
        self.epoch = epoch
        self._answer = answer
        self._spliced = is_spliced(descriptor)
        self._found: dict[bytes, bytes] | None = None

    def value(self) -> bytes | None:
        return self._answer

    def elements(self) -> Iterator[bytes]:
        if self._answer is not None:
            unpacker = _unpacker(self._answer)
            for _ in range(unpacker.read_array_header()):
                yield self._next(unpacker, self._answer)

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        found = self._entries()
        for map_key in sorted(found):
            if after is None or map_key > after:
                yield map_key, found[map_key]

    def entry(self, map_key: bytes) -> bytes | None:
        return self._entries().get(map_key)

    def _entries(self) -> dict[bytes, bytes]:
        if self._found is None:
            self._found = {}
            if self._answer is not None:
                unpacker = _unpacker(self._answer)
                for _ in range(unpacker.read_map_header()):
                    start = unpacker.tell()
                    unpacker.skip()
                    map_key = self._answer[start : unpacker.tell()]
                    self._found[map_key] = self._next(unpacker, self._answer)
        return self._found

    def _next(self, unpacker: msgpack.Unpacker, answer: bytes) -> bytes:
        """The serializer's bytes of the next value."""
        if not self._spliced:
            data: bytes = unpacker.unpack()
            return data
        start = unpacker.tell()
        unpacker.skip()
        return answer[start : unpacker.tell()]


def whole_value(descriptor: StateDescriptor, found: tuple[int, Sequence[Answer]]) -> WholeValue:
    """The parts of what `StateReader.get` has found for one key."""
    epoch, (answer,) = found
    return WholeValue(descriptor, epoch, answer)


def _unpacker(answer: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(max_buffer_size=len(answer))
    unpacker.feed(answer)
    return unpacker
