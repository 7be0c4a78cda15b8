"""The numbers of MessagePack's extension types that qstate uses in values and in keys, and the size of its packers.

Rules of this module: numbers only. `serializers` and `keys` write and read the payloads.
"""

from __future__ import annotations

__all__ = ["DATETIME_EXT", "DATE_EXT", "DECIMAL_EXT", "PACKER_BYTES", "TIMEDELTA_EXT", "TUPLE_EXT", "UUID_EXT"]

TUPLE_EXT, DATETIME_EXT, DATE_EXT, DECIMAL_EXT, UUID_EXT, TIMEDELTA_EXT = 1, 2, 3, 4, 5, 6
#: The buffer that a packer begins with; it grows. The library's own size is so large that in a process with a query
#: port the system maps it for each packer and unmaps it again (`freed_memory`): a packer is made for every few values.
PACKER_BYTES = 4096
