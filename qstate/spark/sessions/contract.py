"""What a job asks a Spark session for, beyond the API that the two kinds of PySpark have in common.

Rules of this module: it says what is asked, not how. Whatever differs between a classic session, which is in the
driver, and one of Spark Connect, which is a client, is here; no other module distinguishes the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from qstate.config import JobConfig
from qstate.runtime.relay.relay import JobTicket
from qstate.spark.progress import EpochListener

__all__ = ["LOOPBACK", "JobSession"]

LOOPBACK = "127.0.0.1"


class JobSession(ABC):
    """A session of a job. It holds nothing: two of the same Spark session are equal in all they do.

    A streaming query is PySpark's own object, `StreamingQuery`, of which there is one class for each kind.
    """

    @abstractmethod
    def conf(self) -> dict[str, str]:
        """All entries of the Spark conf."""

    @abstractmethod
    def default_parallelism(self) -> int:
        """The number of tasks that Spark runs at a time, as it estimates it."""

    @abstractmethod
    def is_local(self) -> bool:
        """Whether all executors are on the host of this process, so that loopback reaches it."""

    @abstractmethod
    def own_host(self) -> str:
        """The address at which executors reach this process, unless the config names one. Raises `ConfigError`."""

    @abstractmethod
    def prepare_workers(self) -> None:
        """Let Spark's workers use this interpreter, where that can be set and makes sense."""

    @abstractmethod
    def check_executors(self, ticket: JobTicket, checkpoint_dir: str, config: JobConfig) -> None:
        """Raise `ConfigError` when executors cannot take part in the job: what a classic session leaves to Spark."""

    @abstractmethod
    def plan_of(self, frame: DataFrame) -> str:
        """The analyzed plan of a DataFrame, as the tree that Spark draws of it, one node a line."""

    @abstractmethod
    def column_ids(self, frame: DataFrame) -> list[int]:
        """Spark's ids of the columns. `select("a")` keeps the id of `a`, `a + 0 AS a` gets a new one.

        Only ids of one call can be compared.
        """

    @abstractmethod
    def check_spark(self, state: str) -> None:
        """Raise `JobError` when Spark's driver is gone. `state` is the sentence that says where the job's state is."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the session has been stopped, or Spark's driver is gone."""

    @abstractmethod
    def active_queries(self) -> Sequence[Any]:
        """The running streaming queries of the session; none when it has ended."""

    @abstractmethod
    def plan_of_query(self, query: Any) -> str | None:
        """The analyzed plan of a running query; None where Spark does not tell it."""

    @abstractmethod
    def checkpoint_location(self, query: Any) -> str | None:
        """The checkpointLocation of a running query, as Spark writes locations; None where Spark does not tell it."""

    @abstractmethod
    def remove_listener(self, listener: EpochListener) -> None:
        """Let Spark tell the listener no more events. What Spark raises is of many types once it is gone."""

    @abstractmethod
    def await_reports(self, listener: EpochListener, timeout_s: float) -> None:
        """Wait until the listener knows all micro-batches that Spark has committed so far, or log that it does not."""
