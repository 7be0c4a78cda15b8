"""Storage that fails, is slow, or kills its process between two steps, in task managers and snapshot processes.

Rules of this module: it stands around the system calls of `DurableDirectory` from outside, in the processes that a job
under chaos starts; the product knows nothing of it. `injected/sitecustomize.py` brings it in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.segment import SegmentWriter
from qstate.checkpoint.storage.local_directory import DurableDirectory
from tests.chaos.faults import Place, Plan

__all__ = ["install"]

_now = threading.local()


def install(snapshot_arguments: list[str]) -> None:
    """Stand around the storage of this process, and note that it is there.

    A snapshot process comes with its arguments, the directory and the epoch first; a task manager with none.
    """
    plan = Plan.of_environment()
    if not snapshot_arguments:
        place = _place_in_task_manager
        EpochLog.seal = _noting_the_epoch(EpochLog.seal)  # type: ignore[method-assign]
    else:
        epoch = int(snapshot_arguments[1])

        def place() -> tuple[Place, int]:
            return Place.SNAPSHOT, epoch

    (plan.directory / f"{os.getpid()}.process").touch()
    for step in ("open", "create", "finish", "publish", "sync", "remove"):
        setattr(DurableDirectory, step, _with_faults(plan, step, getattr(DurableDirectory, step), place))
    SegmentWriter._write = _with_faults(plan, "write", SegmentWriter._write, place)  # type: ignore[method-assign]


def _place_in_task_manager() -> tuple[Place, int]:
    epoch: int | None = getattr(_now, "epoch", None)
    return (Place.OPENING, -1) if epoch is None else (Place.SEALING, epoch)


def _noting_the_epoch(seal: Callable[..., None]) -> Callable[..., None]:
    @wraps(seal)
    def noting(log: EpochLog, epoch: int, *args: Any, **kwargs: Any) -> None:
        _now.epoch = epoch
        try:
            seal(log, epoch, *args, **kwargs)
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
