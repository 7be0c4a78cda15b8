"""Savepoints carry state through every backend and several parallelisms, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qstate.backends import Change, ChangeOp, StateBackend
from qstate.backends.catalog import open_backend
from qstate.checkpoint import EpochLog, LogIdentity
from qstate.checkpoint.manifest import JobManifest, subtask_directory, write_final
from qstate.checkpoint.sources.opening import DeclaredStates, open_epoch_log
from qstate.checkpoint.sources.origins import open_source, origin_of
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.keys import ColumnType, KeyGroupRange, key_group
from qstate_conformance.backend.states import AGGREGATING, KINDS, LIST, MAP, REDUCING, VALUE, numbered

GROUPS = KeyGroupRange(0, 128)
KEYS = [f"key {number}" for number in range(300)] + ["", "ü", "x" * 1000]
STAGES = [("heap", 2), ("rocksdb", 5), ("sqlite", 1), ("heap", 3)]


class Stage:
    """A job of one operator, without processes: its subtasks' backends and epoch logs, taken up from a savepoint."""

    def __init__(self, root: Path, backend: str, parallelism: int, restored_from: Path | None) -> None:
        self.root = root
        location = None if restored_from is None else str(restored_from)
        # Another query each time, so its epochs begin with 0 and the state comes from before that.
        self.query = f"query of {root.name}"
        manifest = JobManifest("job", 128, (parallelism,), {"it": self.query}, location)
        root.mkdir()
        manifest.write(root)
        self._subtasks = [self._opened(manifest, backend, subtask) for subtask in range(parallelism)]

    def _opened(
        self, manifest: JobManifest, backend: str, subtask: int
    ) -> tuple[StateBackend, EpochLog, KeyGroupRange]:
        identity = LogIdentity("job", "it", subtask, manifest.parallelism, 128)
        scratch = self.root / f"scratch {subtask}"
        scratch.mkdir()
        opened = open_backend(backend, key_groups=identity.key_groups, max_parallelism=128, directory=scratch)
        for descriptor in KINDS:
            opened.table(descriptor)
        declared = DeclaredStates("it", KINDS, [ColumnType.STRING])
        origin = origin_of(self.root, manifest, "it", identity.key_groups, 0)
        log = open_epoch_log(subtask_directory(self.root, "it", 0, subtask), identity, lambda _: declared, origin)
        if origin is not None:
            opened.restore(origin.epoch, log.changes())
        return opened, log, identity.key_groups

    def epoch(self, keys: Sequence[str]) -> None:
        """Give some keys contents of every kind, in one epoch that Spark has committed."""
        for backend, log, groups in self._subtasks:
            backend.begin(0)
            for number, key in enumerate(keys):
                if key_group(key, 128) in groups:
                    for descriptor in KINDS:
                        backend.table(descriptor, "w" if number % 7 == 0 else None).put(
                            key, numbered(descriptor, number)
                        )
                    backend.table(LIST).list_add(key, [number, "more"])
                    backend.table(MAP).map_put(key, ("of", number), [number])
            log.seal(0, backend.commit(0))
        write_final(self.root, {self.query: 0})

    def entries(self) -> list[Change]:
        """What the backends themselves say that they hold."""
        return sorted(
            (change for backend, _, groups in self._subtasks for change in backend.entries(groups)),
            key=lambda change: (change.group, change.state.encode(), *change[3:6]),
        )

    def close(self) -> None:
        for backend, _, _ in self._subtasks:
            backend.close()


def body_of(savepoint: Path) -> list[Change]:
    return list(open_source(str(savepoint)).state("it", GROUPS, 1 << 40))


def test_savepoints_carry_state_through_every_backend_and_parallelism(tmp_path: Path) -> None:
    savepoints: list[Path] = []
    held: list[list[Change]] = []
    for number, (backend, parallelism) in enumerate(STAGES):
        stage = Stage(tmp_path / f"{number} {backend}", backend, parallelism, savepoints[-1] if savepoints else None)
        try:
            stage.epoch(KEYS if number == 0 else [])
            held.append(stage.entries())
        finally:
            stage.close()
        savepoints.append(tmp_path / f"savepoint {number}")
        write_savepoint(open_source(str(stage.root)), savepoints[-1])
    dumps = [body_of(savepoint) for savepoint in savepoints]
    assert len(dumps[0]) > len(KEYS) * len(KINDS)
    assert {change.op for change in dumps[0]} == {ChangeOp.PUT, ChangeOp.MAP_PUT}
    assert {change.state for change in dumps[0]} == {state.name for state in (VALUE, LIST, MAP, REDUCING, AGGREGATING)}
    assert dumps[0] == dumps[1] == dumps[2] == dumps[3]
    assert held[0] == held[1] == held[2] == held[3] == dumps[0]
