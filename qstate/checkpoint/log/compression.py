"""Compression of the body blocks of checkpoint files.

Rules of this module: bytes in, bytes out. A compressed block begins with the uncompressed length (u32, little-endian),
then the codec's own bytes: `lz4` is LZ4's block format ("raw"), `zstd` a Zstandard frame. Both come from PyArrow,
which every task manager has. A reader of such files elsewhere needs PyArrow, too.

**The bound.** Zstandard compresses a gigabyte of zeros to 32 KiB, so a small damaged block could claim any length. A
block may expand to at most `LARGEST_EXPANSION` times its stored size, which is more than LZ4 can do, or to
`ALWAYS_ALLOWED` bytes, whichever is more. The reader refuses a larger one before it allocates memory. The writer keeps
the bound: if data compresses better, it appends an empty (skippable) Zstandard frame of the missing length.
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
#: The head of a frame that decoders skip: its magic number and its length.
_SKIPPED = Struct("<II")
_SKIPPED_MAGIC = 0x184D2A50
_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


def compressor(name: str) -> Callable[[bytes], bytes] | None:
    """The function that compresses the blocks of a file, None for no compression. Raises what `decompressor` raises."""
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
    """The inverse of `compressor`; the function raises `ValueError` for bytes that the compressor did not make.

    Raises `CheckpointError` for an unknown name and `InstallationError` when PyArrow is missing.
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
        import pyarrow  # noqa: PLC0415  # optional: only compressed files need it
    except ImportError as exc:
        raise InstallationError(
            f"reading a checkpoint with {name} compression needs PyArrow: pip install 'spark-qstate[spark]'"
        ) from exc
    return pyarrow.Codec(_CODECS[name])
