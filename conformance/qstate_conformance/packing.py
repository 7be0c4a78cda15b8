"""MessagePack written by hand, in whichever of its forms the caller chooses.

Rules of this module: bytes only. It shares no code with qstate, so that a mistake there cannot hide here. A value is
what `msgpack` would pack, and two things that Python's own types cannot say:

    Pairs   a map, as a sequence of (key, value): keys may be arrays, and need not differ
    Ext     an extension type: its code and its payload

A date, a datetime with a time zone and a Decimal have the form that they have in a key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Choose", "Ext", "Pairs", "column_extension", "extension_column", "pack", "shortest"]

#: Which of so many forms, the shortest being number 0.
Choose: TypeAlias = Callable[[int], int]


class Pairs(NamedTuple):
    """A map."""

    entries: tuple[tuple[Any, Any], ...]


class Ext(NamedTuple):
    """An extension type."""

    code: int
    payload: bytes


def shortest(forms: int) -> int:
    """Selects the shortest form."""
    return 0


def pack(value: Any, choose: Choose = shortest) -> bytes:
    """The bytes of a value. Raises `TypeError` for what MessagePack has no form for."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _integer(value, choose)
    if isinstance(value, float):
        return _float(value, choose)
    if isinstance(value, str):
        return _sized(value.encode("utf-8", "surrogatepass"), (0xA0, 32), (0xD9, 0xDA, 0xDB), choose)
    if isinstance(value, Ext):
        return _extension(value, choose)
    if isinstance(value, date | Decimal):
        return _extension(column_extension(value), choose)
    if isinstance(value, Pairs):
        body = b"".join(pack(part, choose) for entry in value.entries for part in entry)
        return _header(len(value.entries), (0x80, 16), (None, 0xDE, 0xDF), choose) + body
    if isinstance(value, bytes):
        return _sized(value, None, (0xC4, 0xC5, 0xC6), choose)
    if isinstance(value, dict):
        return pack(Pairs(tuple(value.items())), choose)
    if isinstance(value, list | tuple):
        body = b"".join(pack(element, choose) for element in value)
        return _header(len(value), (0x90, 16), (None, 0xDC, 0xDD), choose) + body
    raise TypeError(f"MessagePack has no form for {value!r}")


def _integer(value: int, choose: Choose) -> bytes:
    forms = []
    if -32 <= value < 128:
        forms.append(struct.pack(">b", value))
    for letters, codes in (("BHIQ", (0xCC, 0xCD, 0xCE, 0xCF)), ("bhiq", (0xD0, 0xD1, 0xD2, 0xD3))):
        for letter, code in zip(letters, codes, strict=True):
            size = struct.calcsize(letter) * 8
            low, high = (0, (1 << size) - 1) if letter.isupper() else (-(1 << size - 1), (1 << size - 1) - 1)
            if low <= value <= high:
                forms.append(bytes([code]) + struct.pack(">" + letter, value))
    if not forms:
        raise TypeError(f"MessagePack has no integer of more than 64 bits: {value}")
    return forms[choose(len(forms))]


def _float(value: float, choose: Choose) -> bytes:
    forms = [b"\xcb" + struct.pack(">d", value)]
    try:
        half = struct.pack(">f", value)
    except OverflowError:
        return forms[0]
    if struct.unpack(">f", half)[0] == value:
        forms.append(b"\xca" + half)
    return forms[choose(len(forms))]


def _header(size: int, short: tuple[int, int] | None, codes: Sequence[int | None], choose: Choose) -> bytes:
    forms = []
    if short is not None and size < short[1]:
        forms.append(bytes([short[0] | size]))
    for code, letter in zip(codes, "BHI", strict=True):
        if code is not None and size < 1 << struct.calcsize(letter) * 8:
            forms.append(bytes([code]) + struct.pack(">" + letter, size))
    return forms[choose(len(forms))]


def _sized(data: bytes, short: tuple[int, int] | None, codes: Sequence[int], choose: Choose) -> bytes:
    return _header(len(data), short, codes, choose) + data


def column_extension(column: date | datetime | Decimal) -> Ext:
    """A date, a moment or a decimal as it is in a key."""
    if isinstance(column, Decimal):
        return Ext(4, f"{column:f}".encode())
    if not isinstance(column, datetime):
        return Ext(3, column.isoformat().encode())
    seconds, rest = divmod(column - datetime(1970, 1, 1, tzinfo=timezone.utc), timedelta(seconds=1))
    nanoseconds = rest.microseconds * 1000
    if not 0 <= seconds < 1 << 34:
        return Ext(-1, struct.pack(">Iq", nanoseconds, seconds))
    if nanoseconds or seconds >> 32:
        return Ext(-1, struct.pack(">Q", nanoseconds << 34 | seconds))
    return Ext(-1, struct.pack(">I", seconds))


def extension_column(code: int, payload: bytes) -> Any:
    """The date or decimal of a key's extension type; MessagePack's own timestamps are the reader's matter."""
    if code == 3:
        return date.fromisoformat(payload.decode())
    return Decimal(payload.decode()) if code == 4 else Ext(code, payload)


def _extension(value: Ext, choose: Choose) -> bytes:
    size, code = len(value.payload), struct.pack(">b", value.code)
    forms = [bytes([0xD4 + power]) for power in range(5) if size == 1 << power]
    for first, letter in zip((0xC7, 0xC8, 0xC9), "BHI", strict=True):
        if size < 1 << struct.calcsize(letter) * 8:
            forms.append(bytes([first]) + struct.pack(">" + letter, size))
    return forms[choose(len(forms))] + code + value.payload
