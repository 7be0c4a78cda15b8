"""A value as JSON, or the reason why it cannot be written so.

Rules of this module: values in, JSON out. It is the one place where the depth of a value can exhaust the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw, json

from qstate.errors import SerializationError
from qstate.values.text_forms import printable

__all__ = ["value_json"]


def value_json(read: Callable[[], Any]) -> Raw:
    """What `read` returns as JSON, to be put into other JSON as it is.

    Raises what `read` raises, and `SerializationError` for a value whose lists and maps are nested so deep that
    writing them would exhaust the stack.
    """
    try:
        return Raw(json.encode(printable(read())))
    except RecursionError:
        raise SerializationError(
            "the value is nested too deep to be written as JSON: read it with a client of the query port"
        ) from None
