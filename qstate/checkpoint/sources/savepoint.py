"""Savepoints: the state of a job's operators as of one final epoch each, in files that need no others.

Rules of this module: it copies state from a source, whatever the backend and the parallelism of the job, and reads
it back. The files hold the neutral dump: equal states give files with equal bodies.

    savepoint.json       written last (see `qstate.checkpoint.manifest` for its form):
                         format, job, max_parallelism, created (ISO 8601, UTC), and `operators`:
                         uid -> file, seal, entries, query, epoch, parallelism, states (schemas)
    0001.savepoint       one file per operator, in the format of `segment`, with an index;
                         header: format, kind "savepoint", job, operator, epoch, max_parallelism, states;
                         its footer has the operator state of all subtasks (see `qstate.checkpoint.log.operator_state`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import NO_EPOCH, Part, States, reading
from qstate.checkpoint.log.file_facts import FORMAT, SavepointFacts, check_schemas, readable
from qstate.checkpoint.log.merge import merged_parts
from qstate.checkpoint.log.operator_state import OperatorState, operator_states_of, states_fact
from qstate.checkpoint.log.segment import write_segment
from qstate.checkpoint.manifest import read_checked, write_checked
from qstate.checkpoint.sources.history import OutrunCheckpoint, Prepare, StateSource, StoredOperator, in_one_form
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError
from qstate.keys import KeyGroupRange
from qstate.values.value_forms import same

__all__ = ["SAVEPOINT_FILE", "Savepoint", "write_savepoint"]

SAVEPOINT_FILE = "savepoint.json"
#: Entries between two calls of a progress function.
PROGRESS_ENTRIES = 10_000

#: How many times a savepoint of a running job is attempted.
MOST_ATTEMPTS = 3

#: Called from time to time with the operator's uid, the number of entries written, and the fraction done, 0 to 1.
Progress = Callable[[str, int, float], None]


def _no_progress(operator: str, entries: int, done: float) -> None:
    """Reports nothing."""


def write_savepoint(source: StateSource, target: Path | Directory, *, progress: Progress = _no_progress) -> Savepoint:
    """Write the last final state of every operator of a source into a new or empty directory.

    For an operator without a final epoch it writes the state that the operator began with. Raises `CheckpointError`
    when the source has no final state yet, when the directory is not empty, and when a file cannot be read or written.
    Files without a `savepoint.json`, as a failure leaves them, are no savepoint.
    """
    files = directory_of(target)
    with doing(f"write the savepoint in {files.path}", files):
        files.make()
        if files.names():
            raise CheckpointError(f"{files.path} is not empty; a savepoint needs a directory of its own")
        entries = _write_operators(files, source, progress)
        files.sync()
    manifest = {
        "format": FORMAT,
        "job": source.job,
        "max_parallelism": source.max_parallelism,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "operators": entries,
    }
    write_checked(files, SAVEPOINT_FILE, manifest)
    return Savepoint(files, manifest)


def _write_operators(files: Directory, source: StateSource, progress: Progress) -> dict[str, Any]:
    """Write all operators; starts again when a running job's snapshots replace the epoch that is being read."""
    for attempt in range(MOST_ATTEMPTS):
        names: dict[str, str] = {}
        try:
            operators = source.operators()
            if all(stored.epoch == NO_EPOCH for stored in operators.values()):
                raise CheckpointError(
                    f"{source.location} holds no committed state yet; try again after the first micro-batch"
                )
            names = {uid: f"{number:04d}.savepoint" for number, uid in enumerate(sorted(operators), 1)}
            return {
                uid: {"file": name, **_write_operator(files, name, source, operators[uid], progress)}
                for uid, name in names.items()
            }
        except OutrunCheckpoint:
            if attempt == MOST_ATTEMPTS - 1:
                raise
            for name in names.values():
                files.remove(name)
            source.look_again()
    raise AssertionError("unreachable")


def _write_operator(
    files: Directory, name: str, source: StateSource, stored: StoredOperator, progress: Progress
) -> dict[str, Any]:
    header = {
        "format": FORMAT,
        "kind": "savepoint",
        "job": source.job,
        "operator": stored.uid,
        "epoch": stored.epoch,
        "max_parallelism": source.max_parallelism,
        "states": list(stored.states),
    }
    every = KeyGroupRange(0, source.max_parallelism)
    changes = source.state(stored.uid, every, stored.epoch, in_one_form(stored.states, source.location))
    facts = states_fact(source.operator_states(stored.uid, stored.epoch))
    reported = _reported(changes, partial(progress, stored.uid), source.max_parallelism)
    seal, entries, _ = write_segment(files, name, header, reported, ascending=True, **facts)
    described = asdict(stored)
    del described["uid"], described["sealed"], described["committed"]
    return {**described, "seal": seal, "entries": entries}


def _reported(
    changes: Iterable[Change], report: Callable[[int, float], None], max_parallelism: int
) -> Iterator[Change]:
    count = 0
    for change in changes:
        yield change
        count += 1
        if count % PROGRESS_ENTRIES == 0:
            report(count, change.group / max_parallelism)
    report(count, 1.0)


class Savepoint(StateSource):
    """A complete savepoint."""

    def __init__(self, files: Directory, manifest: Mapping[str, Any]) -> None:
        self.location = str(files.path)
        self.job = manifest["job"]
        self.max_parallelism = manifest["max_parallelism"]
        self.created: str = manifest["created"]
        self.directory = files
        self._operators: Mapping[str, Mapping[str, Any]] = manifest["operators"]

    @classmethod
    def read(cls, root: Path | Directory) -> Savepoint | None:
        """The savepoint in a directory, None when there is none, or only an incomplete one.

        Raises `DamagedCheckpoint` when its manifest has changed since it was written, `CheckpointError` for another
        format.
        """
        files = directory_of(root)
        manifest = read_checked(files, SAVEPOINT_FILE, FORMAT, SavepointFacts)
        if manifest is None:
            return None
        for stored in manifest["operators"].values():
            check_schemas(stored["states"], files.path / SAVEPOINT_FILE)
        return cls(files, manifest)

    def operators(self) -> dict[str, StoredOperator]:
        return {uid: self._stored(uid) for uid in self._operators}

    def _stored(self, uid: str) -> StoredOperator:
        found = self._operators[uid]
        epoch = found["epoch"]  # the only one: it is final, sealed and committed
        return StoredOperator(uid, found["query"], epoch, epoch, epoch, found["parallelism"], tuple(found["states"]))

    def file(self, operator: str) -> tuple[str, int]:
        """The name and the seal of an operator's file."""
        stored = self._operators[operator]
        return stored["file"], stored["seal"]

    def entries(self, operator: str) -> int:
        """How many entries the savepoint has of an operator."""
        count: int = self._operators[operator]["entries"]
        return count

    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        stored = self._operators.get(operator)
        return int(stored["epoch"]) if stored is not None and stored["epoch"] <= upto else NO_EPOCH

    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = same) -> Iterator[Change]:
        stored = self._as_of(operator, upto)
        part = Part(stored["epoch"], tuple(stored["states"]), self._changes(stored, groups), ascending=True)
        return self._merged(stored["file"], prepare([part]), groups)

    def _merged(self, name: str, parts: Iterable[Part], groups: KeyGroupRange) -> Iterator[Change]:
        with readable(self.directory.path / name):
            for change in merged_parts(parts):
                if change.group in groups:
                    yield change

    def states(self, operator: str, upto: int) -> States:
        return tuple(self._operators[operator]["states"])  # a savepoint has one epoch

    def operator_states(self, operator: str, upto: int) -> list[OperatorState]:
        stored = self._as_of(operator, upto)
        with reading(self.directory, stored["file"]) as reader:
            return operator_states_of(reader.sealed(stored["seal"]).footer, self.directory.path / stored["file"])

    def _as_of(self, operator: str, upto: int) -> Mapping[str, Any]:
        stored = self._operators[operator]
        if stored["epoch"] > upto:
            raise CheckpointError(
                f"the savepoint {self.location} is of epoch {stored['epoch']} of operator {operator!r}, but the query "
                f"continues after epoch {upto}: restart with the checkpointLocation as it was when the savepoint was "
                "taken, or with a new one"
            )
        return stored

    def _changes(self, stored: Mapping[str, Any], groups: KeyGroupRange) -> Iterator[Change]:
        with reading(self.directory, stored["file"]) as reader:
            yield from reader.changes(stored["seal"], groups)
