"""The Spark session that the demo runs in.

Rules of this module: it makes a local session that keeps everything below one directory and stays quiet. Nothing
of the demo's data or states is known here.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from qstate.errors import InstallationError, JobError
from qstate.host.private_files import make_directories

__all__ = ["open_session"]

_LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
# The JVM of a PySpark program counts as a shell, which takes its level from this logger and announces any other.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


def open_session(directory: Path, *, cores: int, verbose: bool = False) -> SparkSession:
    """A local session. Raises `InstallationError` when Java does not start, `JobError` for other errors of Spark."""
    make_directories(directory)
    logging = directory / "log4j2.properties"
    # Before the session exists, only a file can say how much Spark logs. The query's own failures reach us as
    # exceptions; what Spark would print about them as well is a screenful each.
    logging.write_text(_LOG4J.format(level="warn" if verbose else "fatal"))
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("qstate demo")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as exc:
        raise InstallationError(f"Java does not start Spark ({_first_line(exc)}); to do: run `qstate check`") from exc
    except PySparkException as exc:
        raise JobError(f"Spark does not start: {_first_line(exc)}") from exc


def _first_line(exc: Exception) -> str:
    return str(exc).strip().partition("\n")[0]
