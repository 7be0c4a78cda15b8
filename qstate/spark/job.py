"""The job: a PySpark program creates one to keep queryable state.

Rules of this module: it runs in the driver. It reads the config, starts the job manager, and turns streaming
DataFrames into keyed streams. It never sees a row.
"""

from __future__ import annotations

import atexit
import logging
import re
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
from qstate.runtime.control.job_statistics import JobStatistics
from qstate.runtime.control.tracing import check_tracing
from qstate.runtime.job.job_manager import JobManager, log_directory
from qstate.runtime.relay.relay import JobTicket
from qstate.runtime.serving.metrics import MetricsServer, check_metrics
from qstate.runtime.serving.query_ports import check_exposure
from qstate.runtime.tasks.driver_only import check_driver
from qstate.spark.command_lines import is_on_a_command_line
from qstate.spark.job_display import figures_html, ipython, show_figures
from qstate.spark.keyed_stream import KeyedStream
from qstate.spark.live_jobs import LiveJob, LiveJobs
from qstate.spark.plan.operators import JobOperators
from qstate.spark.progress import EpochListener
from qstate.spark.queries import StreamingQueries
from qstate.spark.sessions.catalog import session_of
from qstate.spark.sessions.contract import LOOPBACK
from qstate.spark.stream import Stream
from qstate.values.html_tables import html_table

__all__ = ["Job"]

log = logging.getLogger(__name__)

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LIVE_JOBS = LiveJobs()
_TOKEN_IN_THE_OPEN = (
    "every user of this host can read the job's token in the list of processes: Spark passes the conf of a session "
    "that is built in Python, or given with --conf, on a command line. Give it to the Job in Python "
    "(auth_token=os.environ[...]), or name a file that holds it (auth_token_file, spark.qstate.auth.token.file), and "
    "make another token"
)
#: How often a wait for the first proxy checks whether a query still runs.
QUERIES_INTERVAL_S = 0.5


class Job:
    """A job with queryable state. Clients query it by `name`.

    `settings` are the fields of `qstate.config.JobConfig`; they override `spark.qstate.*` entries of the Spark
    conf. Use the job as a context manager, or call `stop()`: the task managers, and the state in them, live until
    then. Stop the queries first, otherwise their next micro-batch fails.

    A running job of the same name in this driver is stopped first, so that a notebook's cell can be run again. With the
    same `checkpoint_dir`, the new job continues with its state.

    In a notebook, and in IPython in a terminal, its queries that run are stopped, too, with a warning.

    When Spark's driver ends unexpectedly, the methods and properties of the job raise `JobError`, which says how to
    continue. The state stays queryable until `stop()`, which works as always.

    Raises `ConfigError`, before anything is started, for a setting that cannot work, and, outside notebooks, for the
    name of a job with a running query, also one that has had no data yet.
    """

    def __init__(self, spark: SparkSession, name: str, **settings: Any) -> None:
        check_driver("creates a job")
        if not isinstance(name, str) or not _JOB_NAME.fullmatch(name):
            raise ConfigError(f"a job name has 1 to 128 letters, digits, '.', '_' or '-', got {name!r}")
        session = session_of(spark)
        self.name = name
        self.config = with_token(JobConfig.from_spark(session.conf(), **settings))
        if self.config.auth_token and is_on_a_command_line(self.config.auth_token):
            log.warning(_TOKEN_IN_THE_OPEN)
        check_backend(self.config.backend, self.config.backend_options)
        log_directory(self.config.log_dir)
        local = session.is_local()
        host = self.config.job_manager_host or session.own_host()
        if self.config.task_manager_metrics_ports:
            check_metrics()
        if self.config.tracing:
            check_tracing()
        check_exposure(self.config, LOOPBACK if local else "the host's address")
        _LIVE_JOBS.stop_earlier(name, in_notebook=ipython() is not None)
        session.prepare_workers()
        self.parallelism = self.config.parallelism or min(session.default_parallelism(), self.config.max_parallelism)
        self._spark = spark
        self._queries = StreamingQueries(spark, lambda: self._manager.queries())
        self._manager = JobManager(
            name,
            self.config,
            parallelism=self.parallelism,
            host=host,
            local=local,
            location_of=self._queries.checkpoint_location,
        )
        self._listener = EpochListener(self._manager.finalize)
        self._stopping = threading.Lock()
        self._stopped = False
        self._ended = False
        self._live = LiveJob(name, self._queries, self._deletes_state, self.stop)
        self._metrics: MetricsServer | None = None
        try:
            _LIVE_JOBS.add(self._live)
            session.check_executors(self._ticket(), str(self._manager.checkpoint_dir), self.config)
            if self.config.metrics_ports:
                self._metrics = MetricsServer(
                    lambda: name,
                    lambda: self._manager.statistics().processes,
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

        Names are resolved as by Spark's `select`: `"st.a"` is a field of a struct, a name with a dot is written in
        backticks, and case matters only with `spark.sql.caseSensitive`. An expression is the key as written, also when
        its result has the name of a column.

        The function gets rows with the unchanged columns of the stream. A key expression is a further column of them if
        its name is unique among all columns and key expressions: `F.upper("id").alias("name")` is `row.name`, but
        `F.upper("id").alias("id")` leaves `row.id` unchanged.

        Raises `JobError` for a name or expression that Spark cannot resolve.
        """
        if not isinstance(stream, DataFrame):
            raise JobError(f"key_by takes a streaming DataFrame and its key columns, got {stream!r}")
        return KeyedStream(self._operators(stream), stream, columns)

    def stream(self, stream: DataFrame) -> Stream:
        """The stream without a key: for a function with operator state, and for broadcast rows.

        Raises `JobError` for anything but a streaming DataFrame.
        """
        if not isinstance(stream, DataFrame):
            raise JobError(f"stream() takes a streaming DataFrame, got {stream!r}")
        return Stream(self._operators(stream), stream)

    def _operators(self, stream: DataFrame) -> JobOperators:
        self._check_running()
        self._queries.include(stream.sparkSession)
        return JobOperators(self._manager, self._ticket(), self._queries)

    @property
    def proxy_address(self) -> tuple[str, int]:
        """(host, port) of a client proxy. Waits for the first micro-batch: it starts the task managers, and opens the
        operators, whose states clients can ask for then. State that is restored is so before.

        Raises `JobError` when there is none and no running streaming query could start one, or when proxies are not
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
                self._check_running()  # Spark may have ended meanwhile
                raise JobError(
                    f"job {self.name!r} has no client proxy with states yet and no streaming query runs: task "
                    "managers start, and operators open, with the first micro-batch; start the query of an operator "
                    "first, and if it has ended, see why (query.exception())"
                )
            wait_s = QUERIES_INTERVAL_S

    @property
    def proxies(self) -> list[tuple[str, int]]:
        """(host, port) of each client proxy that runs now: those of the task managers, then those of the standbys.

        Give clients several of them, so that they do not depend on one process: the first as `host` and `port`, the
        others as `proxies`. A process that is started again may listen on another port of `proxy_ports`.
        """
        self._check_running()
        return self._manager.proxies()

    @property
    def restored(self) -> list[RestoredSubtask]:
        """The restored state of each subtask that began with state: its epoch and its files.

        A subtask is opened with the first micro-batch of its query; before that, the list is empty.
        """
        return self._manager.restored()

    def statistics(self) -> JobStatistics:
        """The figures of each running task manager: what its state server and client proxy serve, and what its
        subtasks process.

        There are none before the first micro-batch. A task manager that does not answer within two seconds has
        `reachable=False`. The counts begin at zero when a task manager is restarted; those of requests are None with
        `statistics=False`. Any thread may call it.
        """
        self._check_running()
        return self._manager.statistics()

    def display(self, seconds: float | None = None, *, interval_s: float = 1.0) -> None:
        """Show the figures of `statistics`, a line for each subtask.

        In a notebook it is a table that changes every `interval_s` seconds, for `seconds` seconds or, by default, until
        the cell is interrupted or the job is stopped. An interruption ends only the display. Elsewhere, also in IPython
        in a terminal, the figures are printed once. Raises `ClosedError` when the job has been stopped before, and
        `ConfigError` for what is no number of seconds above zero.
        """
        show_figures(self.statistics, seconds, interval_s)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """(host, port) of the Prometheus metrics, `http://host:port/metrics`; None without `metrics_ports`."""
        return None if self._metrics is None else self._metrics.address

    @property
    def manager(self) -> JobManager:
        """The job manager, for tools that inspect a running job."""
        return self._manager

    def savepoint(self, path: str | Path) -> Savepoint:
        """Write a savepoint of the running job, as of the last committed epoch, into a new or empty directory.

        That is the last epoch of a query that has ended (`awaitTermination`).
        `path` may also be a URL. The job continues meanwhile. Raises `CheckpointError` before the first epoch is
        committed, and when the directory is not empty or cannot be written. Files that a failure leaves behind are not
        a savepoint.
        """
        self._check_running()
        self._queries.await_reports(self._listener)
        self._check_running()
        options = self.config.checkpoint_storage_options
        source = open_source(str(self._manager.checkpoint_dir), options)
        return write_savepoint(source, open_directory(absolute(path), options))

    def stop(self) -> None:
        """End the task managers and free all resources. State in a configured `checkpoint_dir` stays.

        Idempotent. Several threads may call it; each call returns when the job has ended. After an interrupted call,
        the next call finishes the work.
        """
        with self._stopping:
            if self._ended:
                return
            self._stopped = True
            self._stop_listening()
            if self._metrics is not None:
                self._metrics.close()
            self._manager.stop()
            _LIVE_JOBS.remove(self._live)
            atexit.unregister(self.stop)
            self._ended = True

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "up"
        return f"<Job {self.name!r}: {self.parallelism} subtasks, backend {self.config.backend!r}, {state}>"

    def _repr_html_(self) -> str:
        """The job's figures as a table, for notebooks: see `display`."""
        try:
            return figures_html(self.statistics())
        except ClosedError:
            return html_table(repr(self), [], [])
        except JobError as exc:
            return html_table(f"{self!r}: {exc}", [], [])

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _deletes_state(self) -> bool:
        """Whether the job has state in a temporary directory, which `stop` deletes."""
        return not self.config.checkpoint_dir and bool(self._manager.queries())

    def _stop_listening(self) -> None:
        session = session_of(self._spark)
        if session.has_ended():
            return
        try:
            session.remove_listener(self._listener)
        except Exception as exc:  # py4j, and gRPC, raise many types once Spark is gone
            log.debug("the listener could not be removed: %s", exc)

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
        if self.config.checkpoint_dir:
            state = f"The committed state of job {self.name!r} is in {self._manager.checkpoint_dir}"
        else:
            state = f"The state of job {self.name!r} is in a temporary directory, which job.stop() deletes"
        session_of(self._spark).check_spark(state)
