"""A classic session: it is in the driver, and gives access to it.

Rules of this module: it alone uses what is not part of PySpark's API, the JVM's objects behind it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from qstate.config import JobConfig
from qstate.errors import JobError
from qstate.runtime.relay.relay import JobTicket
from qstate.spark.progress import EpochListener
from qstate.spark.sessions.contract import LOOPBACK, JobSession

__all__ = ["LOCAL_MASTER", "ClassicSession"]

log = logging.getLogger(__name__)

LOCAL_MASTER = re.compile(r"local(\[|$|-cluster\[)")


class ClassicSession(JobSession):
    """A `pyspark.sql.SparkSession`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def conf(self) -> dict[str, str]:
        return dict(self._spark.sparkContext.getConf().getAll())

    def default_parallelism(self) -> int:
        return self._spark.sparkContext.defaultParallelism

    def is_local(self) -> bool:
        return bool(LOCAL_MASTER.match(self._spark.sparkContext.master or ""))

    def own_host(self) -> str:
        if self.is_local():
            return LOOPBACK
        return self._spark.sparkContext.getConf().get("spark.driver.host", None) or LOOPBACK

    def prepare_workers(self) -> None:
        """On a local master, let Spark's workers use the driver's interpreter, unless the user named one.

        Spark's default is the first `python3` in the PATH, which may not have the packages of the driver's virtual
        environment. On a cluster the driver's path may not exist, so the default stays.
        """
        context = self._spark.sparkContext
        named = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
        if self.is_local() and not named:
            context.pythonExec = sys.executable

    def check_executors(self, ticket: JobTicket, checkpoint_dir: str, config: JobConfig) -> None:
        """Executors reach the driver, or there is no application."""

    def plan_of(self, frame: DataFrame) -> str:
        return str(frame._jdf.queryExecution().analyzed().toString())

    def column_ids(self, frame: DataFrame) -> list[int]:
        output: Any = frame._jdf.queryExecution().analyzed().output()
        return [output.apply(position).exprId().id() for position in range(output.size())]

    def check_spark(self, state: str) -> None:
        if self._jvm_has_ended():
            raise JobError(
                f"Spark's driver, a JVM that this program started, has ended, and with it this session and its "
                f"queries. {state}. To continue, start this program again: it needs the same checkpoint_dir, and the "
                "same checkpointLocation of its queries"
            )

    def has_ended(self) -> bool:
        return self._spark.sparkContext._jsc is None or self._jvm_has_ended()

    def active_queries(self) -> Sequence[Any]:
        return () if self.has_ended() else self._spark.streams.active

    def plan_of_query(self, query: Any) -> str | None:
        return str(query._jsq.streamingQuery().analyzedPlan().toString())

    def checkpoint_location(self, query: Any) -> str | None:
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())

    def remove_listener(self, listener: EpochListener) -> None:
        self._spark.streams.removeListener(listener)

    def await_reports(self, listener: EpochListener, timeout_s: float) -> None:
        if self.has_ended():
            return
        context: Any = self._spark.sparkContext._jsc
        try:
            context.sc().listenerBus().waitUntilEmpty(int(timeout_s * 1000))
        except Exception as exc:  # of py4j, which pyspark-client does without
            reason = getattr(exc, "java_exception", exc)
            log.warning("Spark's listeners are behind, so the last epochs may be missing: %s", reason)

    def _jvm_has_ended(self) -> bool:
        """Whether PySpark has started the JVM, and it has ended. spark-submit starts a program from the JVM instead."""
        started = getattr(self._spark.sparkContext._gateway, "proc", None)
        return started is not None and started.poll() is not None
