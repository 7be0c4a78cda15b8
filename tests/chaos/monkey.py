"""The chaos monkey: starts the driver, injects the faults of the schedule, starts it again, and checks the result.

Rules of this module: it kills only what it started, and what that started. It waits for events, with bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.processes import await_ends, runs
from tests.chaos.driver import JOB
from tests.chaos.faults import OWN_ACTIONS, PLAN_VARIABLE, Action, Fault, Place, Plan
from tests.chaos.schedule import Life, Scenario
from tests.spark.streams import REPOSITORY, until

__all__ = ["Monkey"]

PAUSE_S = 0.02
#: How long the processes of a driver that is gone may live on: the lease is the last thing that ends them.
END_TIMEOUT_S = 40.0


class Monkey:
    """One run of a scenario. `work` has the input already. Use it as a context manager: nothing lives on then."""

    def __init__(self, work: Path, scenario: Scenario, lives: Iterator[Life], faults: Sequence[Fault]) -> None:
        self._work = work
        self._scenario = scenario
        self._lives = lives
        self._plan = Plan(work / "plan", faults)
        self._plan.write()
        self._waiting = list(faults)
        self._driver: _Driver | None = None
        #: The task managers of drivers that are gone.
        self._former: set[int] = set()
        #: What stopped a query, in Spark's words.
        self.stops: list[str] = []
        self.drivers = 0

    def __enter__(self) -> Monkey:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._driver is None:
            return
        self._driver.look_around()
        self._driver.process.kill()  # first: it would start the others again
        self._driver.close()
        left = [*self._driver.descendants, *self._processes()]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await_ends(left, END_TIMEOUT_S)

    def run(self, timeout_s: float) -> tuple[str, int]:
        """Carry the schedule out until all input is through; gives the address of a proxy."""
        deadline = time.monotonic() + timeout_s
        self._start()
        while time.monotonic() < deadline:
            for fault in list(self._waiting):
                holder = self._plan.holder(fault)
                if holder is not None:
                    self._waiting.remove(fault)
                    self._strike(fault, holder)
            assert self._driver is not None
            for kind, *facts in self._driver.told():
                if kind == "done":
                    return str(facts[0]), int(facts[1])
                self._note(f"the query stopped: {_cause(facts[0])}")
                self.stops.append(facts[0])
            status = self._driver.process.poll()
            assert status is None, f"the driver ended by itself ({status}):\n{self._driver.log_tail()}"
            threading.Event().wait(PAUSE_S)
        raise AssertionError(f"not done within {timeout_s} s; to come are {[str(fault) for fault in self._waiting]}")

    @property
    def not_struck(self) -> list[Fault]:
        """The faults that did not come to pass."""
        return list(self._waiting)

    def proxies(self) -> list[tuple[str, int]]:
        """Where state can be asked for at the moment. Any thread."""
        return [(one["proxy"][0], one["proxy"][1]) for one in self._reported()]

    def states(
        self, address: tuple[str, int], keys: Mapping[str, Sequence[str]], isolation: str
    ) -> dict[str, dict[str, Any]]:
        """The keys of each state, as a client reads them."""
        with QueryableStateClient(*address, timeout_s=60.0) as client:
            views = {
                state: client.get_many(JOB, state, wanted, isolation=isolation)  # type: ignore[arg-type]
                for state, wanted in keys.items()
            }
        return {
            state: {key: {} if view is None else dict(view.entries()) for key, view in found.items()}
            if state == "visitsByLabel"
            else {key: None if view is None else view.contents() for key, view in found.items()}
            for state, found in views.items()
        }

    def scanned(self, address: tuple[str, int], state: str) -> dict[tuple[str, str | None], Any]:
        """All keys of a state as a committed scan shows them; the entries of a map one by one."""
        with QueryableStateClient(*address, timeout_s=60.0) as client:
            entries = [*client.scan(JOB, state, isolation="committed")]
        keys = [str(entry.key) for entry in entries]
        assert len(keys) == len(set(keys)), f"a scan of {state} gave a key twice: {sorted(keys)}"
        if state == "visitsByLabel":
            return {(str(one.key), label): at for one in entries for label, at in one.view.entries()}
        return {(str(one.key), None): one.view.contents() for one in entries}

    def alerts(self) -> list[tuple[str, int, int]]:
        """What the sink has."""
        return [(key, at, total) for key, at, total in json.loads((self._work / "alerts.json").read_text())]

    def end(self) -> None:
        """Let the last driver end as it should, and see that all has ended with it."""
        assert self._driver is not None
        self._driver.look_around()
        left = [*self._driver.descendants, *self._processes()]
        self._driver.process.stdin.close()
        assert self._driver.process.wait(60) == 0, self._driver.log_tail()
        alive = await_ends(left, END_TIMEOUT_S)
        assert [process.cmdline() for process in alive] == []

    # -- what the monkey does ---------------------------------------------------------------------------------

    def _start(self) -> None:
        self._end_of_the_last()
        life = next(self._lives)
        self._former.update(one["pid"] for one in self._task_managers())
        (self._work / "task-managers.json").unlink(missing_ok=True)
        self._driver = _Driver(self._work, self.drivers, self._scenario, life)
        self.drivers += 1
        self._note(f"driver {self.drivers}: {life.backend}, parallelism {life.parallelism}")

    def _end_of_the_last(self) -> None:
        """Wait for a driver's JVM: two at a time would break Spark's own checkpoint. Task managers may linger."""
        if self._driver is not None:
            started = self._driver.descendants
            self._driver.process.wait(END_TIMEOUT_S)
            alive = await_ends(started, END_TIMEOUT_S)
            assert alive == []
            self._driver.close()

    def _strike(self, fault: Fault, holder: int) -> None:
        self._note(str(fault))
        if fault.action in OWN_ACTIONS:
            return
        assert self._driver is not None
        self._driver.look_around()
        with suppress(psutil.NoSuchProcess):  # another fault was faster: a snapshot process ends with its task manager
            self._act(fault, holder)
        self._plan.let_go(fault)
        if fault.action in (Action.KILL_DRIVER, Action.KILL_JVM):
            self._start()

    def _act(self, fault: Fault, holder: int) -> None:
        assert self._driver is not None
        if fault.action is Action.KILL_DRIVER:
            self._driver.process.kill()
        elif fault.action is Action.KILL_JVM:
            _kill(self._driver.jvm())
        elif fault.action is Action.KILL_EXECUTOR:
            _kill(self._executor(holder))
        elif fault.action is Action.KILL_STANDBY:
            _kill(self._standby())
        elif fault.action is Action.KILL_WORKERS:
            self._kill_workers()
        elif fault.action is Action.FREEZE_TASK_MANAGER:
            self._freeze(psutil.Process(holder), fault)
        elif fault.action is Action.FREEZE_DRIVER:
            self._freeze_driver(psutil.Process(holder), fault)
        elif fault.action is Action.KILL_TASK_MANAGER and fault.place in (Place.SEALED, Place.SINK):
            _kill(self._task_manager(fault.subtask))
        else:
            _kill(psutil.Process(holder))

    def _executor(self, holder: int) -> psutil.Process:
        """The executor that a process belongs to: a task manager, or a Python worker of Spark's."""
        for one in self._task_managers():
            if one["pid"] == holder and one["executor_pid"]:
                return psutil.Process(one["executor_pid"])
        for parent in psutil.Process(holder).parents():
            if parent.name().startswith("java"):
                return parent
        return self._any_executor()  # a task manager that the driver started again belongs to none

    def _any_executor(self) -> psutil.Process:
        assert self._driver is not None
        jvm = self._driver.jvm()
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [one for one in jvm.children() if one.name().startswith("java")]
            return bool(found)

        until(is_there, "there is an executor")
        return min(found, key=lambda one: one.pid)

    def _kill_workers(self) -> None:
        """All of them: which one carries the rows of which subtask is Spark's secret."""
        assert self._driver is not None
        for process in self._driver.descendants:
            with suppress(psutil.NoSuchProcess):
                if all("pyspark.daemon" in one.cmdline() for one in (process, process.parent())):
                    _kill(process)

    def _freeze(self, process: psutil.Process, fault: Fault) -> None:
        """Stop a task manager until another has opened its log, then let it continue."""
        if process.pid in self._former:
            return  # it has been stopped in its last act: its driver is gone, and its place with it
        indexes: set[int] = set()

        def has_place() -> bool:
            indexes.update(one["index"] for one in self._task_managers() if one["pid"] == process.pid)
            return bool(indexes)

        until(has_place, "the task manager's place is known")
        process.suspend()
        try:
            (index,) = indexes
            before = self._log_files(index)
            until(lambda: self._task_manager(index).pid != process.pid, f"another task manager {index}")
            until(lambda: bool(self._log_files(index) - before), f"task manager {index} opens its log")
        finally:
            self._plan.let_go(fault)
            process.resume()

    def _log_files(self, index: int) -> set[Path]:
        """The files of a subtask's epoch log, in every layout; each task manager has one subtask."""
        return set((self._work / "epochs").glob(f"ledger-*/*/{index:05d}/*.log"))

    def _freeze_driver(self, task_manager: psutil.Process, fault: Fault) -> None:
        """Stop the job manager, and with it the leases, until a task manager has ended over it."""
        assert self._driver is not None
        driver = psutil.Process(self._driver.process.pid)
        driver.suspend()
        try:
            self._plan.let_go(fault)
            alive = await_ends([task_manager], END_TIMEOUT_S)
            assert alive == []
        finally:
            driver.resume()

    def _task_manager(self, index: int) -> psutil.Process:
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [one["pid"] for one in self._task_managers() if one["index"] == index]
            return bool(found) and psutil.pid_exists(found[0])

        until(is_there, f"task manager {index} is there")
        return psutil.Process(found[0])

    def _task_managers(self) -> list[dict[str, Any]]:
        return [one for one in self._reported() if not one["standby"]]

    def _standby(self) -> psutil.Process:
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [one["pid"] for one in self._reported() if one["standby"]]
            return bool(found) and psutil.pid_exists(found[0])

        until(is_there, "the standby is there")
        return psutil.Process(found[0])

    def _reported(self) -> list[dict[str, Any]]:
        """The task managers and standbys that the driver knows."""
        try:
            return list(json.loads((self._work / "task-managers.json").read_text()))
        except FileNotFoundError:
            return []

    def _processes(self) -> list[psutil.Process]:
        """The task managers, standbys and snapshot processes of this run that are there: they say so themselves."""
        found = []
        for note in self._plan.directory.glob("*.process"):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(note.stem))
                if process.environ().get(PLAN_VARIABLE) == str(self._plan.directory):
                    found.append(process)
        return found

    def _note(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


class _Driver:
    """One life of the driver program."""

    def __init__(self, work: Path, number: int, scenario: Scenario, life: Life) -> None:
        self._log = work / f"driver-{number}.log"
        settings = {**asdict(scenario), **asdict(life)}
        injected = Path(__file__).parent / "injected"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver", str(work), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": f"{injected}:{REPOSITORY}", PLAN_VARIABLE: str(work / "plan")},
                text=True,
            )
        self.descendants: list[psutil.Process] = []
        self._told: list[list[Any]] = []
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), name="driver's story")
        self._listener.start()

    def told(self) -> list[list[Any]]:
        """The events that the driver has reported since the last call."""
        told, self._told = self._told, []
        return told

    def look_around(self) -> None:
        """Remember which processes the driver has started: they cannot be found once it has ended."""
        with suppress(psutil.NoSuchProcess):
            self.descendants = psutil.Process(self.process.pid).children(recursive=True)

    def jvm(self) -> psutil.Process:
        """Its JVM; the one to come, when two faults wanted one at once and the second meets the next driver."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                if child.name().startswith("java"):
                    return child
            threading.Event().wait(PAUSE_S)
        raise AssertionError(f"driver {self.process.pid} has no JVM:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """After the process has ended."""
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait(END_TIMEOUT_S)
        self._listener.join()
        self.process.stdout.close()

    def _listen(self, story: IO[str]) -> None:
        for line in story:
            self._told = [*self._told, json.loads(line)]


def _kill(process: psutil.Process) -> None:
    """kill -9, and wait until the system has ended it; a zombie has ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()
    until(lambda: not runs(process), f"{process} ends")


def _cause(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if "chaos fault" in line), text[:300])
