"""The numbers of MessagePack's extension types that qstate uses in values and in keys.

Rules of this module: numbers only. `serializers` and `keys` write and read the payloads.
"""

from __future__ import annotations

__all__ = ["DATETIME_EXT", "DATE_EXT", "DECIMAL_EXT", "TIMEDELTA_EXT", "TUPLE_EXT", "UUID_EXT"]

TUPLE_EXT, DATETIME_EXT, DATE_EXT, DECIMAL_EXT, UUID_EXT, TIMEDELTA_EXT = 1, 2, 3, 4, 5, 6
