"""The open subtasks of one task manager: opened from their epoch logs, published, and reopened when broken.

Rules of this module: it opens, publishes and closes subtasks. It does not know sessions and connections of relays.
Any thread may use it.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from qstate.checkpoint.storage.locations import open_directory
from qstate.errors import JobError, QStateError
from qstate.operators.operator_spec import OperatorSpec
from qstate.runtime.control.addresses import Bootstrap
from qstate.runtime.control.job_statistics import SubtaskStatistics
from qstate.runtime.control.rpc import RpcPeer
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.routing.location import Owner
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.tasks.subtask import Subtask
from qstate.runtime.tasks.subtask_place import Restart, SubtaskPlace
from qstate.runtime.tasks.subtask_restore import restore_subtask

__all__ = ["SubtaskTable"]

log = logging.getLogger(__name__)


class SubtaskTable:
    """Subtasks by operator uid and subtask index. `server` is the state server's address, published for each owner."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        scratch_directory: Path,
        registry: StateRegistry,
        job_manager: RpcPeer,
    ) -> None:
        self._bootstrap = bootstrap
        self._checkpoint_dir = open_directory(bootstrap.checkpoint_dir, bootstrap.config.checkpoint_storage_options)
        self._scratch_directory = scratch_directory
        self._registry = registry
        self._job_manager = job_manager
        self._subtasks: dict[tuple[str, int], Subtask] = {}
        #: The token of the declaration that each subtask was opened for.
        self._declarations: dict[tuple[str, int], str] = {}
        self._state_ids: dict[tuple[str, int], list[bytes]] = {}
        #: By operator uid, the newest epoch that was reported as committed.
        self._reported: dict[str, int] = {}
        self._opening = threading.Lock()
        self._closed = False
        self.server: tuple[str, int] = ("", 0)

    def indexes(self) -> range:
        """The subtask indexes of this task manager, the same for every operator."""
        slots = self._bootstrap.config.slots
        first = self._bootstrap.index * slots
        return range(first, min(first + slots, self._bootstrap.parallelism))

    def restore(self, operators: Mapping[str, int]) -> None:
        """Open the subtasks of these operators. `operators` maps each to the newest epoch known to be final.

        State from another layout, savepoint or job is opened by the first session: its epoch decides which state.

        Failures are only logged: the first session opens the subtask again, and its query gets the error. A task
        manager that ended on a failure would be restarted, and fail again. Raises `ConnectionError` only.
        """
        for uid, final in operators.items():
            for index in self.indexes():
                try:
                    self.open(uid, index, Restart(final))
                except ConnectionError:
                    raise  # the job manager is gone
                except (Exception, SystemExit) as exc:
                    log.exception("operator %s subtask %d cannot be restored: %s", uid, index, exc)

    def open(self, uid: str, index: int, restart: Restart, declaration: str | None = None) -> Subtask | None:
        """The subtask, opened and published on its first use; None when that has to wait for a session.

        With the token of a declaration, a subtask that was opened for another declaration is closed and opened again.
        """
        key = (uid, index)
        with self._opening:
            if self._closed:
                raise ConnectionError("the task manager is ending")
            opened = self._subtasks.get(key)
            if opened is not None and declaration in (None, self._declarations[key]):
                return opened
            place = self._place(index)
            if opened is None and restart.first_epoch is None and place.begins_elsewhere(uid):
                return None
            found: Declaration = self._job_manager.call("operator", uid, declaration)
            make_spec = partial(_unpickled, uid, found.spec)
            if opened is not None:
                make_spec()  # raises before the state that is served now is withdrawn
                del self._subtasks[key]
                self._unpublish(key, opened)
                opened.close()
            # A report of a newer epoch may have arrived before the job manager's answer.
            final = max(restart.final, self._reported.get(uid, restart.final))
            history = self._job_manager.call("history_of", uid)
            restart = replace(restart, final=final, history=history)
            subtask = Subtask(restore_subtask(make_spec, place, restart))
            try:
                self._publish(key, subtask)
            except BaseException:
                self._unpublish(key, subtask)
                subtask.close()
                raise
            self._subtasks[key] = subtask
            self._declarations[key] = found.token
            return subtask

    def withdraw(self, uid: str, index: int, broken: Subtask) -> None:
        """Serve the state of a broken subtask no longer."""
        key = (uid, index)
        with self._opening:
            if self._subtasks.get(key) is broken:
                del self._subtasks[key]
                self._unpublish(key, broken)

    def reopen(self, uid: str, index: int, broken: Subtask, restart: Restart) -> None:
        """Close a broken subtask that was withdrawn, and open it again, so that its state can be queried.

        A failure is logged; the next session then opens the subtask.
        """
        broken.close()
        try:
            self.open(uid, index, restart)
        except (OSError, QStateError) as exc:
            log.warning("operator %s subtask %d cannot be reopened yet: %s", uid, index, exc)

    def finalize(self, operators: list[str], epoch: int) -> None:
        """Spark has committed the epoch of these operators."""
        with self._opening:
            for uid in operators:
                self._reported[uid] = max(epoch, self._reported.get(uid, epoch))
            chosen = [subtask for (uid, _), subtask in self._subtasks.items() if uid in operators]
        for subtask in chosen:
            subtask.finalize(epoch)

    def statistics(self) -> tuple[SubtaskStatistics, ...]:
        """The figures of the open subtasks, by operator and index. It waits for no subtask that is being opened."""
        return tuple(subtask.statistics() for _, subtask in sorted(self._subtasks.copy().items(), key=itemgetter(0)))

    def close(self) -> None:
        """Close every subtask, even when one fails to close. No subtask is opened afterwards."""
        with self._opening:
            self._closed = True
            subtasks = list(self._subtasks.values())
        for subtask in subtasks:
            try:
                subtask.close()
            except Exception:
                log.exception("subtask could not be closed")

    def _place(self, index: int) -> SubtaskPlace:
        bootstrap = self._bootstrap
        return SubtaskPlace(
            bootstrap.job,
            index,
            bootstrap.parallelism,
            bootstrap.config,
            self._checkpoint_dir,
            bootstrap.owner_token,
            bootstrap.layout,
            self._scratch_directory,
        )

    def _publish(self, key: tuple[str, int], opened: Subtask) -> None:
        uid, index = key
        instances = opened.instances()
        self._job_manager.call("register_states", uid, [instance.describe() for instance in instances])
        if opened.restored is not None:
            self._job_manager.call("restored", opened.restored)
        host, port = self.server
        owned: list[tuple[Mapping[str, Any], Owner]] = []
        for instance in instances:
            state_id = self._registry.register(instance)
            self._state_ids.setdefault(key, []).append(state_id)
            owned.append((instance.describe(), Owner(instance.key_groups, host, port, state_id)))
        self._job_manager.call("publish", self._bootstrap.index, index, owned)

    def _unpublish(self, key: tuple[str, int], subtask: Subtask) -> None:
        for state_id in self._state_ids.pop(key, ()):
            self._registry.unregister(state_id)
        subtask.end_feed()


def _unpickled(uid: str, pickled: bytes) -> OperatorSpec:
    """A new copy of an operator's spec. Raises `JobError` when it cannot be unpickled."""
    try:
        spec: OperatorSpec = pickle.loads(pickled)
    except (QStateError, ConnectionError):
        raise
    except Exception as exc:
        raise JobError(
            f"operator {uid!r} cannot be unpickled in the task manager: {type(exc).__name__}: {exc}; make the modules "
            "that it uses importable on the executors (addPyFile, or install them)"
        ) from exc
    return spec
