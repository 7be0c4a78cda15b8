"""Checkpoint files taken apart into plain data, changed, and put together again with all checksums and links right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import msgpack
from xxhash import xxh64, xxh64_intdigest

from qstate.checkpoint.log.compression import decompressor
from qstate.checkpoint.manifest import write_checked
from qstate.checkpoint.storage.locations import directory_of

__all__ = ["ForgedDirectory", "ForgedFile", "RawBytes", "packed", "places", "replaced"]

MAGIC = b"QSTATEL1"
BLOCK, TRAILER, CHECKSUM = Struct("<BIQ"), Struct("<Q"), Struct("<Q")
HEADER, CHANGES, FRAME, FOOTER = 1, 2, 3, 4

#: Where something is in plain data.
Place = tuple[Any, ...]


class RawBytes:
    """Stands in plain data for MessagePack that no writer makes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"RawBytes({self.data[:20]!r}...)"


def packed(plain: Any) -> bytes:
    """MessagePack, with raw bytes where they stand."""
    if isinstance(plain, RawBytes):
        return plain.data
    packer = msgpack.Packer(autoreset=False)
    if isinstance(plain, list | tuple):
        packer.pack_array_header(len(plain))
        return bytes(packer.bytes()) + b"".join(map(packed, plain))
    if isinstance(plain, dict):
        packer.pack_map_header(len(plain))
        return bytes(packer.bytes()) + b"".join(packed(part) for pair in plain.items() for part in pair)
    return bytes(msgpack.packb(plain))


class ForgedFile:
    """One `.log`, `.snapshot`, `.output` or `.savepoint` file. `body` is what was in the blocks."""

    def __init__(self, data: bytes) -> None:
        (footer_at,) = TRAILER.unpack(data[-TRAILER.size :])
        blocks = list(_blocks(data, len(MAGIC), len(data) - TRAILER.size))
        self.header: Any = msgpack.unpackb(blocks[0][1])
        self.footer: Any = msgpack.unpackb(blocks[-1][1])
        self.seal = xxh64_intdigest(blocks[-1][1], FOOTER)
        self.kind = blocks[1][0] if len(blocks) > 2 else CHANGES
        restored = decompressor(self.header.get("compression", "none")) or (lambda payload: payload)
        payloads = [payload for _, payload in blocks[1:-1]]
        is_changes = self.kind == CHANGES
        self.body: list[Any] = [msgpack.unpackb(restored(one)) if is_changes else one for one in payloads]
        self._counted = (self.footer["blocks"], self.footer["digest"], self.footer.get("index"))
        assert footer_at == len(data) - TRAILER.size - BLOCK.size - len(blocks[-1][1])

    def put_together(self, compress: Callable[[bytes], bytes] = lambda payload: payload) -> bytes:
        """The file, and `seal` as it is now. What was changed of the counts in the footer stays changed."""
        data = bytearray(MAGIC)
        digest = xxh64()
        header = packed(self.header)
        digest.update(CHECKSUM.pack(_append(data, HEADER, 0, header)))
        offsets = []
        for number, plain in enumerate(self.body):
            offsets.append(len(data))
            payload = compress(packed(plain)) if self.kind == CHANGES else plain
            digest.update(CHECKSUM.pack(_append(data, self.kind, number, payload)))
        self._count(offsets, digest.intdigest())
        footer_at = len(data)
        self.seal = _append(data, FOOTER, 0, packed(self.footer))
        return bytes(data) + TRAILER.pack(footer_at)

    def _count(self, offsets: list[int], digest: int) -> None:
        if not isinstance(self.footer, dict):
            return
        blocks, before, index = self._counted
        if self.footer.get("blocks") == blocks:
            self.footer["blocks"] = len(offsets)
        if self.footer.get("digest") == before:
            self.footer["digest"] = digest
        if index is not None and self.footer.get("index") == index:
            self.footer["index"] = [[first, offset] for (first, _), offset in zip(index, offsets, strict=False)]


def _blocks(data: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    while start < stop:
        kind, length, _ = BLOCK.unpack_from(data, start)
        start += BLOCK.size + length
        yield kind, data[start - length : start]


def _append(data: bytearray, kind: int, index: int, payload: bytes) -> int:
    checksum = xxh64_intdigest(payload, 256 * index + kind)
    data += BLOCK.pack(kind, len(payload), checksum) + payload
    return checksum


class ForgedDirectory:
    """A checkpoint directory or a savepoint, by the paths of its files: `ForgedFile`s, and maps that were JSON."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, Any] = {}
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = str(path.relative_to(root))
            if path.suffix == ".json":
                self.files[name] = json.loads(path.read_bytes())["manifest"]
            elif path.suffix in (".log", ".snapshot", ".output", ".savepoint"):
                self.files[name] = ForgedFile(path.read_bytes())

    def write(self, compress: Callable[[bytes], bytes] = lambda payload: payload) -> None:
        """Every file again; who named a file by its seal names it by its new one."""
        seals: dict[int, int] = {}
        for name in sorted(self.files, key=_order):
            file = self.files[name]
            if isinstance(file, ForgedFile):
                _relink(file.header, seals)
                _relink(file.footer, seals)
                before = file.seal
                is_compressed = isinstance(file.header, dict) and "compression" in file.header
                (self._root / name).write_bytes(file.put_together(compress) if is_compressed else file.put_together())
                seals[before] = file.seal
            else:
                _relink(file, seals)
                write_checked(directory_of(self._root), name, file)


def _order(name: str) -> tuple[int, str, int, int]:
    """Results, then by number the `.log` and the `.snapshot`; JSON, which names seals, comes last."""
    number = re.search(r"(\d{12})", name)
    ranks = {".output": 0, ".log": 1, ".snapshot": 1, ".savepoint": 1, ".json": 2}
    suffix = Path(name).suffix
    return ranks[suffix], str(Path(name).parent), int(number[1]) if number else 0, int(suffix == ".snapshot")


def _relink(plain: Any, seals: dict[int, int]) -> None:
    """Replace what are seals in a header, a footer or a manifest."""
    if not isinstance(plain, dict):
        return
    for key in ("previous", "seal"):
        if type(plain.get(key)) is int:
            plain[key] = seals.get(plain[key], plain[key])
    since = plain.get("since")
    if isinstance(since, list) and len(since) == 2 and type(since[1]) is int:
        since[1] = seals.get(since[1], since[1])
    _relink(plain.get("output"), seals)
    operators = plain.get("operators")
    for operator in operators.values() if isinstance(operators, dict) else ():
        _relink(operator, seals)


def places(plain: Any) -> list[Place]:
    """Where everything is in plain data, the whole of it included."""
    found: list[Place] = [()]
    parts = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, part in parts:
        found += [(key, *place) for place in places(part)]
    return found


def replaced(plain: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """The plain data with one place of it changed; a change that gives `...` removes it."""
    if not place:
        return change(plain)
    key, *rest = place
    new = replaced(plain[key], tuple(rest), change)
    if isinstance(plain, dict):
        return {k: (new if k == key else v) for k, v in plain.items() if not (k == key and new is ...)}
    return [new if at == key else part for at, part in enumerate(plain) if not (at == key and new is ...)]
