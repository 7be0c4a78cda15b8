"""Snapshots: the state of one subtask in a few files, which replace the files before them.

Rules of this module: it makes a snapshot from files, not from a backend: it merges the newest usable snapshot with the
epochs sealed since, and checks both as it reads them. So any process can make one at any time, while the task manager
seals more epochs, and the result is the same for every backend. The file holds changes in ascending order (`merge`),
so a reader can skip key groups. A whole snapshot holds PUT and MAP_PUT only.

Two snapshots of one number by two writers hold the same state: the second writer leaves the file of the first.

**How much is written.** A new snapshot merges the epochs since the newest snapshot. It also merges the snapshots of
the stack below, from the top down, until one is at least `GROWTH` times as large as all that is merged so far: a
log-structured merge. If it merges the bottom, too, it is whole; otherwise it is partial and builds on the rest. It
always merges a bottom of less than `whole_bytes`: every snapshot of a small state is whole and needs no other file.

With GROWTH = 2, let s be the bytes that change between two snapshots and S the bytes of a whole one:

- A file is at least twice as large as the one that builds on it. So a stack has at most log2(S / s) + 1 files, and at
  most twice the bytes of its bottom.
- A file that is merged is less than twice as large as what is merged above it. So its bytes go into a file at least
  one and a half times as large, unless they are overwritten, and then they are not written again. So a byte of the log
  is written at most log1.5(S / s) + 1 times, on average about half of log2(S / s) times and twice more at the bottom.
  Rewriting the whole state each time would write it S / s times.

**Which files a snapshot builds on.** A task manager that was replaced may still have a process that finishes a
snapshot and removes the files that it replaces, however long the process slept before. All files that this process
knows have lower numbers than the newest opening. So a partial snapshot builds only on snapshots of epochs after the
newest opening, of which one process makes one at a time. The first snapshot after an opening is whole.

**Retention.** The newest `retained` snapshots stay, with every snapshot that they build on and every `.log` file after
the oldest of them. So a damaged snapshot only makes a restart read more files, unless a kept snapshot builds on it:
the snapshot before it and the epochs since still exist. Old snapshots are removed before the snapshots that they build
on, the newest first, then the `.log` files in ascending order. A crash in between leaves too many files, never too few.
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
from qstate.checkpoint.log.segment import write_segment
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.errors import CheckpointError, DamagedCheckpoint

__all__ = ["remove_unneeded", "take_snapshot", "write_snapshot"]

log = logging.getLogger(__name__)

#: A new snapshot merges an older one unless that is at least so many times as large as what it merges already.
GROWTH = 2
#: A whole snapshot of fewer bytes is always merged: that takes about a second, and the result needs no other file.
WHOLE_BYTES = 32 << 20


def take_snapshot(
    files: Directory,
    *,
    upto: int | None = None,
    retained: int = 2,
    compression: str = "none",
    whole_bytes: int = WHOLE_BYTES,
) -> Snapshot | None:
    """Make a snapshot of the newest epoch (or of `upto`, if that is older) and remove the files that it replaces.

    It may be partial if the whole one at the bottom has `whole_bytes` or more. Returns None when there is no new epoch.
    Raises `CheckpointError`; no file has been removed then.
    """
    chain = read_chain(files)
    if chain is None:
        return None
    snapshot = _newest(chain, upto)
    base = chain.bases[0]
    if snapshot is None or (base is not None and base.sequence >= snapshot.sequence):
        return None
    for base in chain.bases:
        _check_one_schema(chain, base)
        planned = replace(snapshot, below=_left_below(chain, base, snapshot, whole_bytes))
        try:
            with readable(files.path):
                changes, lists = _changes(chain, base, planned), chain.operator_state(planned.epoch)
                taken = write_snapshot(files, chain.identity, planned, changes, compression, operator_state=lists)
        except DamagedCheckpoint as exc:
            if base is chain.bases[-1]:
                raise
            log.warning("%s; trying an older snapshot", exc)
        else:
            remove_unneeded(files, retained)
            return taken
    raise AssertionError("unreachable")


def _changes(chain: Chain, base: Snapshot | None, planned: Snapshot) -> Iterable[Change]:
    parts = chain.parts(base, planned.epoch, above=planned.below)
    return merged_parts(parts) if planned.below is None else merged_changes(parts)


def _left_below(chain: Chain, base: Snapshot | None, planned: Snapshot, whole_bytes: int) -> Snapshot | None:
    """The newest snapshot of the base's stack that the planned one builds on; None: it merges all and is whole."""
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
    """Write a snapshot, with `changes` in ascending order, under its number; an existing one stays as it is.

    `changes` are the whole state, or the changes since the snapshot below; `operator_state` is the operator's state as
    of the snapshot's epoch. Returns the snapshot with its seal. Raises `CheckpointError` when it cannot be written, and
    what `changes` raises; there is no new snapshot then.
    """
    header = header_of(identity, "snapshot", snapshot, snapshot.previous)
    header["states"] = list(snapshot.states)
    if snapshot.below is not None:
        header["format"] = PARTIAL_FORMAT
        header["since"] = [snapshot.below.sequence, snapshot.below.seal]
    if compression != "none":
        header["compression"] = compression
    temporary = temporary_name(snapshot.sequence)
    try:
        with doing(f"write {files.path / snapshot.name}", files):
            written = write_segment(files, temporary, header, changes, ascending=True, **state_fact(operator_state))
            with suppress(FileExistsError):
                files.publish(temporary, snapshot.name)
            files.sync()
    finally:
        with suppress(OSError):  # the next opening removes a file that is left
            files.remove(temporary)
    return replace(snapshot, seal=written.seal)


def remove_unneeded(files: Directory, retained: int) -> None:
    """Keep the newest `retained` snapshots and all files that they need; remove the older snapshots and `.log` files.

    Raises `CheckpointError`; the next call removes the rest.
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
    with doing(f"remove old files in {files.path}", files):
        for number in sorted(snapshots, reverse=True):
            files.remove(snapshot_name(number))
        files.sync()
        for number in logs:
            files.remove(log_name(number))


def _newest(chain: Chain, upto: int | None) -> Snapshot | None:
    """The snapshot to make, as of the newest epoch up to `upto`, still without a seal; None when there is no epoch."""
    states = chain.states
    for segment in reversed(chain.segments):
        if segment.epoch != NO_EPOCH and (upto is None or segment.epoch <= upto):
            return Snapshot(segment.sequence, 0, segment.seal, segment.epoch, segment.writer, states)
    return None


def _check_one_schema(chain: Chain, base: Snapshot | None) -> None:
    """Refuse data of different schemas: only the job has the user's code to convert it, and does so when it opens."""
    schemas: dict[object, object] = {}
    for part in chain.parts(base):
        for state in part.states:
            schema = data_schema(state)
            if schemas.setdefault(state.get("name"), schema) != schema:
                raise CheckpointError(
                    f"{chain.files.path} holds state {state.get('name')!r} with two schemas; start the job once, it "
                    "converts the older data"
                )
