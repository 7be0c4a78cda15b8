"""The key group of a key, computed from the reference alone (P-KEY-3, P-KEY-4).

Rules of this module: arithmetic only. XXH64 is written out, so that a wrong library is not on both sides of a law.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

__all__ = ["Column", "Key", "group_of", "hash_of", "xxh64"]

Column = str | bytes | int | bool | date | datetime | Decimal
Key = Column | tuple[Column, ...]

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_SEED = 42


def group_of(key: Key, max_parallelism: int) -> int:
    """The key group: the hash as a signed integer, in the mathematical modulus."""
    unsigned = hash_of(key)
    signed = unsigned - (1 << 64) if unsigned >> 63 else unsigned
    return signed % max_parallelism


def hash_of(key: Key) -> int:
    """The hash of a key, unsigned: XXH64 over its columns, each seeded with the hash of those before."""
    found = _SEED
    for column in key if isinstance(key, tuple) else (key,):
        found = xxh64(_hashed_bytes(column), found)
    return found


def _hashed_bytes(column: Column) -> bytes:
    if isinstance(column, str):
        return column.encode()
    if isinstance(column, bytes):
        return column
    if isinstance(column, bool):
        return bytes((column, 0, 0, 0))
    if isinstance(column, datetime):
        microseconds = (column - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
        return microseconds.to_bytes(8, "little", signed=True)
    if isinstance(column, date):
        return (column - date(1970, 1, 1)).days.to_bytes(4, "little", signed=True)
    if isinstance(column, Decimal):
        unscaled = int(f"{column:f}".replace(".", ""))
        size = next(size for size in range(1, 17) if -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1)
        return unscaled.to_bytes(size, "big", signed=True)
    return column.to_bytes(8, "little", signed=True)


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification describes it."""
    end = len(data) - len(data) % 32
    found = _merged(data[:end], seed) if end else (seed + _P5) & _MASK
    found = (found + len(data)) & _MASK
    rest = data[end:]
    for lane in _lanes(rest[: len(rest) & ~7], 8):
        found = (_rotated(found ^ _round(0, lane), 27) * _P1 + _P4) & _MASK
    rest = rest[len(rest) & ~7 :]
    if len(rest) >= 4:
        found = (_rotated(found ^ (int.from_bytes(rest[:4], "little") * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        rest = rest[4:]
    for byte in rest:
        found = _rotated(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    return _mixed(found)


def _merged(stripes: bytes, seed: int) -> int:
    lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
    for index, lane in enumerate(_lanes(stripes, 8)):
        lanes[index % 4] = _round(lanes[index % 4], lane)
    found = sum(_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    for lane in lanes:
        found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    return found


def _mixed(found: int) -> int:
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _lanes(data: bytes, size: int) -> Iterator[int]:
    return (int.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size))


def _round(lane: int, value: int) -> int:
    return _rotated((lane + value * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, turn: int) -> int:
    return (value << turn | value >> (64 - turn)) & _MASK
