"""The messages about parts of one value: some entries of a map, a slice of a list, a piece of what a Get would answer.

Rules of this module: as in `messages`, which has the others and the type numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from qstate.errors import Detail
from qstate.keys import Key, Namespace
from qstate.protocol.fields import (
    MAX_INT64,
    Reader,
    malformed,
    read_key,
    read_map_key,
    read_map_keys,
    read_namespace,
    read_part,
    read_part_options,
    write_key,
    write_keys,
)
from qstate.protocol.limits import MAX_FRAME_LIMIT, MAX_VERSION_BYTES, MIN_MAX_FRAME, Limits
from qstate.protocol.rules import NO_ATTRIBUTES, NO_EPOCH, Attributes, Deadline, Name, RequestId, Target, integer

__all__ = ["BYTES", "ENTRIES", "PAGE", "SIZE", "SLICE", "GetPart", "Part", "check_get_part"]

#: What a GetPart may ask for: see `GetPart`.
ENTRIES, PAGE, SLICE, SIZE, BYTES = "entries", "page", "slice", "size", "bytes"
_Count = Annotated[int, integer(0, MAX_INT64)]


class GetPart(NamedTuple):
    """Read a part of the value of one key. `deadline_ms` counts from the moment of receipt.

    By `part`: `entries`, those entries of a map that `map_keys` names; `page`, at most `length` entries after the map
    key `after`, in the order of the encoded map keys; `slice`, at most `length` elements of a list from the position
    `start` on; `size`, the number of elements or entries; `bytes`, at most `length` bytes of what a Get would answer,
    from the byte `start` on. Fields that a part does not use are ignored.
    """

    id: RequestId
    deadline_ms: Deadline
    target: Target
    namespace: Annotated[Namespace, Reader(read_namespace, write=write_key)]
    options: Annotated[Mapping[str, Detail], Reader(read_part_options)]
    key: Annotated[Key, Reader(read_key, write=write_key)]
    part: Annotated[str, Reader(read_part)]
    map_keys: Annotated[tuple[Key, ...], Reader(read_map_keys, write=write_keys)]
    after: Annotated[Key | None, Reader(read_map_key, write=write_key)]
    start: _Count
    length: _Count
    attributes: Attributes = NO_ATTRIBUTES

    @property
    def keys(self) -> tuple[Key, ...]:
        """The key, as a Get has its keys."""
        return (self.key,)

    @property
    def max_bytes(self) -> int:
        """The largest payload that the answer may have."""
        found = self.options.get("max_bytes") if self.options else None
        return max(found, MIN_MAX_FRAME) if isinstance(found, int) else MAX_FRAME_LIMIT


class Part(NamedTuple):
    """The answer to GetPart: a map of the entries, a list of the elements or a piece of bytes.

    `result` is None when there are none of them, and with `bytes` when there is no value.

    `after` is where the next page begins, None after the last one. `total` is the number that `size` asks for, and of
    `bytes` that of the whole answer; `version` stands for that whole answer.
    """

    id: RequestId
    epoch: Annotated[int, integer(NO_EPOCH, MAX_INT64)]
    fingerprint: Name
    result: Annotated[bytes | None, Meta(description="binary or nil")]
    after: Annotated[Key | None, Reader(read_map_key, write=write_key)]
    total: _Count
    version: Annotated[
        bytes, Meta(max_length=MAX_VERSION_BYTES, description=f"binary of at most {MAX_VERSION_BYTES} bytes")
    ]


def check_get_part(message: GetPart, limits: Limits) -> None:
    if message.part == ENTRIES and not message.map_keys:
        raise malformed("map_keys", f"array of 1..{limits.max_keys} for the part {ENTRIES!r}")
    if message.part == PAGE and not message.length:
        raise malformed("length", f"integer 1..{MAX_INT64} for the part {PAGE!r}")
