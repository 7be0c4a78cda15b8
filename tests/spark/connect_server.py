"""A Spark Connect server in a process of its own: what `sbin/start-connect-server.sh` starts, on a port of the system.

As a program it starts the server, prints its port, and ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from tests.spark.streams import REPOSITORY

LOOPBACK = "127.0.0.1"


@contextmanager
def connect_server(master: str, **conf: str) -> Iterator[str]:
    """The URL of a new server on this master, with these entries of its conf (`_` stands for a dot)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    settings = [f"{name.replace('_', '.')}={value}" for name, value in conf.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.connect_server", master, *settings],
        env=environment,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        port = next((line.split()[1] for line in server.stdout if line.startswith("PORT ")), None)
        assert port is not None, "the Spark Connect server has not started: its log says why"
        yield f"sc://{LOOPBACK}:{port}"
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(60)


def server_process(url: str) -> psutil.Process:
    """The process of the server, a JVM."""
    port = int(url.rpartition(":")[2])
    for process in psutil.process_iter(["name"]):
        # Only those of one process at a time: while it looks at all, others end, and that is an error to it.
        with suppress(psutil.NoSuchProcess):
            if process.info["name"] == "java" and any(
                one.laddr[1:] == (port,) and one.status == "LISTEN" for one in process.net_connections("tcp")
            ):
                return process
    raise AssertionError(f"no process listens at {url}")


@contextmanager
def remote_session(url: str) -> Iterator[SparkSession]:
    """A session of this server, beside a classic session of this process."""
    session = ConnectSession.builder.remote(url).create()
    try:
        yield cast(SparkSession, session)
    finally:
        session.stop()


def main(master: str, *settings: str) -> None:
    builder = SparkSession.builder.master(master)
    for setting in settings:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    session = (
        builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", LOOPBACK)
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", LOOPBACK)
        .config("spark.driver.bindAddress", LOOPBACK)
        .config("spark.executorEnv.PYTHONPATH", str(REPOSITORY))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    jvm: Any = session._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")  # the Scala object
    print("PORT", getattr(service, "MODULE$").localPort(), flush=True)
    sys.stdin.read()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
