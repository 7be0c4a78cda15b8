"""Finds what a job needs to know of a session by its kind.

Rules of this module: it knows how to tell the kinds apart, and nothing else.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from qstate.errors import ConfigError
from qstate.spark.sessions.classic import ClassicSession
from qstate.spark.sessions.connect import ConnectSession
from qstate.spark.sessions.contract import JobSession

__all__ = ["session_of"]

_CONNECT = "pyspark.sql.connect."


def session_of(spark: Any) -> JobSession:
    """The session. Raises `ConfigError` for anything but a session of PySpark."""
    if isinstance(spark, SparkSession):
        return ClassicSession(spark)
    if any(one.__module__.startswith(_CONNECT) and one.__name__ == "SparkSession" for one in type(spark).__mro__):
        return ConnectSession(spark)
    raise ConfigError(f"a job needs a SparkSession, got {type(spark).__module__}.{type(spark).__qualname__}")
