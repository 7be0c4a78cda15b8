"""The job: what a PySpark program creates to keep queryable state.

Rules of this module: it belongs to the driver. It reads the config, starts the job manager, and turns streaming
DataFrames into keyed streams. It never sees a row.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from qstate.backends.catalog import check_backend
from qstate.checkpoint import Savepoint, open_source, write_savepoint
from qstate.checkpoint.storage.locations import absolute, open_directory
from qstate.config import JobConfig
from qstate.errors import ClosedError, ConfigError, JobError
from qstate.runtime.control.addresses import RestoredSubtask
from qstate.runtime.control.auth_token import with_token
from qstate.runtime.control.statistics import ProcessStatistics
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.net.listener import parse_ports
from qstate.runtime.relay.relay import JobTicket
from qstate.runtime.serving.metrics import MetricsServer
from qstate.runtime.serving.query_ports import check_exposure
from qstate.runtime.tasks.driver_only import check_driver
from qstate.spark.command_lines import stands_on_a_command_line
from qstate.spark.keyed_stream import KeyedStream
from qstate.spark.live_jobs import LiveJob, LiveJobs
from qstate.spark.progress import EpochListener
from qstate.spark.queries import StreamingQueries

__all__ = ["Job"]

log = logging.getLogger(__name__)

_LOCAL_MASTER = re.compile(r"local(\[|$|-cluster\[)")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LIVE_JOBS = LiveJobs()
_TOKEN_IN_THE_OPEN = (
    "every user of this host can read the job's token in the list of processes: Spark passes the conf of a session "
    "that is built in Python, or given with --conf, on a command line. Give it to the Job in Python "
    "(auth_token=os.environ[...]), or name a file that holds it (auth_token_file, spark.qstate.auth.token.file), and "
    "make another token"
)
#: How often a wait for the first proxy looks whether a query still runs.
QUERIES_INTERVAL_S = 0.5


class Job:
    """A job with queryable state, under the name that clients ask for.

    `settings` are the fields of `qstate.config.JobConfig`; they win over `spark.qstate.*` entries of the Spark
    conf. Use it as a context manager, or call `stop()`: the task managers, and with them the state, live until
    then. Stop the queries first, or their next micro-batch fails.

    A job of the same name that is up in this driver is stopped first, so that a notebook's cell can be run once more;
    with the same `checkpoint_dir` the new one goes on with its state.

    Raises `ConfigError` for a setting that cannot work, before anything is started, and for the name of a job whose
    query runs.
    """

    def __init__(self, spark: SparkSession, name: str, **settings: Any) -> None:
        check_driver("makes a job")
        if not isinstance(name, str) or not _JOB_NAME.fullmatch(name):
            raise ConfigError(f"a job name has 1 to 128 letters, digits, '.', '_' or '-', got {name!r}")
        if not isinstance(spark, SparkSession):
            raise ConfigError(
                f"a job runs in the driver of its Spark application, got a session of {type(spark).__module__}; with "
                "Spark Connect the driver is elsewhere: submit the program with spark-submit instead"
            )
        context = spark.sparkContext
        self.name = name
        self.config = with_token(JobConfig.from_spark(dict(context.getConf().getAll()), **settings))
        if self.config.auth_token and stands_on_a_command_line(self.config.auth_token):
            log.warning(_TOKEN_IN_THE_OPEN)
        check_backend(self.config.backend, self.config.backend_options)
        for ports in (self.config.proxy_ports, self.config.server_ports, self.config.metrics_ports or "0"):
            parse_ports(ports)
        self.parallelism = self.config.parallelism or min(context.defaultParallelism, self.config.max_parallelism)
        local = bool(_LOCAL_MASTER.match(context.master or ""))
        host = "127.0.0.1" if local else context.getConf().get("spark.driver.host", "127.0.0.1")
        check_exposure(self.config, "127.0.0.1" if local else "the host's address")
        _LIVE_JOBS.stop_idle(name)
        _use_this_interpreter(context, local=local)
        self._spark = spark
        self._queries = StreamingQueries(spark)
        self._manager = JobManager(
            name,
            self.config,
            parallelism=self.parallelism,
            host=host or "127.0.0.1",
            local=local,
            location_of=self._queries.checkpoint_location,
        )
        self._listener = EpochListener(self._manager.finalize)
        self._stopping = threading.Lock()
        self._stopped = False
        self._ended = False
        self._live = LiveJob(name, self._running_queries, self._deletes_state, self.stop)
        self._metrics: MetricsServer | None = None
        try:
            _LIVE_JOBS.add(self._live)
            if self.config.metrics_ports:
                self._metrics = MetricsServer(
                    lambda: name,
                    self._manager.statistics,
                    bind=self.config.metrics_bind,
                    ports=self.config.metrics_ports,
                )
            spark.streams.addListener(self._listener)
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)

    def key_by(self, stream: DataFrame, *columns: str | Column) -> KeyedStream:
        """The stream keyed by one or more columns, of type string, binary or an integer type.

        Names are resolved as by Spark's `select`: `"st.a"` is a field of a struct, a name with a dot in it is written
        in backticks, and case counts where `spark.sql.caseSensitive` says so. An expression is the key as it was
        written, whatever its result is called.

        The rows that a function sees have the columns of the stream, as they were. Key expressions are no part of them,
        except those with a name of their own, which no column and no other expression has:
        `F.upper("id").alias("name")` is `row.name` as well, and `F.upper("id").alias("id")` leaves `row.id` alone.

        Raises `JobError` for what Spark cannot resolve.
        """
        self._check_running()
        if not isinstance(stream, DataFrame):
            raise JobError(f"key_by takes a streaming DataFrame and its key columns, got {stream!r}")
        self._queries.include(stream.sparkSession)
        return KeyedStream(self._manager, self._ticket(), self._queries, stream, columns)

    @property
    def proxy_address(self) -> tuple[str, int]:
        """(host, port) of a client proxy; waits for the first one to come up, as task managers start with the
        first micro-batch.

        Raises `JobError` when there is none and no streaming query runs that could start one, or proxies are not
        enabled; `TimeoutError` after `start_timeout_s`."""
        self._check_running()
        if not self.config.proxy_enabled:
            raise JobError(f"job {self.name!r} has no client proxies: proxy_enabled is False")
        deadline = time.monotonic() + self.config.start_timeout_s
        wait_s = 0.0
        while True:
            try:
                return self._manager.wait_for_proxy(wait_s)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            if not self._queries.running():
                raise JobError(
                    f"job {self.name!r} has no client proxy yet and no streaming query runs: task managers, and the "
                    "proxies in them, start with the first micro-batch; start the query of an operator first, and if "
                    "it has ended, see why (query.exception())"
                )
            wait_s = QUERIES_INTERVAL_S

    @property
    def restored(self) -> list[RestoredSubtask]:
        """What was restored where: for each subtask that began with state, as of which epoch and from which files.

        A subtask is opened with the first micro-batch of its query, so before that the list is empty.
        """
        return self._manager.restored()

    def statistics(self) -> list[ProcessStatistics]:
        """What the state server and the client proxy of each task manager have counted since they started.

        One entry for each task manager that is up, in the order of their indexes; empty before the first
        micro-batch. One that does not answer within two seconds is `reachable=False`. The counts of a task manager
        begin at zero when it is started again, and are None with `statistics=False`. Any thread may ask.
        """
        self._check_running()
        return self._manager.statistics()

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """(host, port) of the Prometheus metrics, `http://host:port/metrics`; None without `metrics_ports`."""
        return None if self._metrics is None else self._metrics.address

    @property
    def manager(self) -> JobManager:
        """The job manager, for tools that look into a running job."""
        return self._manager

    def savepoint(self, path: str | Path) -> Savepoint:
        """Write a savepoint of the running job, as of the last committed epoch, into a new or empty directory.

        `path` may be a URL, too. The job goes on meanwhile. Raises `CheckpointError` before the first epoch was
        committed, when the directory holds something and when it cannot be written; what was written then is no
        savepoint.
        """
        self._check_running()
        options = self.config.checkpoint_storage_options
        source = open_source(str(self._manager.checkpoint_dir), options)
        return write_savepoint(source, open_directory(absolute(path), options))

    def stop(self) -> None:
        """End the task managers and free everything. State in a configured `checkpoint_dir` stays.

        Idempotent, also from several threads: each returns when all has ended. One that was interrupted is taken up
        again by the next.
        """
        with self._stopping:
            if self._ended:
                return
            self._stopped = True
            self._listener.detach(self._spark)
            if self._metrics is not None:
                self._metrics.close()
            self._manager.stop()
            _LIVE_JOBS.remove(self._live)
            atexit.unregister(self.stop)
            self._ended = True

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _running_queries(self) -> dict[str, str | None]:
        """The names, by id, of the streaming queries that run and have driven an operator of this job."""
        driven = self._manager.queries()
        return {query: name for query, name in self._queries.running().items() if query in driven}

    def _deletes_state(self) -> bool:
        """Whether there is state in a temporary directory, which `stop` deletes."""
        return not self.config.checkpoint_dir and bool(self._manager.queries())

    def _ticket(self) -> JobTicket:
        return JobTicket(
            self.name,
            self._manager.address,
            self._manager.secret,
            self.config.start_timeout_s,
            self.config.replay_buffer_bytes,
        )

    def _check_running(self) -> None:
        if self._stopped:
            raise ClosedError(f"job {self.name!r} has been stopped")


def _use_this_interpreter(context: Any, *, local: bool) -> None:
    """Let Spark's workers run the interpreter of the driver where the user named none.

    Spark's own default is whatever `python3` the PATH finds, which in a fresh virtual environment lacks the
    packages of this one. On a cluster the driver's path may not exist, so the default stays.
    """
    named = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if local and not named:
        context.pythonExec = sys.executable
