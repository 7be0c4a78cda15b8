"""Descriptions: all entries of an answer to a Describe, or as many as fit it.

Rules of this module: it knows the messages Describe and Description, and not where entries come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from qstate.errors import TooLarge
from qstate.protocol.limits import MAX_ENTRIES
from qstate.protocol.messages import AFTER, MORE, Describe, Description

__all__ = ["description_of"]

#: What a Description has beside its entries.
_FRAME_BYTES = 64
_pack = msgspec.msgpack.Encoder().encode


def description_of(request: Describe, entries: Iterable[Mapping[str, Any]], most_bytes: int) -> Description:
    """The answer to a Describe: without `AFTER` all entries, otherwise a page in the order of their names.

    Raises `TooLarge` for an entry that fits no page.
    """
    after = request.attributes.get(AFTER)
    if not isinstance(after, str):
        return Description(request.id, tuple(entries))
    names = {_name_of(entry): entry for entry in entries}
    found: list[Mapping[str, Any]] = []
    left = most_bytes - _FRAME_BYTES
    for name in sorted(name for name in names if name > after):
        left -= len(_pack(names[name]))
        if left < 0 or len(found) == MAX_ENTRIES:
            if not found:
                raise TooLarge(field="entries", limit=most_bytes)
            return Description(request.id, tuple(found), {MORE: True})
        found.append(names[name])
    return Description(request.id, tuple(found))


def _name_of(entry: Mapping[str, Any]) -> str:
    """The name of a state or a job."""
    name: str = entry["name"] if "kind" in entry else entry["job"]
    return name
