"""Storage that fails, is slow, or whose process is killed between two steps: in task managers and snapshot processes.

Rules of this module: it stands around the system calls of `DurableDirectory` from outside, in the processes that a job
under chaos starts; the product knows nothing of it. `injected/sitecustomize.py` brings it in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.epoch_log import EpochLog
from tests.chaos.faults import Place, Plan

__all__ = ["SNAPSHOT_MODULE", "TASK_MANAGER_MODULE", "install"]

TASK_MANAGER_MODULE = "qstate.runtime.task_manager"
SNAPSHOT_MODULE = "qstate.checkpoint.snapshots"

_now = threading.local()


def install(arguments: list[str]) -> None:
    """Stand around the storage of this process, which was started with these arguments, and note that it is there."""
    plan = Plan.of_environment()
    if TASK_MANAGER_MODULE in arguments:
        place = _place_in_task_manager
        EpochLog.seal = _noting_the_epoch(EpochLog.seal)  # type: ignore[method-assign]
    else:
        epoch = int(arguments[arguments.index(SNAPSHOT_MODULE) + 2])

        def place() -> tuple[Place, int]:
            return Place.SNAPSHOT, epoch

    (plan.directory / f"{os.getpid()}.process").touch()
    for step in ("create", "finish", "publish", "sync", "remove"):
        setattr(DurableDirectory, step, _with_faults(plan, step, getattr(DurableDirectory, step), place))


def _place_in_task_manager() -> tuple[Place, int]:
    epoch: int | None = getattr(_now, "epoch", None)
    return (Place.OPENING, -1) if epoch is None else (Place.SEALING, epoch)


def _noting_the_epoch(seal: Callable[..., None]) -> Callable[..., None]:
    @wraps(seal)
    def noting(log: EpochLog, epoch: int, *args: Any) -> None:
        _now.epoch = epoch
        try:
            seal(log, epoch, *args)
        finally:
            _now.epoch = None

    return noting


def _with_faults(
    plan: Plan, step: str, call: Callable[..., Any], place: Callable[[], tuple[Place, int]]
) -> Callable[..., Any]:
    @wraps(call)
    def failing(*args: Any) -> Any:
        where, epoch = place()
        plan.at(where, epoch=epoch, step=step, done=False)
        result = call(*args)
        plan.at(where, epoch=epoch, step=step, done=True)
        return result

    return failing
