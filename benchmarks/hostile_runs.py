"""One attack on a server of its own: what a well-behaved client, a job and the server's memory see of it.

Rules of this module: it starts and ends the processes, asks as a client does, and takes times. It judges nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from benchmarks.hostile_server import JOB, LARGE, SMALL, TOKEN, small_key
from benchmarks.latencies import percentile
from benchmarks.process_memory import peak_mib, resident_mib
from qstate.client import QueryableStateClient
from qstate.errors import QStateError

__all__ = ["LARGE_BYTES", "Attacked", "Seen", "attacked", "attackers"]

#: A value of the large state.
LARGE_BYTES = 10 << 20
#: Between two gets: the client is a user's, and needs less than its part of the quota.
PAUSE_S = 0.005
TIMEOUT_S = 5.0
END_S = 30.0


@dataclass(slots=True)
class Seen:
    """What a well-behaved client saw for some time."""

    took_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def p50_ms(self) -> float:
        return percentile(self.took_ms, 50)

    @property
    def p99_ms(self) -> float:
        return percentile(self.took_ms, 99)


class Attacked:
    """A server, its ports (proxy, state server), and its clients."""

    def __init__(self, server: subprocess.Popen[str], ports: list[str]) -> None:
        self._server = server
        self._ports = ports
        self._numbers = count()
        #: What it has before an attack.
        self.began_mib = self.resident_mib

    @property
    def resident_mib(self) -> float:
        return resident_mib(self._server.pid)

    @property
    def peak_mib(self) -> float:
        """The most memory that the server ever had."""
        return peak_mib(self._server.pid)

    def client(self, timeout_s: float = TIMEOUT_S, *, direct: bool | None = None) -> QueryableStateClient:
        port = int(self._ports[0])
        return QueryableStateClient("127.0.0.1", port, token=TOKEN, timeout_s=timeout_s, direct=direct)

    def seen(self, client: QueryableStateClient, seconds: float) -> Seen:
        """Ask one key after the other for so long."""
        seen, until = Seen(), time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            try:
                client.get(JOB, SMALL, small_key(next(self._numbers)))
            except QStateError as error:
                seen.failures.append(repr(error))
            seen.took_ms.append((time.perf_counter() - began) * 1e3)
            time.sleep(PAUSE_S)
        return seen

    def under(self, attack: str, connections: int) -> AbstractContextManager[int]:
        """Attack meanwhile. Gives the number of connections that the attack could make."""
        return attackers(attack, connections, (JOB, SMALL, LARGE), self._ports)


@contextmanager
def attackers(attack: str, connections: int, names: tuple[str, str, str], ports: Iterable[str | int]) -> Iterator[int]:
    """Attack these ports meanwhile, with gets of a job, its small and its large values."""
    with _process("benchmarks.hostile_clients", attack, str(connections), *names, *map(str, ports)) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def attacked(backend: str, directory: Path, large_bytes: int = LARGE_BYTES) -> Iterator[Attacked]:
    """A server with a small and a large state."""
    with _process("benchmarks.hostile_server", backend, str(directory), str(large_bytes)) as server:
        assert server.stdout is not None
        yield Attacked(server, server.stdout.readline().split())


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that ends at the end of its input, and is killed if it does not."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
