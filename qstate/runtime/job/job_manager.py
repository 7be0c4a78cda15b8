"""The job manager: runs in the driver, knows the job's operators, task managers and states.

Rules of this module: it keeps no state of the user and sees no rows. It decides which task manager serves which
subtask (`assignments`) and which names are queryable (`location_registry`), and reports final epochs to the task
managers. It listens on the control plane only, to peers that know the job's secret.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from qstate.checkpoint.storage.locations import absolute, is_url
from qstate.config import JobConfig
from qstate.errors import ClosedError, ConfigError, FencedError, JobError
from qstate.host.line_limit import report_withheld
from qstate.operators.time.epoch_time import EpochTime, Reached
from qstate.runtime.control.addresses import Bootstrap, RestoredSubtask, TaskManagerAddress, host_id
from qstate.runtime.control.job_secret import new_secret
from qstate.runtime.control.job_statistics import JobStatistics, ProcessStatistics
from qstate.runtime.control.launch import StartedTaskManager, start_task_manager
from qstate.runtime.control.processes import await_ends, runs
from qstate.runtime.control.rpc import RpcListener, RpcPeer
from qstate.runtime.control.secure_socket import SecureSocket
from qstate.runtime.job.arrivals import Arrivals
from qstate.runtime.job.assignments import Assignments
from qstate.runtime.job.declarations import Declaration, Declarations
from qstate.runtime.job.epoch_clocks import EpochClocks
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.job.location_registry import LocationRegistry
from qstate.runtime.job.replayed_epoch import older_than_state
from qstate.runtime.net.listener import listen
from qstate.runtime.routing.location import LocationTable, Owner

__all__ = ["JobManager", "log_directory"]

log = logging.getLogger(__name__)

#: How long a task manager that a relay reported as lost may take to answer.
PROBE_TIMEOUT_S = 2.0
#: How long all task managers together may take to answer with their statistics.
STATISTICS_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 10.0
#: How long the system may take to end a killed process.
KILL_TIMEOUT_S = 5.0
WATCH_INTERVAL_S = 1.0


class JobManager:
    """One per job, started by the driver. `stop` ends every task manager; idempotent.

    `host` is the address at which executors reach it; on a local master, loopback. `location_of` returns the
    checkpointLocation of a running query.
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
        self.config = config.merged(log_dir=log_directory(config.log_dir))
        self.parallelism = parallelism
        self.secret = new_secret()
        self._host = host
        self._local = local
        lock = threading.RLock()
        self._lock = threading.Condition(lock)
        self._arrivals = Arrivals(lock)
        self._assignments = Assignments(
            parallelism, config.slots, config.start_timeout_s, standbys=config.standby_replicas
        )
        self._locations = LocationRegistry(job, config.max_parallelism)
        #: Whether a subtask of some operator has been opened, so that its states are known.
        self._has_opened = False
        self._declarations = Declarations(job)
        self._restored: dict[tuple[str, int], RestoredSubtask] = {}
        self._peers: dict[int, RpcPeer] = {}
        #: The index of each of these peers: relays come and go all the time, and must not cost a look at all of them.
        self._indexes: dict[RpcPeer, int] = {}
        self._connected_peers: set[RpcPeer] = set()
        self._orders: dict[RpcPeer, tuple[int, int]] = {}
        self._beats: dict[int, float] = {}
        self._restarts: dict[int, float] = {}
        self._starting: list[StartedTaskManager] = []
        self._processes: list[psutil.Process] = []
        self._stopping = False
        self._ended = False
        #: Process ids of the task managers that `stop` has asked to end.
        self._expected: set[int] = set()
        self._stop_lock = threading.Lock()
        self._pid = os.getpid()
        self._directory = JobDirectory(job, config, parallelism, location_of=location_of)
        self.checkpoint_dir = self._directory.path
        self._clocks = EpochClocks(parallelism, self._directory.stored_time)
        try:
            bind = config.job_manager_bind or host
            sock = listen(bind, config.job_manager_ports, "job manager (job_manager_bind)")
            self._listener = RpcListener(sock, self.secret, self._accepted)
        except BaseException:
            self._directory.close()
            raise
        with self._lock:
            for index in self._assignments.standbys:
                self._restart(index)
        self._monitor = threading.Thread(target=self._watch, name="qstate-leases", daemon=True)
        self._monitor.start()

    # -- the driver's side ------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._listener.port

    def declare(self, uid: str, declaration: Declaration, running: Mapping[str, str | None]) -> None:
        """Add an operator, or replace an earlier declaration of it.

        `running` maps the ids of running queries to their names. Raises `JobError` when one of them drives the
        operator.
        """
        with self._lock:
            self._declarations.declare(uid, declaration, self._directory.query_of(uid), running)
            self._clocks.declare(uid, declaration.event_times, keeps_time=declaration.keeps_time)

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

    def standbys(self) -> list[TaskManagerAddress]:
        """The standbys that are up."""
        with self._lock:
            return self._assignments.alive_standbys()

    def restored(self) -> list[RestoredSubtask]:
        """The state that each subtask began with when it was last opened; none for a subtask without state."""
        with self._lock:
            return [found for _, found in sorted(self._restored.items())]

    def statistics(self) -> JobStatistics:
        """The current figures of each task manager, by index."""
        with self._lock:
            peers = sorted(self._peers.items())
        deadline = time.monotonic() + STATISTICS_TIMEOUT_S
        asked = [(index, peer.submit("statistics")) for index, peer in peers]
        found = (
            _answered(self._name(index).removeprefix("task manager "), answer, deadline - time.monotonic())
            for index, answer in asked
        )
        return JobStatistics(self.job, tuple(found))

    def wait_for_proxy(self, timeout_s: float) -> tuple[str, int]:
        """Wait for a client proxy, and for the states of a first operator, and return the proxy's address.

        A proxy without states would tell clients that the job has no such state. Raises `TimeoutError`.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._stopping:
                proxies = [manager.proxy for manager in self._assignments.alive() if manager.proxy is not None]
                if proxies and self._has_opened:
                    return proxies[0]
                if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(
                        f"job {self.job!r} has no client proxy with states yet: task managers start, and operators "
                        "open, with the first micro-batch of a query"
                    )
        raise ClosedError(f"job {self.job!r} has been stopped")

    def proxies(self) -> list[tuple[str, int]]:
        """The addresses of the client proxies that run now: those of the task managers, then those of the standbys."""
        with self._lock:
            running = [*self._assignments.alive(), *self._assignments.alive_standbys()]
        return [one.proxy for one in running if one.proxy is not None]

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

        After an interrupted call, the next call finishes the work. In a forked child it does nothing.
        """
        if os.getpid() != self._pid:
            return  # a forked child that exits runs its parent's exit handlers
        with self._stop_lock:
            if self._ended:
                return
            with self._lock:
                self._stopping = True
                peers = list(self._peers.values())
                running = [*self._assignments.alive(), *self._assignments.alive_standbys()]
                self._expected |= {process.pid for process in running}
                self._lock.notify_all()
                self._arrivals.notify_all()
            for peer in peers:
                peer.cast("stop")
            self._await_ends()
            self._listener.close()
            with self._lock:
                peers = list(self._connected_peers)
            for peer in peers:
                peer.close()
            self._monitor.join(5.0)
            self._directory.close()
            self._ended = True

    def _await_ends(self) -> None:
        """Wait until the task managers have ended; kill those on this host that do not end."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with self._lock:
            self._lock.wait_for(lambda: not self._peers, STOP_TIMEOUT_S)
            processes, starting = list(self._processes), list(self._starting)
        for process in processes:
            if process.pid not in self._expected:  # lost before, but its process still runs
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        stuck = await_ends(processes, max(1.0, deadline - time.monotonic()))
        for process in stuck:
            log.warning("task manager process %d did not end within %.0f s and is killed", process.pid, STOP_TIMEOUT_S)
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await_ends(stuck, KILL_TIMEOUT_S)  # a killed process takes a moment to end
        for started in starting:
            started.log.close()
            try:
                started.process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(started.process.pid, signal.SIGKILL)  # the task manager is in the same session
                started.process.wait()

    # -- connections ------------------------------------------------------------------------------------------

    def _accepted(self, connection: SecureSocket) -> None:
        handlers: dict[str, Callable[..., Any]] = {
            "acquire": lambda *args: self._acquire(peer, *args),
            "is_current": self._is_current,
            "start_failed": self._start_failed,
            "operator": self._locked(self._declarations.newest),
            "bind_query": self._bind_query,
            "history_of": lambda uid: self._directory.manifest.history_of(uid),
            "begun": self._begun,
            "sealed": self._clocks.sealed,
            "timers_are_due": self._clocks.timers_are_due,
            "register": lambda address: self._register(peer, address),
            "heartbeat": self._heartbeat,
            "register_states": self._locked(self._locations.register),
            "publish": self._publish,
            "publish_standby": lambda index, tables: self._publish_standby(peer, index, tables),
            "restored": self._note_restored,
            "locate": self._locked(self._locations.pickled),
            "describe": self._locked(self._locations.describe),
        }
        # These may wait for the storage of the checkpoints; a heartbeat must not wait for them.
        waiting = frozenset({"acquire", "begun", "bind_query"})
        peer = RpcPeer(connection, handlers, threaded=waiting, on_close=self._closed)
        with self._lock:
            if self._stopping:
                raise FencedError(f"job {self.job!r} is stopping")
            self._connected_peers.add(peer)
            peer.start()

    def _locked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of a part that is not thread-safe, called with the lock."""

        def call(*args: Any) -> Any:
            with self._lock:
                return method(*args)

        return call

    def _closed(self, peer: RpcPeer) -> None:
        with self._lock:
            self._connected_peers.discard(peer)
            order = self._orders.pop(peer, None)
            if order is not None:
                self._assignments.give_up(*order)
                self._arrivals.notify(order[0])
            index = self._indexes.pop(peer, None)
            if index is not None and self._peers.get(index) is peer:
                self._lost(index)
                self._arrivals.notify(index)
                self._lock.notify_all()

    def _lost(self, index: int) -> None:
        """With the lock held: remove a task manager, and restart it if it was on this host."""
        manager = self._assignments.address(index)
        self._peers.pop(index, None)
        self._beats.pop(index, None)
        self._locations.withdraw(index)
        now = time.monotonic()
        if manager is None or not self._assignments.gone(index, manager.incarnation, now) or self._stopping:
            return
        log.warning("%s (process %d on %s) is lost", self._name(index), manager.pid, manager.host_id)
        if manager.host_id == host_id():
            self._restart(index)

    def _restart(self, index: int) -> None:
        """With the lock held: restart a task manager on this host, now or after a pause.

        So its state is queryable again before the next micro-batch. On another host, the next relay starts it; on this
        host a relay may start it, too, if it is faster.
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
            log.error("%s cannot be started here: %s", self._name(index), exc)
            self._assignments.gone(index, incarnation, now)

    def _watch(self) -> None:
        """Check leases and due restarts until the job is stopped."""
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
                self._processes = [process for process in self._processes if runs(process)]
            for peer in silent:
                log.warning("a task manager missed its lease of %.1f s", self.config.lease_s)
                peer.close()

    def _reap_starts(self) -> None:
        """With the lock held: handle starts that are over. Their processes have ended."""
        ended = [started for started in self._starting if started.process.poll() is not None]
        self._starting = [started for started in self._starting if started not in ended]
        for started in ended:
            order = started.order
            if started.process.returncode:
                tail = started.log.tail()
                log.error("%s failed to start; %s ends with:\n%s", order.name, order.log_file, tail)
                if self._assignments.gone(order.index, order.incarnation, time.monotonic()):
                    self._restart(order.index)
                self._arrivals.notify(order.index)
            started.log.close()

    def _name(self, index: int) -> str:
        standby = self._assignments.standby_of(index)
        return f"task manager {index}" if standby is None else f"standby {standby}"

    # -- calls from relays ------------------------------------------------------------------------------------

    def _acquire(
        self, peer: RpcPeer, subtask: int, lost_incarnation: int, wait_s: float
    ) -> TaskManagerAddress | Bootstrap | None:
        """The task manager of a subtask, the order to start it, or None when it is not up within `wait_s` seconds.

        `lost_incarnation` is an incarnation that the relay could not reach (0: none); it is probed before its address
        is returned again. A relay that got the order keeps its connection open until the start is over; when the
        connection ends earlier, another relay gets the order.
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
                if not self._arrivals.wait(index, max(0.0, deadline - time.monotonic())):
                    return None
        raise JobError(f"job {self.job!r} has been stopped; start a new Job to run its queries again")

    def _start_failed(self, subtask: int, incarnation: int) -> None:
        """The process that a relay started ended before it registered."""
        with self._lock:
            index = self._assignments.index_of(subtask)
            self._assignments.gone(index, incarnation, time.monotonic())
            self._arrivals.notify(index)

    def _is_current(self, subtask: int, incarnation: int) -> bool:
        """Whether this incarnation is still the current one. A relay asks this about a silent task manager."""
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
            standby=self._assignments.standby_of(index),
        )

    # -- calls from task managers -----------------------------------------------------------------------------

    def _register(self, peer: RpcPeer, address: TaskManagerAddress) -> dict[str, int]:
        """A task manager is up. Returns the operators whose state it restores at once, each with the newest epoch that
        is known to be committed."""
        with self._lock:
            if self._stopping:
                raise FencedError(f"job {self.job!r} is stopping")
            self._assignments.registered(address)
            self._peers[address.index] = peer
            self._indexes[peer] = address.index
            self._beats[address.index] = time.monotonic()
            if address.host_id == host_id():
                with suppress(psutil.NoSuchProcess):
                    self._processes.append(psutil.Process(address.pid))
            self._arrivals.notify(address.index)
            self._lock.notify_all()
            log.info("%s registered: process %d on %s", self._name(address.index), address.pid, address.host_id)
            return {uid: self._directory.final(uid) for uid in self._directory.bound()}

    def _heartbeat(self, index: int, incarnation: int) -> None:
        with self._lock:
            if not self._assignments.is_current(index, incarnation):
                raise FencedError(f"incarnation {incarnation} of task manager {index} is not the current one")
            self._beats[index] = time.monotonic()

    def _bind_query(self, uid: str, query: str, epoch: int, token: str) -> int:
        """Bind an operator to one streaming query, because two queries would count every row twice.

        `epoch` is the epoch that Spark asks for, `token` that of the declaration that the query was built from. Returns
        the newest epoch that is known to be committed.
        """
        with self._lock:
            self._declarations.newest(uid, token)
            known = self._declarations.uids()
        self._directory.bind(uid, query, known)
        final = self._directory.final(uid)
        if epoch < final:  # the final epoch itself may be an exact replay: the subtask decides
            why = f"Spark had committed epoch {final} already"
            raise older_than_state(uid, epoch, self.checkpoint_dir, why)
        return final

    def _begun(self, uid: str, query: str, epoch: int, reached: Reached | None) -> EpochTime:
        """A subtask begins an epoch, which proves that the epoch before is committed. Returns the time of the epoch.

        The proof is recorded here first, so that a restarted task manager never shows less than its predecessor did.
        """
        self._directory.finalize(query, epoch - 1)
        return self._clocks.begin(uid, epoch, reached)

    def _note_restored(self, restored: RestoredSubtask) -> None:
        with self._lock:
            self._restored[restored.operator, restored.subtask] = restored
        log.info("%s", restored)

    def _publish(self, index: int, subtask: int, owned: Sequence[tuple[Mapping[str, Any], Owner]]) -> None:
        with self._lock:
            for state, owner in owned:
                self._locations.publish(state, subtask, index, owner)
            self._has_opened = True
            self._lock.notify_all()

    def _publish_standby(self, peer: RpcPeer, index: int, tables: Mapping[str, LocationTable]) -> None:
        with self._lock:
            if self._peers.get(index) is peer:
                self._locations.publish_standby(index, tables)


def _answered(name: str, answer: Future[ProcessStatistics], timeout_s: float) -> ProcessStatistics:
    """The answer of a task manager, or an entry with `reachable=False` when there is none in time."""
    try:
        return answer.result(max(0.0, timeout_s))
    except (FutureTimeout, ConnectionError) as exc:
        log.debug("task manager %s gave no statistics: %s", name, exc)
    return ProcessStatistics(name, None, None, reachable=False)


def log_directory(setting: str) -> str:
    """An absolute path, because any process of the job may start a task manager. It is relative to the driver's.

    Raises `ConfigError` when it is a URL, or when it or the nearest of its parents that exists is no directory.
    """
    if is_url(setting):
        raise ConfigError(f"log_dir must be a local directory, because logs are appended to; got {setting}")
    if not setting:
        return ""
    found = absolute(setting)
    nearest = next(filter(os.path.exists, (Path(found), *Path(found).parents)), Path("/"))
    if not nearest.is_dir():
        raise ConfigError(f"log_dir must be a directory, existing or new: {nearest} is none; got {setting!r}")
    return found
