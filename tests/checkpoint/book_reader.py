"""A reader of checkpoints and savepoints by the book: written from docs/reference/checkpoint-format.md alone.

It imports nothing of qstate, so it is what somebody in another language would write. It finds damage and gives up; the
ways around damage are the product's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgpack
from xxhash import xxh64, xxh64_hexdigest

__all__ = [
    "Entry",
    "final_epoch",
    "history",
    "read_checkpoint",
    "read_operator_state",
    "read_savepoint",
    "read_savepoint_operator_states",
]

PUT, DELETE, MAP_PUT, MAP_REMOVE, LIST_ADD = 1, 2, 3, 4, 5

#: State, namespace, key and map key, encoded: to the data.
State = dict[tuple[str, bytes, bytes, bytes], bytes]


class Entry(NamedTuple):
    """A change as it stands in a file."""

    op: int
    state: str
    namespace: bytes
    group: int
    key: bytes
    map_key: bytes
    data: bytes


class File(NamedTuple):
    header: dict[str, Any]
    changes: list[Entry]
    seal: int
    footer: dict[str, Any]


def read_json(path: Path) -> Any:
    found = json.loads(path.read_bytes())
    text = json.dumps(found["manifest"], sort_keys=True, separators=(",", ":"))
    assert found["checksum"] == xxh64_hexdigest(text.encode()), path
    return found["manifest"]


def block_at(data: bytes, offset: int, kind: int, index: int) -> tuple[bytes, int, int]:
    found, length, checksum = struct.unpack_from("<BIQ", data, offset)
    payload = data[offset + 13 : offset + 13 + length]
    assert (found, len(payload)) == (kind, length)
    assert checksum == xxh64(payload, seed=256 * index + kind).intdigest()
    return payload, checksum, offset + 13 + length


def read_file(path: Path) -> File:
    data = path.read_bytes()
    assert data[:8] == b"QSTATEL1"
    (footer_at,) = struct.unpack("<Q", data[-8:])
    payload, seal, end = block_at(data, footer_at, 4, 0)
    assert end == len(data) - 8
    footer = msgpack.unpackb(payload)
    payload, checksum, at = block_at(data, 8, 1, 0)
    header = msgpack.unpackb(payload)
    assert header["format"] == (3 if "since" in header else 2) and "compression" not in header
    digest = xxh64(struct.pack("<Q", checksum))
    changes: list[Entry] = []
    for index in range(footer["blocks"]):
        payload, checksum, at = block_at(data, at, 2, index)
        digest.update(struct.pack("<Q", checksum))
        changes += changes_of(payload)
    assert (at, digest.intdigest()) == (footer_at, footer["digest"])
    assert len(changes) == footer["entries"]
    return File(header, changes, seal, footer)


def changes_of(payload: bytes) -> Iterator[Entry]:
    for op, state, namespace, groups, keys, map_keys, values in msgpack.unpackb(payload):
        empty = [b""] * len(keys)
        for group, key, map_key, data in zip(groups, keys, map_keys or empty, values or empty, strict=True):
            yield Entry(op, state, namespace, group, key, map_key, data)


def apply(state: State, change: Entry) -> None:
    place = (change.state, change.namespace, change.key, change.map_key)
    if change.op == DELETE:
        for other in [other for other in state if other[:3] == place[:3]]:
            del state[other]
    elif change.op == MAP_REMOVE:
        state.pop(place, None)
    elif change.op == LIST_ADD:
        before = msgpack.unpackb(state[place]) if place in state else []
        state[place] = msgpack.packb(before + msgpack.unpackb(change.data))
    else:
        assert change.op in (PUT, MAP_PUT)
        state[place] = change.data


def history(directory: Path) -> tuple[dict[int, File], dict[int, File]]:
    """The files of a log that count, by number, the chain checked: snapshots, and openings and epochs."""
    snapshots = {int(path.name[:12]): read_file(path) for path in directory.glob("*.snapshot")}
    logs = {int(path.name[:12]): read_file(path) for path in directory.glob("*.log")}
    for number, file in list(logs.items()):
        for void in range(number - file.header.get("void", 0), number):
            logs.pop(void, None)
    # Snapshots that only serve as a base of others come before the logs that are left.
    start = min((number for number in snapshots if number + 1 in logs), default=max(snapshots, default=0))
    before = snapshots[start].header["previous"] if snapshots else 0
    for number in sorted(number for number in logs if number > start):
        assert logs[number].header["previous"] == before, number
        before = logs[number].seal
    return snapshots, logs


def stack_of(snapshots: dict[int, File], number: int) -> list[File]:
    """The snapshots that make one state together: the whole one first, the one of this number last."""
    file = snapshots[number]
    if "since" not in file.header:
        return [file]
    below, seal = file.header["since"]
    assert snapshots[below].seal == seal
    return [*stack_of(snapshots, below), file]


def state_of(directory: Path, upto: int, groups: range) -> State:
    snapshots, logs = history(directory)
    bases = [number for number, file in snapshots.items() if file.header["epoch"] <= upto]
    base = max(bases, default=0)
    assert not any(number > base for number in snapshots) or base + 1 in logs, "nothing as old as that"
    state: State = {}
    files = stack_of(snapshots, base) if bases else []
    files += [logs[number] for number in sorted(logs) if number > base and logs[number].header["epoch"] <= upto]
    for change in (change for file in files for change in file.changes):
        if change.group in groups:
            apply(state, change)
    return state


def subtasks(root: Path, uid: str) -> Iterator[tuple[range, Path]]:
    """The log that has each key group, one range after the other."""
    job = read_json(root / "job.json")
    total, layouts = job["max_parallelism"], job["layouts"]
    readable = quote(uid, safe=" ")[:60]
    owner: dict[int, Path] = {}
    for layout, parallelism in enumerate(layouts):
        for subtask in range(parallelism):
            directory = root / f"{readable}-{xxh64_hexdigest(uid.encode())}" / f"{layout:03d}" / f"{subtask:05d}"
            if any(directory.glob("*.log")) or any(directory.glob("*.snapshot")):
                first, end = -(-subtask * total // parallelism), -(-(subtask + 1) * total // parallelism)
                owner.update(dict.fromkeys(range(first, end), directory))
    for group in range(total):
        yield range(group, group + 1), owner[group]


def epochs(directory: Path) -> list[int]:
    snapshots, logs = history(directory)
    return [file.header["epoch"] for file in (*snapshots.values(), *logs.values())]


def final_epoch(root: Path, uid: str) -> int:
    found = [epochs(directory) for directory in {directory for _, directory in subtasks(root, uid)}]
    sealed, begun = min(map(max, found)), max(map(max, found))
    written = read_json(root / "final.json")["epochs"][read_json(root / "job.json")["operators"][uid]]
    before = max((epoch for one in found for epoch in one if epoch < begun), default=-1)
    return min(sealed, max(written, before))


def read_checkpoint(root: Path, uid: str, epoch: int) -> State:
    state: State = {}
    for groups, directory in subtasks(root, uid):
        state |= state_of(directory, epoch, groups)
    return state


def lists_of(stored: list[dict[str, Any]]) -> list[tuple[str, str, list[bytes]]]:
    assert all(one["schema"]["kind"] == "list" for one in stored)
    return [(one["schema"]["name"], one["distribution"], one["elements"]) for one in stored]


def read_operator_state(directory: Path, epoch: int) -> list[tuple[str, str, list[bytes]]]:
    """Name, distribution and elements of a subtask's lists."""
    snapshots, logs = history(directory)
    found = [(number, file) for number, file in snapshots.items() if file.header["epoch"] <= epoch]
    found += [(number, file) for number, file in logs.items() if -1 < file.header["epoch"] <= epoch]
    newest = [file for number, file in found if number == max(number for number, _ in found)]
    assert all(file.footer.get("operator_state") == newest[0].footer.get("operator_state") for file in newest)
    return lists_of(newest[0].footer.get("operator_state", []))


def read_savepoint_operator_states(root: Path, uid: str) -> list[list[tuple[str, str, list[bytes]]]]:
    stored = read_json(root / "savepoint.json")["operators"][uid]
    return [lists_of(state) for state in read_file(root / stored["file"]).footer.get("operator_states", [])]


def read_savepoint(root: Path, uid: str) -> list[Entry]:
    stored = read_json(root / "savepoint.json")["operators"][uid]
    file = read_file(root / stored["file"])
    assert (file.seal, len(file.changes)) == (stored["seal"], stored["entries"])
    return file.changes
