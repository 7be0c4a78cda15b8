"""A client proxy in a process of its own: `python -m tests.runtime.client.proxy_process HOST PORT FILE`.

It serves the job "job" by the location tables in FILE, a pickled map by state name, which it reads at each look-up. So
a test can move states. It prints its address when it listens, and serves until it is killed.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.errors import QueryError
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions


class FileOracle:
    """The location oracle of the job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        reply(pickle.loads(self._path.read_bytes())[state])

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([table.state for table in pickle.loads(self._path.read_bytes()).values()])


def main(host: str, port: str, path: str) -> None:
    """Serve; prints the address when it is ready."""
    proxy = ClientProxy(EndpointOptions(bind=host, ports=port))
    proxy.set_location_oracle("job", FileOracle(Path(path)))
    proxy.start()
    print(*proxy.address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
