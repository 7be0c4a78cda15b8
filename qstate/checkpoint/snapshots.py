"""Snapshots: the state of one subtask in one file, so that the files before it are not needed any more.

Rules of this module: a snapshot is made of the files that are there, not of a backend: it merges the newest usable
snapshot with the epochs sealed since, both read and checked. So it can be made by any process at any time, beside
the task manager that goes on sealing epochs, and is the same for every backend. The file holds PUT and MAP_PUT changes
in ascending order (`merge`), so key groups can be read without reading all.

Two snapshots of one number by two writers are the same state: whoever comes second leaves the first one's.

**Retention.** The newest `retained` snapshots stay, with every `.log` file after the oldest of them. So a damaged
snapshot costs nothing but a longer way: the one before it and the epochs since are there. Old snapshots are removed
before the files they stand on, and those in ascending order: a crash in between leaves more than is needed, never less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from qstate.backends.contract import Change
from qstate.checkpoint.chain import NO_EPOCH, Chain, LogIdentity, Snapshot, data_schema, header_of, read_chain
from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.merge import merged_parts
from qstate.checkpoint.segment import SegmentWriter
from qstate.errors import CheckpointError

__all__ = ["remove_unneeded", "take_snapshot", "write_snapshot"]

_NUMBERED = re.compile(r"(\d{12})\.(log|snapshot)")


def take_snapshot(
    files: DurableDirectory, *, upto: int | None = None, retained: int = 2, compression: str = "none"
) -> Snapshot | None:
    """Make a snapshot of the newest epoch (or of `upto`, if that is older) and remove what it makes unneeded.

    None when there is nothing new to make one of. Raises `CheckpointError`; everything that was there still is.
    """
    chain = read_chain(files)
    if chain is None:
        return None
    snapshot = _newest(chain, upto)
    base = chain.bases[0]
    if snapshot is None or (base is not None and base.sequence >= snapshot.sequence):
        return None
    _check_one_schema(chain, base)
    taken = write_snapshot(
        files, chain.identity, snapshot, merged_parts(chain.parts(base, snapshot.epoch)), compression
    )
    remove_unneeded(files, retained)
    return taken


def write_snapshot(
    files: DurableDirectory,
    identity: LogIdentity,
    snapshot: Snapshot,
    changes: Iterable[Change],
    compression: str = "none",
) -> Snapshot:
    """Write a snapshot, with `changes` in ascending order, under its number; leave one that is there as it is.

    Gives it with its seal. Raises `CheckpointError` when it cannot be written, and what `changes` raises; nothing is
    there then.
    """
    header = header_of(
        identity,
        "snapshot",
        sequence=snapshot.sequence,
        previous=snapshot.previous,
        epoch=snapshot.epoch,
        writer=snapshot.writer,
    )
    header["states"] = list(snapshot.states)
    if compression != "none":
        header["compression"] = compression
    temporary = f"{snapshot.sequence:012d}-{uuid4().hex}.tmp"
    try:
        with files.create(temporary) as file:
            writer = SegmentWriter(file, header, ascending=True)
            writer.write_changes(changes)
            seal = writer.write_footer()
            files.finish(file)
        with suppress(FileExistsError):
            files.publish(temporary, snapshot.name)
        files.sync()
    except OSError as exc:
        raise CheckpointError(f"cannot write {files.path / snapshot.name}: {exc}") from exc
    finally:
        with suppress(OSError):  # what stays of a failure is removed by the next opening
            files.remove(temporary)
    return replace(snapshot, seal=seal)


def remove_unneeded(files: DurableDirectory, retained: int) -> None:
    """Remove the snapshots before the newest `retained`, and the files that only those need.

    Raises `CheckpointError`; removing again goes on where it stopped.
    """
    chain = read_chain(files)
    if chain is None:
        return
    kept = [base for base in chain.bases if base is not None][:retained]
    if len(kept) < retained:
        return
    oldest = kept[-1].sequence
    found = [(int(match[1]), match[2]) for match in map(_NUMBERED.fullmatch, files.names()) if match]
    snapshots = sorted(number for number, kind in found if kind == "snapshot" and number < oldest)
    logs = sorted(number for number, kind in found if kind == "log" and number <= oldest)
    try:
        for number in snapshots:
            files.remove(f"{number:012d}.snapshot")
        files.sync()
        for number in logs:
            files.remove(f"{number:012d}.log")
    except OSError as exc:
        raise CheckpointError(f"cannot remove old files in {files.path}: {exc}") from exc


def _newest(chain: Chain, upto: int | None) -> Snapshot | None:
    """The snapshot after the newest epoch that counts, without its seal; None when there is no epoch."""
    states = chain.states
    for segment in reversed(chain.segments):
        if segment.epoch != NO_EPOCH and (upto is None or segment.epoch <= upto):
            return Snapshot(segment.sequence, 0, segment.seal, segment.epoch, segment.writer, states)
    return None


def _check_one_schema(chain: Chain, base: Snapshot | None) -> None:
    """Only the job, which has the user's code, can bring data of different schemas together; it does so on opening."""
    schemas: dict[object, object] = {}
    for part in chain.parts(base):
        for state in part.states:
            schema = data_schema(state)
            if schemas.setdefault(state.get("name"), schema) != schema:
                raise CheckpointError(
                    f"{chain.files.path} holds state {state.get('name')!r} in two forms; start the job once, it "
                    "converts what is there"
                )
