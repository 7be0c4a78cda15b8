"""A standby of a running job: a process beside it that has the committed state of all its operators in memory.

Rules of this module: it wires a `Standby` to the job manager and decides when the process ends. What it serves, and
when it looks, `standby` decides.

Its proxy is one of the job's: it asks the job manager whom to ask, as the proxies of the task managers do. Its state
server is known to the job manager as the second owner of all key groups, for committed reads. The process ends when the
job manager stops it, or when the control connection ends, as it does when the driver is killed. It needs no lease,
because it writes nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping

from qstate.errors import FencedError, QStateError
from qstate.runtime.control.addresses import Bootstrap, TaskManagerAddress, host_id
from qstate.runtime.control.rpc import RpcPeer, connect
from qstate.runtime.control.started_process import End, begin_process
from qstate.runtime.control.tracing import configure_tracing
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.serving.job_oracle import JobManagerOracle
from qstate.runtime.standby.standby import Standby

__all__ = ["JobStandby", "main"]

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
#: The job manager says when an epoch is final, so looks without its word only make up for a lost one.
INTERVAL_S = 0.5


class StandbyOfJobOracle(JobManagerOracle):
    """The location oracle of the standby's proxy, which also tells the job manager what the standby serves."""

    def __init__(self, job_manager: RpcPeer, index: int) -> None:
        super().__init__(job_manager)
        self._index = index
        self._lock = threading.Lock()
        self._registered = False
        self._tables: Mapping[str, LocationTable] = {}

    def registered(self) -> None:
        """The job manager knows this standby."""
        with self._lock:
            self._registered = True
            self._publish()

    def serves(self, tables: Mapping[str, LocationTable]) -> None:
        with self._lock:
            self._tables = tables
            if self._registered:
                self._publish()

    def looked(self) -> None:
        """Nothing to do."""

    def _publish(self) -> None:
        self._job_manager.cast("publish_standby", self._index, self._tables)


class JobStandby:
    """One standby process of a job. `run` returns when it has to end, with everything freed."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._end = End()
        self._job_manager = RpcPeer(
            connect(*bootstrap.job_manager, bootstrap.secret),
            {
                "ping": lambda: None,
                "stop": lambda: self.end("stopped by the job manager"),
                "finalize": lambda operators, epoch: self._standby.look_soon(),
                "statistics": lambda: self._standby.statistics(),
            },
            on_close=lambda _: self.end("the job manager is gone"),
        )
        self._host = "127.0.0.1" if bootstrap.local else self._job_manager.local_host
        self._oracle = StandbyOfJobOracle(self._job_manager, bootstrap.index)
        self._standby = Standby(
            bootstrap.checkpoint_dir,
            # `metrics_ports` are the driver's.
            bootstrap.config.merged(metrics_ports=bootstrap.config.task_manager_metrics_ports),
            host=self._host,
            interval_s=INTERVAL_S,
            oracle_of=lambda _: self._oracle,
            secret=bootstrap.secret,
            name=bootstrap.name,
            restarts=bootstrap.incarnation - 1,
        )

    def end(self, reason: str) -> None:
        """Make `run` return. Any thread may call it; the first reason is logged."""
        self._end.request(reason)

    def run(self, up: Callable[[], None]) -> None:
        """Serve until `end` is called; `up` is called when the job manager has registered this standby."""
        bootstrap = self._bootstrap
        try:
            self._standby.start()
            self._job_manager.start()
            self._job_manager.call("register", self._address())
            self._oracle.registered()
            up()
            while not self._end.wait(min(HEARTBEAT_INTERVAL_S, bootstrap.config.lease_s / 4)):
                self._beat()
            log.info("%s ends: %s", bootstrap.name, self._end.reason)
        finally:
            self._standby.close()
            self._job_manager.close()

    def _beat(self) -> None:
        bootstrap = self._bootstrap
        try:
            self._job_manager.call(
                "heartbeat", bootstrap.index, bootstrap.incarnation, timeout_s=bootstrap.config.lease_s
            )
        except TimeoutError:
            log.info("the driver does not answer; committed state is served meanwhile")
        except (OSError, FencedError) as exc:
            self.end(str(exc))

    def _address(self) -> TaskManagerAddress:
        bootstrap = self._bootstrap
        return TaskManagerAddress(
            bootstrap.index,
            bootstrap.incarnation,
            host_id(),
            os.getpid(),
            self._host,
            0,
            "",
            self._standby.server_address,
            self._standby.address,
            bootstrap.executor_pid,
            self._standby.metrics_address,
        )


def main() -> None:
    """The process: reads its bootstrap from standard input, serves, and ends."""
    bootstrap, up = begin_process()
    try:
        if bootstrap.config.tracing:
            configure_tracing()
        standby = JobStandby(bootstrap)
        signal.signal(signal.SIGTERM, lambda *_: standby.end("SIGTERM"))
        standby.run(up)
    except (QStateError, OSError) as exc:
        log.error("%s of job %s cannot run: %s", bootstrap.name, bootstrap.job, exc)
        sys.exit(1)


if __name__ == "__main__":
    main()
