"""Compression of the body blocks of checkpoint files.

Rules of this module: bytes in, bytes out. A compressed block begins with the length of what was compressed (u32,
little-endian), then the codec's own bytes: `lz4` is LZ4's block format ("raw"), `zstd` a Zstandard frame. Both are
PyArrow's, which every task manager has; whoever reads such files elsewhere needs it, too.

**The bound.** Zstandard makes a gigabyte of zeros a file of 32 KiB, so the length that a block names says nothing of
what it is worth. A block becomes at most `LARGEST_EXPANSION` times as large as it is stored, which is more than LZ4 can
do, or `ALWAYS_ALLOWED` bytes, whichever is more. A larger one is refused before memory is asked for. The writer keeps
to that: where data is better compressed, an empty (skippable) Zstandard frame of the length that is missing follows.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from qstate.config import COMPRESSIONS
from qstate.errors import CheckpointError, InstallationError

__all__ = ["compressor", "decompressor"]

ALWAYS_ALLOWED = 64 << 20
LARGEST_EXPANSION = 256

_LENGTH = Struct("<I")
#: The head of a frame that decoders pass over: its magic number, and how long it is.
_SKIPPED = Struct("<II")
_SKIPPED_MAGIC = 0x184D2A50
_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


def compressor(name: str) -> Callable[[bytes], bytes] | None:
    """How the blocks of a file are compressed, None for not at all. Raises as `decompressor` does."""
    if name == "none":
        return None
    compress = _codec(name).compress

    def compressed(data: bytes) -> bytes:
        found: bytes = compress(data, asbytes=True)
        missing = -(-len(data) // LARGEST_EXPANSION) - len(found) if len(data) > ALWAYS_ALLOWED else 0
        if missing > 0:
            found += _SKIPPED.pack(_SKIPPED_MAGIC, missing) + bytes(missing)
        return _LENGTH.pack(len(data)) + found

    return compressed


def decompressor(name: str) -> Callable[[bytes], bytes] | None:
    """The inverse of `compressor`; what it gives raises `ValueError` for bytes that are not so compressed.

    Raises `CheckpointError` for a name that is not known here and `InstallationError` when PyArrow is missing.
    """
    if name == "none":
        return None
    decompress = _codec(name).decompress

    def restored(data: bytes) -> bytes:
        if len(data) < _LENGTH.size:
            raise ValueError("it is too short to be compressed")
        length: int = _LENGTH.unpack_from(data)[0]
        if length > max(ALWAYS_ALLOWED, LARGEST_EXPANSION * (len(data) - _LENGTH.size)):
            raise ValueError(f"{len(data):,} compressed bytes claim to be {length:,}, which qstate does not write")
        try:
            found: bytes = decompress(data[_LENGTH.size :], length, asbytes=True)
        except OSError as exc:
            raise ValueError(str(exc)) from exc
        return found

    return restored


def _codec(name: str) -> Any:
    if name not in _CODECS:
        raise CheckpointError(f"compression {name!r} is not one of {', '.join(COMPRESSIONS)}: a newer qstate wrote it")
    try:
        import pyarrow  # noqa: PLC0415  # optional: reading what is not compressed needs nothing of it
    except ImportError as exc:
        raise InstallationError(
            f"reading a checkpoint with {name} compression needs PyArrow: pip install 'spark-qstate[spark]'"
        ) from exc
    return pyarrow.Codec(_CODECS[name])
