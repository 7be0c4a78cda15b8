"""A session of Spark Connect: it is a client, and the driver of the application is elsewhere.

Rules of this module: it alone distinguishes Spark Connect. It imports no part of `pyspark.sql.connect`, which needs
packages that a classic session does not; it gets the session, and asks that.

What the client's API does not tell is read from the text of `explain`.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.config import JobConfig
from qstate.errors import ConfigError, JobError
from qstate.runtime.relay.relay import JobTicket
from qstate.spark.progress import EpochListener
from qstate.spark.sessions.classic import LOCAL_MASTER
from qstate.spark.sessions.contract import LOOPBACK, JobSession
from qstate.spark.sessions.executor_check import ExecutorCheck
from qstate.spark.sessions.server_retries import ServerRetries
from qstate.tls import is_loopback

__all__ = ["ConnectSession"]

log = logging.getLogger(__name__)

#: The conf of Spark that shortens the lists of columns in plans.
MOST_FIELDS = "spark.sql.debug.maxToStringFields"
#: Other listeners of the program, which have the last events too, may be slow.
LAST_EVENTS_TIMEOUT_S = 10.0
#: Two jobs of one session may be stopped by two threads.
_REMOVING = threading.Lock()
#: Any port: no packet is sent there.
SOME_PORT = 15002
_ANALYZED = re.compile(r"^== Analyzed Logical Plan ==\n(.*?)^== Optimized Logical Plan ==$", re.DOTALL | re.MULTILINE)


class ConnectSession(JobSession):
    """A `pyspark.sql.connect.session.SparkSession`. From now on its calls fail soon when the server is gone."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._retries = ServerRetries.of(spark.client)

    def conf(self) -> dict[str, str]:
        return dict(self._spark.conf.getAll)

    def default_parallelism(self) -> int:
        """Spark gives so many partitions to a range; the last one has the last row."""
        (last,) = self._spark.range(1).select(F.spark_partition_id()).collect()
        return int(last[0]) + 1

    def is_local(self) -> bool:
        return bool(LOCAL_MASTER.match(self._spark.conf.get("spark.master", "") or "")) and is_loopback(self._server())

    def own_host(self) -> str:
        """The address from which this host reaches the server: executors are likely to reach it, too."""
        if self.is_local():
            return LOOPBACK
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
            try:
                sock.connect((self._server(), SOME_PORT))
            except OSError as exc:
                raise ConfigError(
                    f"no address of this host is known for connections from the executors of {self._server()} "
                    f"({exc}): name one with job_manager_host"
                ) from exc
            return str(sock.getsockname()[0])

    def prepare_workers(self) -> None:
        """The interpreter of the workers is a setting of the server."""

    def check_executors(self, ticket: JobTicket, checkpoint_dir: str, config: JobConfig) -> None:
        """Let a task of Spark connect to the job manager and look for the checkpoint directory."""
        check = ExecutorCheck(ticket, checkpoint_dir, config.checkpoint_storage_options)
        try:
            (answer,) = self._spark.range(0, 1, 1, 1).mapInArrow(check, ExecutorCheck.SCHEMA).collect()
        except PySparkException as exc:
            if self._retries.loss:
                raise
            raise ConfigError(
                f"a task of Spark cannot run qstate's code ({_reason(exc)}): the Python of the executors needs the "
                "version of this one, and the same qstate (PYSPARK_PYTHON or spark.pyspark.python of the server)"
            ) from exc
        if answer.fault:
            raise ConfigError(answer.fault)

    def plan_of(self, frame: DataFrame) -> str:
        # Not part of PySpark's API, whose `explain` prints.
        text: str = frame._explain_string(extended=True)  # type: ignore[operator]
        found = _ANALYZED.search(text)
        if found is None:
            raise JobError(f"Spark explains a plan in a form that qstate does not know: {text}")
        return found[1].partition("\n")[2]  # without the line of the schema

    def column_ids(self, frame: DataFrame) -> list[int]:
        """Spark writes `name#id AS alias#id` for each column that gets an alias. The aliases here occur only once."""
        mark = f"qstate_{uuid4().hex}"
        aliased = frame.toDF(*(f"{mark}_{position}" for position in range(len(frame.columns))))
        with self._whole_lists(len(frame.columns)):
            text = self.plan_of(aliased)
        found = {int(at): int(one) for one, at in re.findall(rf"#(\d+)L?(?:-T\d+ms)? AS {mark}_(\d+)#", text)}
        try:
            return [found[position] for position in range(len(frame.columns))]
        except KeyError as exc:
            raise JobError(f"Spark explains columns in a form that qstate does not know: {text}") from exc

    def check_spark(self, state: str) -> None:
        if self._retries.loss:
            address = getattr(self._spark.client._builder, "endpoint", self._spark.client.host)
            raise JobError(
                f"the Spark Connect server at {address} is gone ({self._retries.loss}), and with it this session and "
                f"its queries. {state}. To continue: start a server, stop this session (spark.stop()), make a new one, "
                "create the job again with the same checkpoint_dir, and start its queries with the same "
                "checkpointLocation"
            )

    def has_ended(self) -> bool:
        return bool(self._spark.is_stopped or self._retries.loss)

    def active_queries(self) -> Sequence[Any]:
        if self.has_ended():
            return ()
        try:
            found: list[Any] = self._spark.streams.active
        except PySparkException as exc:
            log.warning("the Spark Connect server does not tell its streaming queries: %s", _reason(exc))
            return ()
        return found

    def plan_of_query(self, query: Any) -> str | None:
        """`explain` of a query prints, and shows no plan before the first micro-batch."""
        return None

    def checkpoint_location(self, query: Any) -> str | None:
        return None

    def remove_listener(self, listener: EpochListener) -> None:
        """Spark would wait for its thread of events with the lock that this thread needs for an event (SPARK-59623).

        Without the thread, Spark's listeners have nothing to wait for; its end is awaited here, without the lock.
        """
        listeners: Any = self._spark.streams._sqlb
        with _REMOVING:
            events, listeners._execution_thread = listeners._execution_thread, None
            self._spark.streams.removeListener(listener)
            with listeners._lock:
                others = bool(listeners._listener_bus)
                if others and listeners._execution_thread is None:
                    listeners._execution_thread = events
        if events is None or others:
            return
        events.join(LAST_EVENTS_TIMEOUT_S)
        if events.is_alive():
            log.warning("a listener of this session is still busy with the last events, so this program may end late")

    def await_reports(self, listener: EpochListener, timeout_s: float) -> None:
        queries = self.active_queries()
        if self.has_ended():
            return
        for query in queries:
            # A trigger without data also leaves a progress now and then, with the number of the epoch to come.
            epochs = [one for one in query.recentProgress if "addBatch" in one.durationMs]
            if epochs:
                listener.committed(epochs[-1])
        if not listener.await_ended([str(query.runId) for query in queries], timeout_s):
            log.warning("Spark has not reported the end of a query, so its last epochs may be missing")

    def _server(self) -> str:
        return str(self._spark.client.host).strip("[]")

    @contextmanager
    def _whole_lists(self, columns: int) -> Iterator[None]:
        """Let Spark write plans of so many columns in full."""
        conf = self._spark.conf
        before = conf.get(MOST_FIELDS)
        if int(before) > columns:
            yield
            return
        conf.set(MOST_FIELDS, columns + 1)
        try:
            yield
        finally:
            conf.set(MOST_FIELDS, before)


def _reason(exc: Exception) -> str:
    """The line that says what happened: of an error in a worker, the last line of its traceback."""
    lines = [line.strip() for line in str(exc).partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or [type(exc).__name__])[-1]
