"""Snapshots: the state of one subtask in a few files, so that the files before them are not needed any more.

Rules of this module: a snapshot is made of the files that are there, not of a backend: it merges the newest usable
snapshot with the epochs sealed since, both read and checked. So it can be made by any process at any time, beside
the task manager that goes on sealing epochs, and is the same for every backend. The file holds changes in
ascending order (`merge`), so key groups can be read without reading all; PUT and MAP_PUT only, if it is whole.

Two snapshots of one number by two writers are the same state: whoever comes second leaves the first one's.

**How much is written.** A new snapshot takes up the epochs since the newest one, and of the stack below as much as is
not at least `GROWTH` times as large as what it takes up above: a log-structured merge. When it takes up the whole one
at the bottom it is whole, otherwise it is partial and stands on what is left. A bottom of less than `whole_bytes` is
always taken up: a small state is whole in each file, and each file stands for itself.

With GROWTH = 2, s the bytes of what changes between two snapshots and S those of a whole one:

- A file is at least twice as large as the one that stands on it. So a stack has at most log2(S / s) + 1 files, and at
  most twice the bytes of its bottom.
- What is taken up is less than twice as large as what is above it, so it gets into a file at least one and a half times
  as large, as far as nothing is overwritten (and what is, is not written again). So a byte of the log is written at
  most log1.5(S / s) + 1 times, on average about half of log2(S / s) times and twice more at the bottom. Rewriting the
  whole state each time writes it S / s times.

**Whose files a snapshot stands on.** The process of a task manager that was replaced may still finish a snapshot, and
remove what that makes unneeded, however long it slept before. All that it knows has lower numbers than the newest
opening. So a partial snapshot stands on snapshots of the epochs after the newest opening only, which a single process
makes at a time: the first snapshot after an opening is whole.

**Retention.** The newest `retained` snapshots stay, with every snapshot that they stand on and every `.log` file after
the oldest of them. So a damaged snapshot costs nothing but a longer way, as long as no kept one stands on it: the one
before it and the epochs since are there. Old snapshots are removed before the files they stand on, the newest first,
and after them the `.log` files in ascending order: a crash in between leaves more than is needed, never less.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import (
    NO_EPOCH,
    Chain,
    LogIdentity,
    Snapshot,
    data_schema,
    header_of,
    read_chain,
    size_of,
)
from qstate.checkpoint.log.file_facts import PARTIAL_FORMAT, readable
from qstate.checkpoint.log.file_names import FileKind, history_files, log_name, snapshot_name, temporary_name
from qstate.checkpoint.log.merge import merged_changes, merged_parts
from qstate.checkpoint.log.operator_state import OperatorState, state_fact
from qstate.checkpoint.log.segment import SegmentWriter
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.storage_faults import BY_CHECKPOINT_DIR, storage_fault

__all__ = ["remove_unneeded", "take_snapshot", "write_snapshot"]

log = logging.getLogger(__name__)

#: How many times larger than what it takes up a snapshot has to be, not to be taken up as well.
GROWTH = 2
#: A whole snapshot of fewer bytes is written anew every time: that takes about a second, and needs no other file.
WHOLE_BYTES = 32 << 20


def take_snapshot(
    files: Directory,
    *,
    upto: int | None = None,
    retained: int = 2,
    compression: str = "none",
    whole_bytes: int = WHOLE_BYTES,
) -> Snapshot | None:
    """Make a snapshot of the newest epoch (or of `upto`, if that is older) and remove what it makes unneeded.

    It may be partial when the whole one below has `whole_bytes` or more. None when there is nothing new to make one of.
    Raises `CheckpointError`; everything that was there still is.
    """
    chain = read_chain(files)
    if chain is None:
        return None
    snapshot = _newest(chain, upto)
    base = chain.bases[0]
    if snapshot is None or (base is not None and base.sequence >= snapshot.sequence):
        return None
    for way in chain.bases:
        _check_one_schema(chain, way)
        planned = replace(snapshot, below=_left_below(chain, way, snapshot, whole_bytes))
        try:
            with readable(files.path):
                taken = write_snapshot(
                    files,
                    chain.identity,
                    planned,
                    _changes(chain, way, planned),
                    compression,
                    operator_state=chain.operator_state(planned.epoch),
                )
        except DamagedCheckpoint as exc:
            if way is chain.bases[-1]:
                raise
            log.warning("%s; looking for another way", exc)
        else:
            remove_unneeded(files, retained)
            return taken
    raise AssertionError("unreachable")


def _changes(chain: Chain, base: Snapshot | None, planned: Snapshot) -> Iterable[Change]:
    """What the planned snapshot holds."""
    parts = chain.parts(base, planned.epoch, above=planned.below)
    return merged_parts(parts) if planned.below is None else merged_changes(parts)


def _left_below(chain: Chain, base: Snapshot | None, planned: Snapshot, whole_bytes: int) -> Snapshot | None:
    """The newest snapshot of the base's stack that the planned one does not take up; None: it is whole."""
    if base is None or not base.stack[0].writer == planned.writer == chain.segments[-1].writer:
        return None
    if size_of(chain.files, base.stack[0]) < whole_bytes:
        return None
    since = [segment for segment in chain.segments if base.sequence < segment.sequence <= planned.sequence]
    taken = sum(size_of(chain.files, segment) for segment in since)
    for snapshot in reversed(base.stack):
        size = size_of(chain.files, snapshot)
        if size >= GROWTH * taken:
            return snapshot
        taken += size
    return None


def write_snapshot(
    files: Directory,
    identity: LogIdentity,
    snapshot: Snapshot,
    changes: Iterable[Change],
    compression: str = "none",
    *,
    operator_state: OperatorState,
) -> Snapshot:
    """Write a snapshot, with `changes` in ascending order, under its number; leave one that is there as it is.

    `changes` are the whole state, or what to change in that of the snapshot below; `operator_state` is what the
    operator has as of its epoch beside them. Gives it with its seal. Raises `CheckpointError` when it cannot be
    written, and what `changes` raises; nothing is there then.
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
    if snapshot.below is not None:
        header["format"] = PARTIAL_FORMAT
        header["since"] = [snapshot.below.sequence, snapshot.below.seal]
    if compression != "none":
        header["compression"] = compression
    temporary = temporary_name(snapshot.sequence)
    try:
        with files.create(temporary) as file:
            writer = SegmentWriter(file, header, ascending=True)
            writer.write_changes(changes)
            seal = writer.write_footer(**state_fact(operator_state))
            files.finish(file)
        with suppress(FileExistsError):
            files.publish(temporary, snapshot.name)
        files.sync()
    except OSError as exc:
        why = storage_fault(exc, files.path, BY_CHECKPOINT_DIR)
        raise CheckpointError(f"cannot write {files.path / snapshot.name}: {why}") from exc
    finally:
        with suppress(OSError):  # what stays of a failure is removed by the next opening
            files.remove(temporary)
    return replace(snapshot, seal=seal)


def remove_unneeded(files: Directory, retained: int) -> None:
    """Remove the snapshots that none of the newest `retained` is or stands on, and the files that only those need.

    Raises `CheckpointError`; removing again goes on where it stopped.
    """
    chain = read_chain(files)
    if chain is None:
        return
    kept = [base for base in chain.bases if base is not None][:retained]
    if len(kept) < retained:
        return
    oldest = kept[-1].sequence
    needed = {one.sequence for base in kept for one in base.stack}
    found = history_files(files.names())
    snapshots = {number for number, kind in found if kind is FileKind.SNAPSHOT and number < oldest} - needed
    logs = sorted(number for number, kind in found if kind is FileKind.LOG and number <= oldest)
    try:
        for number in sorted(snapshots, reverse=True):
            files.remove(snapshot_name(number))
        files.sync()
        for number in logs:
            files.remove(log_name(number))
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
