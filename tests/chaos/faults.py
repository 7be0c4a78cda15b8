"""Faults: what goes wrong, where and when, and the code that lets it go wrong there.

Rules of this module: every process of a job under chaos uses it, and the test that plays the monkey. They talk through
files, because any of them may be killed at any moment:

    plan.json      the faults of this run
    07.struck      fault 7 has struck, once and for all: the id of the process that it struck in
    07.go          the monkey has done its part; the paused program may continue
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["OWN_ACTIONS", "PLAN_VARIABLE", "Action", "Fault", "InjectedFault", "Place", "Plan"]

#: The directory of the plan, for the processes of a job; not set: nothing goes wrong.
PLAN_VARIABLE = "QSTATE_CHAOS_PLAN"
#: How slow a slow disk is.
SLOW_S = 1.5
#: A monkey that died must not leave a job that waits for it.
HOLD_TIMEOUT_S = 90.0


class Place(Enum):
    """Where a fault strikes."""

    ROW = "a row"
    SEALED = "the end of a task whose subtask has sealed"
    SINK = "the sink, which has written"
    SEALING = "a step of sealing"
    OPENING = "a step of opening a log"
    SNAPSHOT = "a step of making a snapshot"


class Action(Enum):
    """What happens there."""

    RAISE = "exception"
    FAIL = "storage fails"
    SLOW = "storage is slow"
    KILL_TASK_MANAGER = "kill -9 of the task manager"
    KILL_STANDBY = "kill -9 of the standby"
    KILL_EXECUTOR = "kill -9 of the executor"
    KILL_DRIVER = "kill -9 of the driver"
    KILL_JVM = "kill -9 of the driver's JVM"
    KILL_SNAPSHOT = "kill -9 of the snapshot process"
    KILL_WORKERS = "kill -9 of Spark's Python workers"
    FREEZE_TASK_MANAGER = "the task manager pauses until another has replaced it"
    FREEZE_DRIVER = "the driver pauses until the task manager has given it up"


#: What happens in the process itself; the rest is the monkey's to do.
OWN_ACTIONS = frozenset({Action.RAISE, Action.FAIL, Action.SLOW})


@dataclass(frozen=True, slots=True)
class Fault:
    """`epoch` is the one that it strikes in; of a snapshot, the earliest that it may be of."""

    number: int
    place: Place
    action: Action
    epoch: int
    row: int = -1
    #: Of which subtask the task is that has ended, or the task manager that is killed under the sink.
    subtask: int = -1
    #: The call of the durable directory, and whether it is made before the fault strikes.
    step: str = ""
    done: bool = False
    #: Strikes after this other one only; 0: at once.
    follows: int = 0

    def __str__(self) -> str:
        where = {
            Place.ROW: f"row {self.row}",
            Place.SEALED: f"end of the task of subtask {self.subtask}",
            Place.SINK: "in the sink",
            Place.SEALING: f"{'after' if self.done else 'before'} {self.step} of a seal",
            Place.OPENING: f"{'after' if self.done else 'before'} {self.step} of the next opening after {self.follows}",
            Place.SNAPSHOT: f"{'after' if self.done else 'before'} {self.step} of a snapshot",
        }[self.place]
        return f"fault {self.number:2}: epoch {self.epoch:2}, {where}: {self.action.value}"


class InjectedFault(Exception):
    """Raised by a fault. The message says which."""


class Plan:
    """The faults of a run, and which of them have struck."""

    def __init__(self, directory: Path, faults: Sequence[Fault]) -> None:
        self.directory = directory
        self.faults = tuple(faults)
        #: Rows that a fault waits at: the function asks at every row.
        self.rows = {fault.row for fault in faults if fault.place is Place.ROW}

    @classmethod
    def of_environment(cls) -> Plan:
        """The plan that this process belongs to; an empty one outside of chaos."""
        named = os.environ.get(PLAN_VARIABLE)
        return cls.read(Path(named)) if named else cls(Path(), ())

    @classmethod
    def read(cls, directory: Path) -> Plan:
        plain = json.loads((directory / "plan.json").read_text())
        return cls(
            directory,
            [Fault(**{**fault, "place": Place(fault["place"]), "action": Action(fault["action"])}) for fault in plain],
        )

    def write(self) -> None:
        self.directory.mkdir(parents=True)
        plain = [{**asdict(fault), "place": fault.place.value, "action": fault.action.value} for fault in self.faults]
        (self.directory / "plan.json").write_text(json.dumps(plain))

    def at(self, place: Place, *, epoch: int = -1, **facts: Any) -> None:
        """Let strike what waits for this. Raises what it raises, or never returns."""
        for fault in self.faults:
            if fault.place is place and self._meets(fault, epoch, facts) and self._claim(fault):
                self._strike(fault)

    def holder(self, fault: Fault) -> int | None:
        """The process that a fault has struck in; None: it has not struck yet."""
        try:
            return int(self._struck(fault.number).read_text())
        except FileNotFoundError:
            return None

    def let_go(self, fault: Fault) -> None:
        self._struck(fault.number).with_suffix(".go").touch()

    def _meets(self, fault: Fault, epoch: int, facts: dict[str, Any]) -> bool:
        in_time = fault.epoch <= epoch if fault.place is Place.SNAPSHOT else epoch in (-1, fault.epoch)
        return (
            in_time
            and all(getattr(fault, name) == value for name, value in facts.items())
            and (not fault.follows or self._struck(fault.follows).exists())
        )

    def _claim(self, fault: Fault) -> bool:
        """True once, in one process of all."""
        target = self._struck(fault.number)
        if target.exists():
            return False
        written = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        written.write_text(str(os.getpid()))
        try:
            with suppress(FileExistsError):
                target.hardlink_to(written)
                return True
            return False
        finally:
            written.unlink()

    def _strike(self, fault: Fault) -> None:
        if fault.action is Action.RAISE:
            raise InjectedFault(f"chaos {fault}")
        if fault.action is Action.FAIL:
            raise OSError(errno.EIO, f"chaos {fault}")
        if fault.action is Action.SLOW:
            threading.Event().wait(SLOW_S)
            return
        deadline = time.monotonic() + HOLD_TIMEOUT_S
        while not self._struck(fault.number).with_suffix(".go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the monkey never said go: {fault}")
            threading.Event().wait(0.01)

    def _struck(self, number: int) -> Path:
        return self.directory / f"{number:02}.struck"
