"""What the fields of several messages have in common: their types, bounds and words for errors.

Rules of this module: annotations only, as `messages` explains them. It must not know which message has which field.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from qstate.protocol.limits import MAX_DEADLINE_MS, MAX_ID, MAX_NAME

__all__ = ["MAX_CODE", "NO_EPOCH", "Deadline", "Name", "RequestId", "Target", "array", "integer", "text"]

#: `(job, state)` at a proxy, the 16 bytes of a state id at a state server.
Target: TypeAlias = tuple[str, str] | bytes
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


RequestId: TypeAlias = Annotated[int, integer(1, MAX_ID)]
Deadline: TypeAlias = Annotated[int, integer(0, MAX_DEADLINE_MS)]
Name: TypeAlias = Annotated[str, text(1)]
