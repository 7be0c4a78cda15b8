"""A serializer for readers without the job's code: its values are the stored bytes, unchanged.

Rules of this module: it knows no state and no types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qstate.serializers import Serializer

__all__ = ["stored_bytes"]


class _StoredBytes(Serializer):
    """Passes bytes through as values, under the name of a subclass."""

    def dumps(self, value: Any) -> bytes:
        data: bytes = value
        return data

    def loads(self, data: bytes) -> Any:
        return data

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        return list(values)

    def load_all(self, data: Iterable[bytes]) -> list[Any]:
        return list(data)


def stored_bytes(name: str) -> Serializer:
    """The serializer under the name of the job's."""
    own_class: type[_StoredBytes] = type("StoredBytes", (_StoredBytes,), {"name": name})
    return own_class()
