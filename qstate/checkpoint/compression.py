"""Compression of the body blocks of checkpoint files.

Rules of this module: bytes in, bytes out. A compressed block begins with the length of what was compressed (u32,
little-endian), then the codec's own bytes: `lz4` is LZ4's block format ("raw"), `zstd` a Zstandard frame. Both are
PyArrow's, which every task manager has; whoever reads such files elsewhere needs it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from qstate.config import COMPRESSIONS
from qstate.errors import CheckpointError, InstallationError

__all__ = ["compressor", "decompressor"]

_LENGTH = Struct("<I")
_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


def compressor(name: str) -> Callable[[bytes], bytes] | None:
    """How the blocks of a file are compressed, None for not at all. Raises as `decompressor` does."""
    if name == "none":
        return None
    compress = _codec(name).compress
    return lambda data: _LENGTH.pack(len(data)) + compress(data, asbytes=True)


def decompressor(name: str) -> Callable[[bytes], bytes] | None:
    """The inverse of `compressor`, for blocks that were checked.

    Raises `CheckpointError` for a name that is not known here and `InstallationError` when PyArrow is missing.
    """
    if name == "none":
        return None
    decompress = _codec(name).decompress

    def restored(data: bytes) -> bytes:
        found: bytes = decompress(data[_LENGTH.size :], _LENGTH.unpack_from(data)[0], asbytes=True)
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
