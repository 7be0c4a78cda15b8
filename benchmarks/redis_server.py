"""A Redis server for the comparisons: on a free loopback port, without persistence, ended afterwards.

Rules of this module: it starts and ends one process. `unavailable` says why there cannot be one.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.optional_packages import missing, optional

__all__ = ["redis_server", "unavailable"]

START_TIMEOUT_S = 10.0
LOOPBACK = "127.0.0.1"


def unavailable() -> str:
    """Why there is no Redis to compare with; empty when there is."""
    if shutil.which("redis-server") is None:
        return "there is no redis-server on the PATH"
    return missing("redis", "hiredis")


@contextmanager
def redis_server(directory: Path) -> Iterator[int]:
    """A running server; gives its port."""
    directory.mkdir(parents=True)
    port = _free_port()
    options = ["--bind", LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(directory)]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_answer(process, port)
        yield port
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def _free_port() -> int:
    with closing(socket.create_server((LOOPBACK, 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    redis: Any = optional("redis")
    until = time.monotonic() + START_TIMEOUT_S
    with closing(redis.Redis(LOOPBACK, port)) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError as exc:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("redis-server did not come up") from exc
            time.sleep(0.02)
