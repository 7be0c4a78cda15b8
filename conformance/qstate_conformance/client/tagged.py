"""Values in the lines between the suite and a driver: JSON, with tags for what JSON cannot say.

Rules of this module: plain data in and out, no I/O. `tagged` writes the suite's questions, `differs` judges what a
driver reports. It is lenient where languages differ and the protocol does not care (a number that is whole may come
as a float, an extension type as its payload or as what it means) and strict in all else.

    {"$hex": "00ff"}              binary
    {"$integer": "9223372036854775807"}   an integer that JSON readers may round: beyond 2**53
    {"$float": "nan"}             nan, inf, -inf
    {"$map": [[key, value], ...]} a map
    {"$ext": [code, "hex"]}       an extension type as its payload
    {"$timestamp": [seconds, nanoseconds]}   ext -1      {"$datetime": text}  ext 2
    {"$date": text}               ext 3                  {"$decimal": text}   ext 4
"""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import msgpack

from qstate_conformance.packing import Ext, Pairs, column_extension

__all__ = ["TAGS", "differs", "tagged"]

#: The largest integer that every JSON reader keeps.
SAFE_INTEGER = 2**53 - 1
TAGS = ("$hex", "$integer", "$float", "$map", "$ext", "$timestamp", "$datetime", "$date", "$decimal")
#: The tags that say what an extension type with a text means.
_TEXTS = {2: "$datetime", 3: "$date", 4: "$decimal"}


def tagged(value: Any) -> Any:
    """The JSON of a value. Raises `TypeError` for what has none."""
    if isinstance(value, date | Decimal):
        value = column_extension(value)
    if isinstance(value, Ext):
        return {"$ext": [value.code, value.payload.hex()]}
    if isinstance(value, Pairs | dict):
        entries = value.entries if isinstance(value, Pairs) else value.items()
        return {"$map": [[tagged(key), tagged(entry)] for key, entry in entries]}
    if isinstance(value, list | tuple):
        return [tagged(element) for element in value]
    if isinstance(value, bytes | bytearray):
        return {"$hex": value.hex()}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else {"$integer": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    raise TypeError(f"a line has no form for {value!r}")


def differs(expected: Any, reported: Any, where: str = "the value") -> str | None:
    """The difference between a reported value and the expected one, in one sentence; None for none."""
    if isinstance(expected, Ext):
        return None if _is_extension(expected, reported) else _told(expected, reported, where)
    if isinstance(expected, Pairs | dict):
        entries = expected.entries if isinstance(expected, Pairs) else tuple(expected.items())
        return _map_differs(entries, reported, where)
    if isinstance(expected, list | tuple):
        if not isinstance(reported, list) or len(reported) != len(expected):
            return _told(expected, reported, where)
        found = (
            differs(mine, yours, f"{where}[{index}]")
            for index, (mine, yours) in enumerate(zip(expected, reported, strict=True))
        )
        return next(filter(None, found), None)
    return None if _is_scalar(expected, reported) else _told(expected, reported, where)


def _map_differs(entries: tuple[tuple[Any, Any], ...], reported: Any, where: str) -> str | None:
    found = reported.get("$map") if isinstance(reported, dict) else None
    if not isinstance(found, list) or len(found) != len(entries):
        return _told(Pairs(entries), reported, where)
    left = list(found)
    for key, value in entries:
        # A map has no order: its entries are found by their keys.
        entry = next((pair for pair in left if len(pair) == 2 and not differs(key, pair[0])), None)
        if entry is None:
            return f"{where}: there is no entry of the key {key!r}"
        left.remove(entry)
        wrong = differs(value, entry[1], f"{where}[{key!r}]")
        if wrong:
            return wrong
    return None


def _is_scalar(expected: Any, reported: Any) -> bool:
    if expected is None or isinstance(expected, bool | str):
        return type(reported) is type(expected) and bool(reported == expected)
    if isinstance(expected, bytes):
        return bool(reported == {"$hex": expected.hex()})
    number = _number(reported)
    if number is None:
        return False
    if not isinstance(expected, float):
        return bool(number == expected)
    # Without a point, too: languages write large floats as their shortest digits, and zeros.
    return math.isnan(number) if math.isnan(expected) else _as_float(number) == expected


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.nan


def _number(reported: Any) -> int | float | None:
    if isinstance(reported, int | float) and not isinstance(reported, bool):
        return reported
    if not isinstance(reported, dict) or len(reported) != 1:
        return None
    try:
        if "$integer" in reported:
            return int(reported["$integer"])
        return float(reported["$float"]) if "$float" in reported else None
    except (TypeError, ValueError):
        return None


def _is_extension(expected: Ext, reported: Any) -> bool:
    if reported == {"$ext": [expected.code, expected.payload.hex()]}:
        return True
    if expected.code == 1:
        elements = msgpack.unpackb(expected.payload, strict_map_key=False)
        return isinstance(elements, list) and differs(elements, reported) is None
    if expected.code == -1:
        moment = msgpack.Timestamp.from_bytes(expected.payload)
        return bool(reported == {"$timestamp": [moment.seconds, moment.nanoseconds]})
    tag = _TEXTS.get(expected.code)
    return tag is not None and bool(reported == {tag: expected.payload.decode()})


def _told(expected: Any, reported: Any, where: str) -> str:
    return f"{where} should read as {tagged(expected)!r}; the driver reported {reported!r}"
