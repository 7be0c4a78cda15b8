"""What the fields of several messages have in common: their types, bounds and words for errors.

Rules of this module: annotations only, as `messages` explains them. It must not know which message has which field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Raw

from qstate.errors import Detail
from qstate.protocol.fields import Reader, check_attributes, read_target
from qstate.protocol.limits import MAX_DEADLINE_MS, MAX_ID, MAX_NAME, Limits

__all__ = [
    "MAX_CODE",
    "NO_ATTRIBUTES",
    "NO_EPOCH",
    "TRACEPARENT",
    "Attributes",
    "Deadline",
    "Name",
    "RequestId",
    "Target",
    "array",
    "integer",
    "text",
]

#: `(job, state)` at a proxy, the 16 bytes of a state id at a state server.
Target: TypeAlias = Annotated[
    tuple[str, str] | bytes,
    Reader(read_target, Annotated[tuple[str, str] | bytes, Meta(description="state id or [job, state]")]),
]
#: The epoch of a key whose result is a failure.
NO_EPOCH = -1
#: The largest failure code. A newer peer may use codes that this version does not know.
MAX_CODE = 65_535


def integer(low: int, high: int) -> Meta:
    return Meta(ge=low, le=high, description=f"integer {low}..{high}")


def text(low: int) -> Meta:
    return Meta(min_length=low, max_length=MAX_NAME, description=f"string of {low}..{MAX_NAME} characters")


def array(low: int, high: int, of: str) -> Meta:
    return Meta(min_length=low, max_length=high, description=f"array of {low}..{high} {of}")


#: The known attribute of a Get, GetPart, Scan or Poll. It names the span that the request is sent for, in the form of
#: W3C Trace Context. A receiver that traces makes its own spans children of that span.
TRACEPARENT = "?traceparent"
#: The characters of its version 00. Another text is as good as none.
TRACEPARENT_LENGTH = 55
NO_ATTRIBUTES: Mapping[str, Detail] = {}


def _read_attributes(raw: Raw, limits: Limits) -> Mapping[str, Detail]:
    """The known attributes of a request about keys."""
    found = check_attributes(raw).get(TRACEPARENT)
    return {TRACEPARENT: found} if type(found) is str and len(found) == TRACEPARENT_LENGTH else NO_ATTRIBUTES


#: Those that this version knows; the payload ends without them if there are none.
Attributes: TypeAlias = Annotated[Mapping[str, Detail], Reader(_read_attributes)]
RequestId: TypeAlias = Annotated[int, integer(1, MAX_ID)]
Deadline: TypeAlias = Annotated[int, integer(0, MAX_DEADLINE_MS)]
Name: TypeAlias = Annotated[str, text(1)]
