"""The resources of a run, shared by all benchmarks: sizes, a directory, and one Spark session.

Rules of this module: it owns the resources that must be released at the end, and releases them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.micro_batches import start_spark
from benchmarks.sizes import Sizes
from qstate.spark import Job

__all__ = ["Bench"]


class Bench:
    """One run. Close it: that stops Spark."""

    def __init__(self, sizes: Sizes, directory: Path, wanted: Collection[str]) -> None:
        self.sizes = sizes
        self._directory = directory
        self._wanted = frozenset(wanted)
        self._numbers = count()
        self._spark: SparkSession | None = None

    def wants(self, name: str) -> bool:
        """Whether this benchmark was asked for."""
        return name in self._wanted

    @property
    def spark(self) -> SparkSession:
        """The session, started on first use, so that benchmarks without Spark do not run beside an idle JVM."""
        if self._spark is None:
            self._spark = start_spark()
        return self._spark

    def directory(self, name: str) -> Path:
        """A new path."""
        return self._directory / f"{next(self._numbers):03d}-{name}"

    @contextmanager
    def job(
        self,
        backend: str,
        parallelism: int = 2,
        *,
        snapshot_interval: int | None = None,
        standbys: int = 0,
        proxy_ports: str = "0",
    ) -> Iterator[Job]:
        """A job on ports of its own that is stopped at the end; snapshots as by default, unless said otherwise."""
        name = f"bench-{next(self._numbers)}"
        settings = {"backend": backend, "parallelism": parallelism, "proxy_ports": proxy_ports, "server_ports": "0"}
        settings["standby_replicas"] = standbys
        if snapshot_interval is not None:
            settings |= {"snapshot_interval": snapshot_interval, "checkpoint_dir": str(self.directory(f"state-{name}"))}
        with Job(self.spark, name, **settings) as job:
            yield job

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
