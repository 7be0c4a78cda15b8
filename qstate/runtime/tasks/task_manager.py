"""The task manager: the long-lived process that holds subtasks' state and serves it.

Rules of this module: it wires the parts of one process together (data listeners, subtasks, registry, state
server, client proxy, control connection), passes relays' sessions to their subtasks, and decides when the process
ends. The parts do the work.

The process ends when the job manager stops it, when the control connection ends or is silent for a lease, when its
executor is gone, or when another incarnation has taken over an epoch log. No state is lost then: sealed epochs are in
the epoch log, and Spark repeats the others.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import psutil

from qstate.errors import FencedError, JobError, QStateError
from qstate.operators.time.epoch_time import EpochTime, Reached
from qstate.operators.time.timers import FirstTimers
from qstate.operators.user_traceback import described, with_user_traceback
from qstate.runtime.control.addresses import Bootstrap, TaskManagerAddress, host_id
from qstate.runtime.control.job_statistics import ProcessStatistics
from qstate.runtime.control.processes import runs
from qstate.runtime.control.rpc import RpcListener, RpcPeer, connect
from qstate.runtime.control.scratch_directory import ScratchDirectory
from qstate.runtime.control.secure_socket import SecureSocket
from qstate.runtime.control.started_process import End, begin_process
from qstate.runtime.control.statistics import counts_of, request_statistics
from qstate.runtime.control.tracing import configure_tracing
from qstate.runtime.relay.data_channel import FrameKind, SessionRequest, TaskChannel, channel_name
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.job_oracle import JobManagerOracle
from qstate.runtime.serving.metrics import MetricsServer
from qstate.runtime.serving.query_ports import endpoint_options
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from qstate.runtime.tasks.driver_only import refuse_driver
from qstate.runtime.tasks.subtask import Subtask
from qstate.runtime.tasks.subtask_place import Restart
from qstate.runtime.tasks.subtask_table import SubtaskTable
from qstate.runtime.tasks.time_slice import shorten_time_slice
from qstate.runtime.tasks.watchdog import Watchdog

__all__ = ["TaskManager", "main"]

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
DRAIN_TIMEOUT_S = 2.0
#: How long the process may take to end when a function does not return.
END_TIMEOUT_S = 5.0


class TaskManager:
    """One task manager process. `run` returns when the process has to end, with everything freed."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._end = End()
        self._registry = StateRegistry()
        self._job_manager = RpcPeer(
            connect(*bootstrap.job_manager, bootstrap.secret),
            {
                "ping": self._ping,
                "stop": lambda: self.end("stopped by the job manager"),
                "finalize": lambda operators, epoch: self._subtasks.finalize(operators, epoch),
                "statistics": self._counted,
            },
            threaded=frozenset({"finalize"}),
            on_close=lambda _: self.end("the job manager is gone"),
        )
        self._scratch_directory = ScratchDirectory()
        self._host = "127.0.0.1" if bootstrap.local else self._job_manager.local_host
        self._server_statistics = request_statistics(bootstrap.config.statistics)
        self._proxy_statistics = request_statistics(bootstrap.config.statistics)
        self._server = StateServer(self._registry, self._endpoint("server"), self._server_statistics)
        self._server.quota.lift()  # until an epoch needs the processor
        self._subtasks = SubtaskTable(bootstrap, self._scratch_directory.path, self._registry, self._job_manager)
        #: The channels of running sessions, by the id of the thread that serves them.
        self._sessions: dict[int, TaskChannel] = {}
        self._watchdog = Watchdog(bootstrap.config, self._on_hang)
        self._metrics: MetricsServer | None = None
        self._proxy: ClientProxy | None = None
        if bootstrap.config.proxy_enabled:
            self._proxy = ClientProxy(self._endpoint("proxy"), self._proxy_statistics, local=self._server)

    def end(self, reason: str) -> None:
        """Make `run` return. Any thread may call it; the first reason is logged."""
        self._end.request(reason)

    def run(self, up: Callable[[], None]) -> None:
        """Serve until `end` is called; `up` is called when the job manager has registered this task manager."""
        listeners: list[RpcListener] = []
        try:
            self._watchdog.start()
            self._server.start()
            if self._proxy is not None:
                self._proxy.set_location_oracle(self._bootstrap.job, JobManagerOracle(self._job_manager))
                self._proxy.start()
            self._subtasks.server = self._advertised(self._server.address)
            self._serve_metrics()
            listeners.append(self._listener((self._host, 0)))
            unix_path = self._listen_on_this_host(listeners)
            self._job_manager.start()
            self._register(listeners[0].port, unix_path)
            up()
            self._watch()
        finally:
            self._close(listeners)

    def _serve_metrics(self) -> None:
        config = self._bootstrap.config
        if config.task_manager_metrics_ports:
            self._metrics = MetricsServer(
                lambda: self._bootstrap.job,
                lambda: [self._counted()],
                bind=config.metrics_bind,
                ports=config.task_manager_metrics_ports,
            )

    def _listen_on_this_host(self, listeners: list[RpcListener]) -> str:
        """The path of a Unix socket for relays of this host; empty when it cannot be created: they use TCP then."""
        path = str(self._scratch_directory.path / "data.sock")
        try:
            listeners.append(self._listener(path))
        except OSError as exc:  # for example, TMPDIR is too long for a socket address
            log.warning("no Unix socket at %s: %s", path, exc)
            return ""
        return path

    def _listener(self, address: tuple[str, int] | str) -> RpcListener:
        channel = channel_name(self._bootstrap.index, self._bootstrap.incarnation)
        return RpcListener(address, self._bootstrap.secret, self._serve, channel=channel)

    def _register(self, data_port: int, unix_path: str) -> None:
        address = TaskManagerAddress(
            self._bootstrap.index,
            self._bootstrap.incarnation,
            host_id(),
            os.getpid(),
            self._host,
            data_port,
            unix_path,
            self._subtasks.server,
            self._advertised(self._proxy.address) if self._proxy is not None else None,
            self._bootstrap.executor_pid,
            None if self._metrics is None else self._advertised(self._metrics.address),
        )
        self._subtasks.restore(self._job_manager.call("register", address))

    def _watch(self) -> None:
        """Send heartbeats and watch the executor until the process has to end."""
        bootstrap = self._bootstrap
        executor = _process(bootstrap.executor_pid)
        interval_s = min(WATCH_INTERVAL_S, bootstrap.config.lease_s / 4)
        while not self._end.wait(interval_s):
            if executor is not None and not runs(executor):
                self.end(f"executor process {bootstrap.executor_pid} is gone")
                break
            try:
                self._job_manager.call(
                    "heartbeat", bootstrap.index, bootstrap.incarnation, timeout_s=bootstrap.config.lease_s
                )
            except (OSError, TimeoutError, FencedError) as exc:
                self.end(f"the lease ran out: {exc}")
                self._job_manager.close()  # a session that waits for an answer would keep its subtask from closing
        log.info("task manager %d ends: %s", bootstrap.index, self._end.reason)

    def _close(self, listeners: list[RpcListener]) -> None:
        """Free everything, even when a step fails."""
        with ExitStack() as steps:  # runs from the last to the first
            steps.callback(self._watchdog.close)
            steps.callback(self._scratch_directory.remove)
            steps.callback(self._job_manager.close)
            steps.callback(self._subtasks.close)
            steps.callback(self._server.shutdown, DRAIN_TIMEOUT_S)
            if self._proxy is not None:
                steps.callback(self._proxy.shutdown, DRAIN_TIMEOUT_S)
            if self._metrics is not None:
                steps.callback(self._metrics.close)
            for listener in listeners:
                steps.callback(listener.close)

    # -- sessions ---------------------------------------------------------------------------------------------

    def _serve(self, connection: SecureSocket) -> None:
        """Serve one relay's session, on the thread that accepted its connection."""
        channel = self._sessions[threading.get_ident()] = TaskChannel(connection)
        self._server.quota.apply()
        try:
            opening = channel.receive()
            if opening.kind is not FrameKind.OPEN:
                raise ConnectionError(f"a relay sent {opening.kind.name} before OPEN")
            self._run_session(pickle.loads(opening.payload), channel)
        except OSError as exc:
            log.info("a relay's session ended early: %s", exc)
        finally:
            self._server.quota.lift()
            del self._sessions[threading.get_ident()]
            channel.close()

    def _run_session(self, request: SessionRequest, channel: TaskChannel) -> None:
        subtask: Subtask | None = None
        restart = Restart()
        try:
            final = self._job_manager.call(
                "bind_query", request.operator, request.query, request.epoch, request.declaration
            )
            restart = Restart(max(final, request.epoch - 1), request.epoch)
            subtask = self._subtasks.open(request.operator, request.subtask, restart, request.declaration)
            assert subtask is not None  # only a restart without a first epoch gives None
            clock = _JobClock(self._job_manager, request)
            try:
                subtask.run(request, channel, clock, committed=request.epoch <= final)
            finally:
                if subtask.broken:  # before the failure is sent: from then on, no query sees the failed epoch
                    self._subtasks.withdraw(request.operator, request.subtask, subtask)
        except FencedError as exc:
            if exc.superseded:
                self.end(str(exc))
                return
            channel.send_failure(exc)
        except QStateError as exc:
            shown = with_user_traceback(exc)
            whole = None if shown is exc else exc  # an error of qstate's own needs no stack
            log.warning("operator %s subtask %d: %s", request.operator, request.subtask, exc, exc_info=whole)
            channel.send_failure(shown)
        except ConnectionError:
            raise
        except BaseException as exc:  # also sys.exit() in the user's code
            log.exception("operator %s subtask %d failed", request.operator, request.subtask)
            failure = JobError(f"operator {request.operator!r} failed: {described(exc)}")
            failure.__cause__ = exc
            channel.send_failure(with_user_traceback(failure))
        finally:
            if subtask is not None and subtask.broken:
                self._subtasks.reopen(request.operator, request.subtask, subtask, restart)

    def _on_hang(self, thread: int, error: JobError) -> None:
        """A thread does not return from the user's function and cannot be interrupted: this process has to end."""
        if self._end.reason:
            return
        log.error("%s", error)
        channel = self._sessions.get(thread)
        if channel is not None:
            try:
                channel.fail(error)
            except OSError as exc:
                log.info("its relay is gone: %s", exc)
        self.end("a function does not return")
        last = threading.Timer(END_TIMEOUT_S, os._exit, (1,))  # closing also waits for the function
        last.daemon = True
        last.start()

    def _ping(self) -> None:
        """Answer the job manager's probe after a relay has reported this process as lost. Fails when it is ending."""
        if self._end.reason:
            raise FencedError(f"task manager {self._bootstrap.index} is ending: {self._end.reason}")

    # -- endpoints --------------------------------------------------------------------------------------------

    def _endpoint(self, which: str) -> EndpointOptions:
        config = self._bootstrap.config
        options = endpoint_options(config, which, self._host, self._bootstrap.secret)
        return replace(options, query_quota=config.query_quota)  # standbys have no operator, and need none

    def _counted(self) -> ProcessStatistics:
        return ProcessStatistics(
            str(self._bootstrap.index),
            counts_of(self._server_statistics),
            counts_of(self._proxy_statistics if self._proxy is not None else None),
            subtasks=self._subtasks.statistics(),
            restarts=self._bootstrap.incarnation - 1,
        )

    def _advertised(self, address: tuple[str, int]) -> tuple[str, int]:
        host, port = address
        return (self._host if host in ("0.0.0.0", "::") else host), port


class _JobClock:
    """The clock of an operator in the job manager, for one session."""

    def __init__(self, job_manager: RpcPeer, request: SessionRequest) -> None:
        self._call = job_manager.call
        self._request = request

    def begin(self, reached: Reached | None) -> EpochTime:
        request = self._request
        time: EpochTime = self._call("begun", request.operator, request.query, request.epoch, reached)
        return time

    def sealed(self, reached: Reached, first_timers: FirstTimers) -> None:
        self._call("sealed", self._request.operator, self._request.subtask, reached, first_timers)


def _process(pid: int) -> psutil.Process | None:
    """The process, or None for 0. Raises `JobError` when it is already gone."""
    if pid == 0:
        return None
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise JobError(f"executor process {pid} ended before its task manager was up") from None


def main() -> None:
    """The process: reads its bootstrap from standard input, serves, and ends."""
    bootstrap, up = begin_process()
    shorten_time_slice()
    refuse_driver()
    try:
        if bootstrap.config.tracing:
            configure_tracing()
        manager = TaskManager(bootstrap)
        signal.signal(signal.SIGTERM, lambda *_: manager.end("SIGTERM"))
        # A child that a function forks ends by SIGTERM, as `multiprocessing` expects of the processes of a pool.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        manager.run(up)
    except (QStateError, OSError) as exc:
        log.error("%s of job %s cannot run: %s", bootstrap.name, bootstrap.job, exc)
        sys.exit(1)


if __name__ == "__main__":
    main()
