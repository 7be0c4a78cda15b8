"""Defects of the life cycle, of resources and of crashes. Each names the law that catches it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from qstate.backends import UNBOUNDED, BackendContext, Capability, Change, HeapBackend, ReadResult
from qstate.descriptors import StateDescriptor
from qstate.errors import ClosedError, JobError
from qstate.keys import Key, Namespace
from tests.defects.backends.sound import DictBackend, ReaderProxy, TableProxy, WithReaders, WithTables


class CloseTwiceRaises(DictBackend):
    """The second close raises, because nothing is open."""

    caught_by = "backend.life_cycle.close_twice_is_close_once"

    def close(self) -> None:
        self._check_open()
        super().close()


class UseAfterCloseHangs(DictBackend):
    """After close, a commit waits for a writer thread that has ended."""

    caught_by = "backend.life_cycle.use_after_close_is_refused"

    def commit(self, epoch: int) -> Iterator[Change]:
        if self._closed:
            threading.Event().wait()
        return super().commit(epoch)


class UseAfterCloseCrashes(DictBackend):
    """After close, a rollback touches freed memory."""

    caught_by = "backend.life_cycle.use_after_close_is_refused"

    def rollback(self) -> None:
        if self._closed:
            os.abort()
        super().rollback()


class UseAfterCloseLies(WithTables):
    """After close, a table returns a value that was never put."""

    caught_by = "backend.life_cycle.use_after_close_is_refused"

    class proxy(TableProxy):
        def get(self, key: Key) -> Any:
            return ["made up"] if self.backend._closed else super().get(key)


class BeginsAfterClose(DictBackend):
    """After close, epochs begin and commit without an error."""

    caught_by = "backend.life_cycle.use_after_close_is_refused"

    def begin(self, epoch: int) -> None:
        if not self._closed:
            super().begin(epoch)


class ReaderBreaksOnClose(WithReaders):
    """A reader that runs while the backend closes fails with the store's own error."""

    caught_by = "backend.life_cycle.closing_while_others_read_gives_answers_or_closed_errors"

    class proxy(ReaderProxy):
        def get(
            self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
        ) -> ReadResult:
            try:
                return super().get(descriptor, namespace, keys, most_bytes)
            except ClosedError as exc:
                raise RuntimeError("already borrowed") from exc


class WritesElsewhere(DictBackend):
    """Keeps a cache in the user's home."""

    caught_by = "backend.life_cycle.nothing_is_touched_outside_the_directory"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        # The laws give this backend a home of its own; without one it stays quiet.
        if os.environ.get("HOME", "").startswith(str(context.directory.parent)):
            (Path.home() / ".qstate-cache").write_text("cache", encoding="ascii")


class LeavesFilesOpen(DictBackend):
    """Every life leaves a file open."""

    caught_by = "backend.life_cycle.close_frees_what_was_opened"
    left: list[IO[bytes]] = []  # noqa: RUF012  # the defect

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.left.append((context.directory / "open").open("wb"))


class LeavesAThread(DictBackend):
    """Every life leaves a waiting thread."""

    caught_by = "backend.life_cycle.close_frees_what_was_opened"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        threading.Thread(target=threading.Event().wait, args=(3.0,), daemon=True).start()


class LockLeftBehind(DictBackend):
    """A lock file beside the directory: a killed process leaves it, and no other can open the backend."""

    caught_by = "backend.crash.a_killed_process_leaves_the_sealed_epochs"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._lock_file = Path(os.environ["DEFECTS_DIRECTORY"]) / "lock"
        holder = self._lock_file.read_text(encoding="ascii") if self._lock_file.exists() else str(os.getpid())
        if holder != str(os.getpid()):
            raise JobError(f"process {holder} uses this backend")
        self._lock_file.write_text(str(os.getpid()), encoding="ascii")

    def close(self) -> None:
        self._lock_file.unlink(missing_ok=True)
        super().close()


class HeapClaimsSmallMemory(HeapBackend):
    """Everything is in memory, although the class declares otherwise."""

    capabilities = HeapBackend.capabilities | {Capability.LARGER_THAN_MEMORY}
    caught_by = "backend.memory.memory_stays_bounded_while_the_state_grows"


def made_by_a_factory(context: BackendContext) -> DictBackend:
    """A sound backend, from a factory."""
    return DictBackend(context)
