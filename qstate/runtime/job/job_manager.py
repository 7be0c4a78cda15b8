"""The job manager: runs in the driver, knows the job's operators, task managers and states.

Rules of this module: it holds no state of the user's and sees no rows. It decides which task manager serves
which subtask (`assignment`), which names are queryable (`published`), and tells task managers when an epoch is
final. It listens on the control plane only, to peers that know the job's secret.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

import psutil

from qstate.checkpoint.storage.locations import absolute, is_url
from qstate.config import JobConfig
from qstate.errors import ClosedError, ConfigError, FencedError, JobError
from qstate.line_limit import report_withheld
from qstate.runtime.control.addresses import Bootstrap, RestoredSubtask, TaskManagerAddress, host_id
from qstate.runtime.control.authentication import new_secret
from qstate.runtime.control.launch import StartedTaskManager, start_task_manager
from qstate.runtime.control.rpc import RpcListener, RpcPeer
from qstate.runtime.control.statistics import ProcessStatistics
from qstate.runtime.job.assignments import Assignments
from qstate.runtime.job.declarations import Declaration, Declarations
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.job.location_registry import LocationRegistry
from qstate.runtime.job.replayed_epoch import from_the_future
from qstate.runtime.routing.location import LocationTable, Owner

__all__ = ["JobManager"]

log = logging.getLogger(__name__)

#: How long a task manager may take to answer when a relay reports it lost.
PROBE_TIMEOUT_S = 2.0
#: How long all task managers together may take to give their statistics.
STATISTICS_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 10.0
#: How long the system may take to end a process that was killed.
KILL_TIMEOUT_S = 5.0
WATCH_INTERVAL_S = 1.0


class JobManager:
    """One per job, started by the driver. `stop` ends every task manager; idempotent.

    `host` is the address that executors reach the driver at; on a local master, loopback. `location_of` gives the
    checkpointLocation of a query that runs.
    """

    def __init__(
        self,
        job: str,
        config: JobConfig,
        *,
        parallelism: int,
        host: str,
        local: bool,
        location_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self.job = job
        self.config = config.merged(log_dir=_log_dir(config.log_dir))
        self.parallelism = parallelism
        self.secret = new_secret()
        self._host = host
        self._local = local
        self._lock = threading.Condition()
        self._assignments = Assignments(parallelism, config.slots, config.start_timeout_s)
        self._locations = LocationRegistry(job, config.max_parallelism)
        self._declarations = Declarations(job)
        self._restored: dict[tuple[str, int], RestoredSubtask] = {}
        self._peers: dict[int, RpcPeer] = {}
        self._visitors: set[RpcPeer] = set()
        self._orders: dict[RpcPeer, tuple[int, int]] = {}
        self._beats: dict[int, float] = {}
        self._restarts: dict[int, float] = {}
        self._starting: list[StartedTaskManager] = []
        self._processes: list[psutil.Process] = []
        self._stopping = False
        self._ended = False
        #: The task managers that were alive when they were told to stop.
        self._expected: set[int] = set()
        self._stop_lock = threading.Lock()
        self._pid = os.getpid()
        self._directory = JobDirectory(job, config, parallelism, location_of=location_of)
        self.checkpoint_dir = self._directory.path
        try:
            self._listener = RpcListener((host, 0), self.secret, self._accepted)
        except BaseException as exc:
            self._directory.close()
            if not isinstance(exc, OSError):
                raise
            raise ConfigError(f"the job manager cannot listen on {host!r} (spark.driver.host): {exc}") from exc
        self._monitor = threading.Thread(target=self._watch, name="qstate-leases", daemon=True)
        self._monitor.start()

    # -- the driver's side ------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._listener.port

    def declare(self, uid: str, declaration: Declaration, running: Mapping[str, str | None]) -> None:
        """Make an operator known, in the place of an earlier declaration of it.

        `running` are the streaming queries that run, with their names. `JobError` when one of them drives the operator.
        """
        with self._lock:
            self._declarations.declare(uid, declaration, self._directory.query_of(uid), running)

    def has_operator(self, uid: str) -> bool:
        """Whether a uid is taken."""
        with self._lock:
            return uid in self._declarations

    def queries(self) -> set[str]:
        """The streaming queries that have driven operators of this job."""
        return self._directory.queries()

    def task_managers(self) -> list[TaskManagerAddress]:
        with self._lock:
            return self._assignments.alive()

    def restored(self) -> list[RestoredSubtask]:
        """What the subtasks began with when they were opened last, those that had state."""
        with self._lock:
            return [found for _, found in sorted(self._restored.items())]

    def statistics(self) -> list[ProcessStatistics]:
        """What each task manager has counted, in the order of their indexes; each is asked now."""
        with self._lock:
            peers = sorted(self._peers.items())
        deadline = time.monotonic() + STATISTICS_TIMEOUT_S
        asked = [(index, _asked_for_statistics(peer)) for index, peer in peers]
        return [_answered(str(index), answer, deadline - time.monotonic()) for index, answer in asked]

    def wait_for_proxy(self, timeout_s: float) -> tuple[str, int]:
        """The address of a client proxy, as soon as there is one. Raises `TimeoutError`."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._stopping:
                for manager in self._assignments.alive():
                    if manager.proxy is not None:
                        return manager.proxy
                if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(
                        f"no task manager of job {self.job!r} runs a client proxy; task managers start with the "
                        "first micro-batch of a query"
                    )
        raise ClosedError(f"job {self.job!r} has been stopped")

    def finalize(self, query: str, epoch: int) -> None:
        """Spark has committed the epoch of this query."""
        self._directory.finalize(query, epoch)
        with self._lock:
            operators = self._directory.operators_of(query)
            peers = list(self._peers.values())
        for peer in peers:
            peer.cast("finalize", operators, epoch)

    def stop(self) -> None:
        """End every task manager and free everything. Idempotent; a second caller waits for the first.

        A call that was interrupted is taken up again by the next. In a forked child it does nothing.
        """
        if os.getpid() != self._pid:
            return  # a child that exits runs what its parent has registered for the end
        with self._stop_lock:
            if self._ended:
                return
            with self._lock:
                self._stopping = True
                peers = list(self._peers.values())
                self._expected |= {manager.pid for manager in self._assignments.alive()}
                self._lock.notify_all()
            for peer in peers:
                peer.cast("stop")
            self._await_ends()
            self._listener.close()
            with self._lock:
                visitors = list(self._visitors)
            for visitor in visitors:
                visitor.close()
            self._monitor.join(5.0)
            self._directory.close()
            self._ended = True

    def _await_ends(self) -> None:
        """Wait until the task managers ended; those on this host that will not, or cannot, are killed."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with self._lock:
            while self._peers and self._lock.wait(max(0.0, deadline - time.monotonic())):
                pass
            processes, starting = list(self._processes), list(self._starting)
        for process in processes:
            if process.pid not in self._expected:  # given up, and yet still there
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        _, stuck = psutil.wait_procs(processes, timeout=max(1.0, deadline - time.monotonic()))
        for process in stuck:
            log.warning("task manager process %d did not end within %.0f s and is killed", process.pid, STOP_TIMEOUT_S)
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stuck, timeout=KILL_TIMEOUT_S)  # a killed process is gone only when the system says so
        for started in starting:
            started.log.close()
            try:
                started.process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(started.process.pid, signal.SIGKILL)  # a session of its own: the task manager is in it
                started.process.wait()

    # -- connections ------------------------------------------------------------------------------------------

    def _accepted(self, sock: socket.socket) -> None:
        handlers: dict[str, Callable[..., Any]] = {
            "is_current": self._is_current,
            "start_failed": self._start_failed,
            "operator": self._operator,
            "bind_query": self._bind_query,
            "begun": self._begun,
            "register_states": self._register_states,
            "publish": self._publish,
            "restored": self._noted,
            "locate": self._locate,
            "describe": self._describe,
        }
        # These may wait for the checkpoints' storage, and a heartbeat must not wait behind them.
        waiting = frozenset({"acquire", "begun", "bind_query"})
        peer = RpcPeer(sock, handlers, threaded=waiting, on_close=self._closed)
        handlers["acquire"] = lambda *args: self._acquire(peer, *args)
        handlers["register"] = lambda address: self._register(peer, address)
        handlers["heartbeat"] = lambda index, incarnation: self._heartbeat(index, incarnation)
        with self._lock:
            if self._stopping:
                raise FencedError(f"job {self.job!r} is stopping")
            self._visitors.add(peer)
            peer.start()

    def _closed(self, peer: RpcPeer) -> None:
        with self._lock:
            self._visitors.discard(peer)
            order = self._orders.pop(peer, None)
            if order is not None:
                self._assignments.give_up(*order)
            for index, held in list(self._peers.items()):
                if held is peer:
                    self._lost(index)
            self._lock.notify_all()

    def _lost(self, index: int) -> None:
        """With the lock held: forget a task manager and start another where this process can."""
        manager = self._assignments.address(index)
        self._peers.pop(index, None)
        self._beats.pop(index, None)
        self._locations.withdraw(index)
        now = time.monotonic()
        if manager is None or not self._assignments.gone(index, manager.incarnation, now) or self._stopping:
            return
        log.warning("task manager %d (process %d on %s) is lost", index, manager.pid, manager.host_id)
        if manager.host_id == host_id():
            self._restart(index)

    def _restart(self, index: int) -> None:
        """With the lock held: bring a task manager back on this host, now or a little later.

        Its state should be queryable again without waiting for the next micro-batch. Elsewhere the next relay has to
        start it, and here it may if it is faster.
        """
        now = time.monotonic()
        due = self._assignments.restart_at(index)
        if due > now:
            self._restarts[index] = due
            return
        self._restarts.pop(index, None)
        incarnation = self._assignments.start(index, now)
        if incarnation is None:
            return
        bootstrap = self._bootstrap(index, incarnation)
        try:
            self._starting.append(start_task_manager(bootstrap))
        except (OSError, ConfigError) as exc:
            log.error("task manager %d cannot be started here: %s", index, exc)
            self._assignments.gone(index, incarnation, now)

    def _watch(self) -> None:
        """Look after leases and restarts until the job is stopped."""
        while True:
            report_withheld()
            with self._lock:
                if not self._stopping:
                    self._lock.wait(min(WATCH_INTERVAL_S, self.config.lease_s / 4))
                if self._stopping:
                    return
                self._reap_starts()
                now = time.monotonic()
                for index in [index for index, due in self._restarts.items() if due <= now]:
                    self._restart(index)
                late = now - self.config.lease_s
                silent = [self._peers[index] for index, beat in self._beats.items() if beat < late]
                self._processes = [process for process in self._processes if process.is_running()]
            for peer in silent:
                log.warning("a task manager missed its lease of %.1f s", self.config.lease_s)
                peer.close()

    def _reap_starts(self) -> None:
        """With the lock held: a process started here ends when its task manager is up, or has failed."""
        ended = [started for started in self._starting if started.process.poll() is not None]
        self._starting = [started for started in self._starting if started not in ended]
        for started in ended:
            order = started.order
            if started.process.returncode:
                tail = started.log.tail()
                log.error("task manager %d failed to start; %s ends with:\n%s", order.index, order.log_file, tail)
                if self._assignments.gone(order.index, order.incarnation, time.monotonic()):
                    self._restart(order.index)
                self._lock.notify_all()
            started.log.close()

    # -- calls from relays ------------------------------------------------------------------------------------

    def _acquire(
        self, peer: RpcPeer, subtask: int, lost_incarnation: int, wait_s: float
    ) -> TaskManagerAddress | Bootstrap | None:
        """The task manager of a subtask, the order to start it, or None when it is not up within `wait_s`.

        `lost_incarnation` is one that the relay could not reach (0: none); it is probed before it is given out
        again. Who got the order keeps the connection until that is done; if it ends before, another is asked.
        """
        index = self._assignments.index_of(subtask)
        deadline = time.monotonic() + wait_s
        self._probe(index, lost_incarnation)
        with self._lock:
            while not self._stopping:
                address = self._assignments.address(index)
                if address is not None:
                    return address
                incarnation = self._assignments.start(index, time.monotonic())
                if incarnation is not None:
                    self._orders[peer] = index, incarnation
                    return self._bootstrap(index, incarnation)
                if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    return None
        raise JobError(f"job {self.job!r} has been stopped; start a new Job to run its queries again")

    def _start_failed(self, subtask: int, incarnation: int) -> None:
        """A relay saw the process that it started end before it registered."""
        with self._lock:
            self._assignments.gone(self._assignments.index_of(subtask), incarnation, time.monotonic())
            self._lock.notify_all()

    def _is_current(self, subtask: int, incarnation: int) -> bool:
        """Whether a task manager that has been silent for a while still counts."""
        with self._lock:
            return self._assignments.is_current(self._assignments.index_of(subtask), incarnation)

    def _probe(self, index: int, lost_incarnation: int) -> None:
        with self._lock:
            address, peer = self._assignments.address(index), self._peers.get(index)
        if address is None or peer is None or address.incarnation != lost_incarnation:
            return
        try:
            peer.call("ping", timeout_s=PROBE_TIMEOUT_S)
        except (OSError, FencedError):
            peer.close()

    def _bootstrap(self, index: int, incarnation: int) -> Bootstrap:
        return Bootstrap(
            self.job,
            index,
            incarnation,
            self.address,
            self.secret,
            self.config,
            str(self.checkpoint_dir),
            self._directory.owner_token,
            self._directory.manifest.layout,
            self.parallelism,
            self._local,
        )

    # -- calls from task managers -----------------------------------------------------------------------------

    def _register(self, peer: RpcPeer, address: TaskManagerAddress) -> dict[str, int]:
        """A task manager is up. Gives it the operators whose state it must bring back at once, and the epoch of each
        that Spark is known to have committed."""
        with self._lock:
            if self._stopping:
                raise FencedError(f"job {self.job!r} is stopping")
            self._assignments.registered(address)
            self._peers[address.index] = peer
            self._beats[address.index] = time.monotonic()
            if address.host_id == host_id():
                with suppress(psutil.NoSuchProcess):
                    self._processes.append(psutil.Process(address.pid))
            self._lock.notify_all()
            log.info("task manager %d registered: process %d on %s", address.index, address.pid, address.host_id)
            return {uid: self._directory.final(uid) for uid in self._directory.bound()}

    def _heartbeat(self, index: int, incarnation: int) -> None:
        with self._lock:
            address = self._assignments.address(index)
            if address is None or address.incarnation != incarnation:
                raise FencedError(f"incarnation {incarnation} of task manager {index} is not the current one")
            self._beats[index] = time.monotonic()

    def _operator(self, uid: str, token: str | None) -> Declaration:
        """The declaration that counts; with a token, it has to be that one."""
        with self._lock:
            return self._declarations.newest(uid) if token is None else self._declarations.current(uid, token)

    def _bind_query(self, uid: str, query: str, epoch: int, token: str) -> int:
        """An operator's state belongs to one streaming query: two would count every row twice.

        `epoch` is the one that Spark asks for, `token` that of the declaration that the query was made of. Gives the
        newest epoch that Spark is known to have committed.
        """
        with self._lock:
            self._declarations.current(uid, token)
            known = self._declarations.uids()
        self._directory.bind(uid, query, known)
        final = self._directory.final(uid)
        if epoch < final:  # that one itself may be an exact replay, which the subtask finds out
            why = f"Spark had committed epoch {final} already"
            raise from_the_future(uid, epoch, self.checkpoint_dir, why)
        return final

    def _begun(self, query: str, epoch: int) -> None:
        """A subtask goes on to an epoch, which proves the one before committed.

        A task manager that comes back must not show less than one before it has shown, so it is known here first.
        """
        self._directory.finalize(query, epoch - 1)

    def _register_states(self, uid: str, states: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            self._locations.register(uid, states)

    def _noted(self, restored: RestoredSubtask) -> None:
        with self._lock:
            self._restored[restored.operator, restored.subtask] = restored
        log.info("%s", restored)

    def _publish(self, index: int, subtask: int, owned: Sequence[tuple[Mapping[str, Any], Owner]]) -> None:
        with self._lock:
            for state, owner in owned:
                self._locations.publish(state, subtask, index, owner)

    def _locate(self, state: str) -> LocationTable:
        with self._lock:
            return self._locations.locate(state)

    def _describe(self) -> list[Mapping[str, Any]]:
        with self._lock:
            return self._locations.describe()


def _asked_for_statistics(peer: RpcPeer) -> Future[ProcessStatistics] | None:
    try:
        return peer.submit("statistics")
    except ConnectionError:
        return None


def _answered(name: str, answer: Future[ProcessStatistics] | None, timeout_s: float) -> ProcessStatistics:
    """The answer of a task manager; without one in time, what says so."""
    try:
        if answer is not None:
            return answer.result(max(0.0, timeout_s))
    except (FutureTimeout, ConnectionError) as exc:
        log.debug("task manager %s gave no statistics: %s", name, exc)
    return ProcessStatistics(name, None, None, reachable=False)


def _log_dir(setting: str) -> str:
    """Any process of the job may start a task manager: a relative path is the driver's."""
    if is_url(setting):
        raise ConfigError(f"log_dir is a directory, to which lines can be added, and cannot be at {setting}")
    return absolute(setting) if setting else ""
