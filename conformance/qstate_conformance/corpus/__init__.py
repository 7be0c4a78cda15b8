"""The golden corpus: frames, keys and values as bytes with their meaning, in JSON that any language can read.

Rules of this module: it reads `frames.json` and gives it as it is. Nothing in it checks anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["corpus", "value_of"]


@cache
def corpus() -> dict[str, Any]:
    """The corpus as JSON has it, read once; its entry `about` says how binaries and large integers are written."""
    text = files(__name__).joinpath("frames.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def value_of(found: Any) -> Any:
    """The Python value of the corpus's JSON: arrays are tuples, and its tags stand for what JSON lacks."""
    if isinstance(found, list):
        return tuple(value_of(item) for item in found)
    if isinstance(found, dict):
        for tag, read in _TAGS.items():
            if found.keys() == {tag}:
                return read(found[tag])
        return {name: value_of(item) for name, item in found.items()}
    return found


def _moment(found: tuple[int, int]) -> datetime:
    seconds, nanoseconds = found
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


_TAGS: dict[str, Callable[[Any], Any]] = {
    "$hex": bytes.fromhex,
    "$integer": int,
    "$date": date.fromisoformat,
    "$timestamp": _moment,
    "$decimal": Decimal,
}
