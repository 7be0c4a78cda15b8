"""Lists and maps of the heap part by part: an element or entry is serialized when it is asked for.

Rules of this module: it knows no epochs and no locks. A committed list or dict is a copy for it alone. A live one is
the operator's own: it is copied, in one step of the interpreter, for each walk, and not for a single entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qstate.backends.answers import is_immutable
from qstate.backends.value_parts import ValueParts
from qstate.errors import ConcurrentModification, InternalFailure
from qstate.host.line_limit import limited
from qstate.keys import Key, decode_key, encode_key

__all__ = ["HeapParts"]

_LOG = limited(logging.getLogger(__name__))
_ABSENT: Any = object()


class HeapParts(ValueParts):
    """The elements of a list, or the entries of a dict. `dump` serializes one; None: they are bytes already."""

    def __init__(
        self,
        epoch: int,
        dump: Callable[[Any], bytes] | None,
        *,
        elements: Sequence[Any] = (),
        entries: Mapping[Key, Any] | None = None,
    ) -> None:
        self.epoch = epoch
        self._dump = dump
        self._elements = elements
        self._entries = entries or {}

    def value(self) -> bytes | None:
        raise AssertionError("a list or map has elements or entries")

    def elements(self) -> Iterator[bytes]:
        return map(self._dumped, list(self._elements))

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        entries = {encode_key(map_key): value for map_key, value in list(self._entries.items())}
        for map_key in sorted(entries):
            if after is None or map_key > after:
                yield map_key, self._dumped(entries[map_key])

    def entry(self, map_key: bytes) -> bytes | None:
        found = self._entries.get(decode_key(map_key), _ABSENT)  # type: ignore[arg-type]  # a map key is never None
        return None if found is _ABSENT else self._dumped(found)

    def _dumped(self, value: Any) -> bytes:
        if self._dump is None:
            data: bytes = value
            return data
        try:
            return self._dump(value)
        except Exception as exc:
            # User code serializes an object that user code may be changing, so it may raise any exception.
            if is_immutable(value):
                _LOG.exception("a part of a value cannot be serialized")
                raise InternalFailure() from exc
            raise ConcurrentModification() from exc
