"""The values of settings: conversion to the declared type, also from text, the bounds of a frame, and what to show.

Rules of this module: types, bounds and text only. Spark's conf and command lines give every value as text; all use
these rules.
"""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any

__all__ = ["MAX_FRAME_LIMIT", "MIN_MAX_FRAME", "WORDS", "setting_value", "without_password"]

#: Bytes. No server may announce less: every Failure must fit, with the names in its details.
MIN_MAX_FRAME = 4096
#: The length field has 32 bits.
MAX_FRAME_LIMIT = (1 << 28) - 1

#: The names of the types in messages.
WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
#: From the colon behind a user's name to what must be the host. The name itself is no secret.
_PASSWORD = re.compile(r"(?<=[^:/]:)(?![:/]).*@", re.DOTALL)
_TRUTHS = {"true": True, "false": False}


def setting_value(kind: type, value: Any) -> Any:
    """The value as a bool, int, float or str, or None when it does not fit. True is not a number, 1 is a float."""
    if type(value) is kind:
        return value
    if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if type(value) is not str:
        return None
    if kind is bool:
        return _TRUTHS.get(value.strip().lower())
    try:
        return kind(value.strip())
    except ValueError:
        return None


def without_password(url: str) -> str:
    """The text to show of what a user wrote for a URL, which need not be one. A password in it is left out."""
    return _PASSWORD.sub("...@", url)
